"""ResNet v1.5 for image classification: depths 10 to 269, any width.

Letters: B images   H, W input pixels   K classes
Module and parameter names are torchvision's, so its weights load by name, both ways, and give its outputs.
v1.5 means that a bottleneck strides in its 3x3 convolution, not in the first 1x1 (He et al. 2015, as changed by
NVIDIA and torchvision). Unit counts up to 269 are those of the MLPerf MXNet submission.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from paceline.config.errors import RecipeError
from paceline.models.batch_norm import BatchNorm

Stem = Literal["imagenet", "small"]

# depth: (units of the four stages, whether a unit is a bottleneck)
DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    10: ((1, 1, 1, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
    269: ((3, 30, 48, 8), True),
}


class Conv2d(nn.Conv2d):
    """nn.Conv2d without torch's first weights: `initialise` or a weight file gives them."""

    def reset_parameters(self) -> None:
        """Draw nothing: it would cost time and move the global random state."""


class Linear(nn.Linear):
    """nn.Linear without torch's first weights, for the same reason."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the unit of depths 10, 18 and 34."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, eps: float, momentum: float) -> None:
        super().__init__()
        self.conv1 = Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(width, eps=eps, momentum=momentum)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(width, eps=eps, momentum=momentum)
        self.downsample = _projection(channels, width, stride, eps, momentum)

    def forward(self, input: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, width, h / stride, w / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        output = self.relu(self.bn1(self.conv1(input)))
        output = self.bn2(self.conv2(output))
        output += shortcut
        return self.relu(output)


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolution beside a shortcut; the unit of depths 50 and up."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, eps: float, momentum: float) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = Conv2d(channels, width, 1, bias=False)
        self.bn1 = BatchNorm(width, eps=eps, momentum=momentum)
        self.conv2 = Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = BatchNorm(width, eps=eps, momentum=momentum)
        self.conv3 = Conv2d(width, outputs, 1, bias=False)
        self.bn3 = BatchNorm(outputs, eps=eps, momentum=momentum)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(channels, outputs, stride, eps, momentum)

    def forward(self, input: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, 4 * width, h / stride, w / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        output = self.relu(self.bn1(self.conv1(input)))
        output = self.relu(self.bn2(self.conv2(output)))
        output = self.bn3(self.conv3(output))
        output += shortcut
        return self.relu(output)


def _projection(channels: int, outputs: int, stride: int, eps: float, momentum: float) -> nn.Sequential | None:
    """The shortcut's 1x1 convolution and BatchNorm where a unit changes the shape; None where it does not."""
    if stride == 1 and channels == outputs:
        return None
    return nn.Sequential(
        Conv2d(channels, outputs, 1, stride, bias=False), BatchNorm(outputs, eps=eps, momentum=momentum)
    )


def make_stage(
    block: type[BasicBlock] | type[Bottleneck],
    units: int,
    channels: int,
    width: int,
    stride: int,
    eps: float,
    momentum: float,
) -> nn.Sequential:
    """One stage of residual units; the first takes `channels` in and has the stride."""
    rest = (block(width * block.expansion, width, 1, eps, momentum) for _ in range(units - 1))
    return nn.Sequential(block(channels, width, stride, eps, momentum), *rest)


class ResNet(nn.Module):
    """Stem, four stages of residual units, average pooling, one linear layer. Weights come from `initialise`."""

    def __init__(
        self,
        depth: int,
        classes: int,
        *,
        width: int = 64,
        stem: Stem = "imagenet",
        stem_channels: Literal[3, 4] = 3,
        bn_eps: float = 1e-5,
        bn_momentum: float = 0.1,
    ) -> None:
        """
        depth          18, 34, 50, 101, 152, 200 or 269
        classes        K
        width          channels of the stem and of the first stage's 3x3 convolutions; 64 is the published net
        stem           imagenet: 7x7 stride 2 and 3x3 max-pool stride 2, an output grid of 1/32 of the input;
                       small: 3x3 stride 2 without pooling, 1/16, for inputs of about 64 to 128 pixels
        stem_channels  4: the input has a fourth channel of zeros, which fp16 convolution kernels like
        bn_momentum    share of the new statistics in an update (MXNet's 0.9 is 0.1 here)
        Parameters are left uninitialised: call `initialise`, or load weights.
        Raises RecipeError for an unknown depth.
        """
        super().__init__()
        if depth not in DEPTHS:
            raise RecipeError(f"no ResNet of depth {depth}; there are {', '.join(map(str, DEPTHS))}")
        units, bottleneck = DEPTHS[depth]
        block = Bottleneck if bottleneck else BasicBlock
        if stem == "imagenet":
            self.conv1 = Conv2d(stem_channels, width, 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        else:
            self.conv1 = Conv2d(stem_channels, width, 3, 2, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = BatchNorm(width, eps=bn_eps, momentum=bn_momentum)
        self.relu = nn.ReLU(inplace=True)
        widths = [width * 2**stage for stage in range(4)]
        inputs = [width, *(block.expansion * stage_width for stage_width in widths)]
        self.layer1 = make_stage(block, units[0], inputs[0], widths[0], 1, bn_eps, bn_momentum)
        self.layer2 = make_stage(block, units[1], inputs[1], widths[1], 2, bn_eps, bn_momentum)
        self.layer3 = make_stage(block, units[2], inputs[2], widths[2], 2, bn_eps, bn_momentum)
        self.layer4 = make_stage(block, units[3], inputs[3], widths[3], 2, bn_eps, bn_momentum)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = Linear(inputs[4], classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3 or 4, H, W) float, normalised -> logits (B, K) float32."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        return self.fc(self.avgpool(features).flatten(1)).float()

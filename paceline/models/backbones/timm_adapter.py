"""Any of timm's networks that gives feature maps, as a trunk: `--model.backbone timm/NAME`.

The network is timm's own, except that its BatchNorms become ours (models/layers/batch_norm.py), so that `bn_batch_size` holds, or
frozen ones. First weights are timm's, drawn from the recipe's seed; nothing is ever downloaded. A file that was saved from timm's
classifier or from its feature network fills the trunk by name (`--weights`).
Source: timm's `create_model(name, features_only=True)`; an extra.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline._utils.commands import require
from paceline._utils.errors import RecipeError
from paceline.config.resnet import BackboneModel
from paceline.models.backbones.base import Backbone, BackboneSpec, Init, Norm
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.layers.common import FrozenBatchNorm, depthwise_convolution, has_slow_backward, init_layers

# Sides of the trial image: no powers of two, because a network of fixed windows would accept only those.
PROBE = (96, 160)


class BatchNormAct(BatchNorm):
    """timm's BatchNormAct2d, or torch's BatchNorm2d with nothing behind it, with our statistics."""

    def __init__(self, channels: int, act: nn.Module, *, eps: float, momentum: float) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.act = act

    def forward(self, input: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] (what follows is `act`)
        """(B, C, H, W) -> the same shape."""
        return self.act(super().forward(input))


class FrozenBatchNormAct(FrozenBatchNorm):
    """The same with fixed statistics."""

    def __init__(self, channels: int, act: nn.Module, *, eps: float) -> None:
        super().__init__(channels, eps)
        self.act = act

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        return self.act(super().forward(input))


class TimmConv2d(nn.Conv2d):
    """timm's convolution, with gradients that are fast on a CPU (models/layers/common.py).

    Of a convolution without bias the weights apply the frozen norm behind it: one pass over the map in place of three.
    """

    def __init__(self, conv: nn.Conv2d, norm: FrozenBatchNormAct | None = None) -> None:
        """Replaces `conv`, whose parameters it shares; of `norm`, which stays where it is, the activation is left."""
        sizes = conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation
        super().__init__(*sizes, conv.groups, bias=False, device="meta")  # type: ignore[arg-type]  # sizes as they were given
        self.weight, self.bias = conv.weight, conv.bias
        self.norm = (norm,)  # in a tuple, so that it is not registered as a submodule
        self.same = type(conv) is not nn.Conv2d  # timm's Conv2dSame, TensorFlow's padding by the size of the map

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> the convolution of it, then the norm."""
        from timm.layers.padding import pad_same

        if self.same:
            input = pad_same(input, list(self.kernel_size), list(self.stride), list(self.dilation))
        if self.norm[0] is None:
            return depthwise_convolution(self, input, self.weight, self.bias)
        scale, shift = self.norm[0].line()
        return depthwise_convolution(self, input, self.weight * scale.view(-1, 1, 1, 1), shift)


@torch.no_grad()
def _fold(net: nn.Module) -> None:
    """Fold each frozen norm into the convolution that its module names right before it.

    The order of names is no promise: where the folded network computes something else, all stays as it was.
    """
    norms = [module for module in net.modules() if isinstance(module, FrozenBatchNormAct)]
    means = [norm.running_mean.clone() for norm in norms]
    for norm in norms:  # means of 0 would hide a norm that went to a wrong convolution
        norm.running_mean.copy_(torch.linspace(-1, 1, len(norm.running_mean)))
    pictures, folded = torch.linspace(-1, 1, 3 * math.prod(PROBE)).view(1, 3, *PROBE), []
    expected = net.eval()(pictures)
    for parent in list(net.modules()):
        children = list(parent.named_children())
        for (name, conv), (_, norm) in pairwise(children):
            if not isinstance(conv, nn.Conv2d) or not isinstance(norm, FrozenBatchNormAct):
                continue
            if _is_plain(conv) and conv.bias is None and conv.out_channels == len(norm.weight):
                setattr(parent, name, TimmConv2d(conv, norm))
                norm.folded = True
                folded.append((parent, name, conv, norm))
    if not all(
        torch.allclose(ours, map, rtol=1e-3, atol=1e-3 * map.abs().max()) for ours, map in zip(net(pictures), expected)
    ):
        for parent, name, conv, norm in folded:
            setattr(parent, name, conv)
            norm.folded = False
    for norm, mean in zip(norms, means):
        norm.running_mean.copy_(mean)
    net.train()


def _fasten(net: nn.Module) -> None:
    """Put ours in the place of timm's depthwise convolutions that are left."""
    for parent in list(net.modules()):
        for name, conv in list(parent.named_children()):
            if isinstance(conv, nn.Conv2d) and _is_plain(conv) and has_slow_backward(conv):
                setattr(parent, name, TimmConv2d(conv))


def _is_plain(conv: nn.Conv2d) -> bool:
    from timm.layers.conv2d_same import Conv2dSame

    return type(conv) in (nn.Conv2d, Conv2dSame) and conv.padding_mode == "zeros"


class TimmBackbone(Backbone):
    """timm's feature network `net`, with our BatchNorms."""

    def __init__(self, name: str, *, stride: int, finest: int, norm: Norm, momentum: float) -> None:
        """
        name      timm's, e.g. convnext_atto
        stride    maps coarser than that are left out with the layers behind them; 0 = none
        finest    of a pyramid, the least stride of its maps
        norm      frozen: BatchNorms have fixed statistics
        momentum  of BatchNorms; their epsilons are timm's
        Raises RecipeError for a network that cannot be a trunk.
        """
        super().__init__()
        self.name, self.norm, self.momentum = name, norm, momentum
        net = _created(name, 0, features_only=True)
        strides = net.feature_info.reduction()
        if strides != sorted(set(strides)):
            raise RecipeError(
                f"--model.backbone timm/{name}: the strides of its feature maps are {strides}, but they must increase. "
                "Choose another backbone."
            )
        count = sum(not stride or of_map <= stride for of_map in strides)
        self.strides, self.channels = strides[:count], net.feature_info.channels()[:count]
        self.places = net.feature_info.out_indices[:count]
        # A pyramid uses several maps, the other networks the last one alone.
        self.maps = slice(sum(of_map < finest for of_map in strides), None) if finest else slice(-1, None)
        self.net = self._ours(
            net if count in (0, len(strides)) else _created(name, 0, features_only=True, out_indices=self.places)
        )

    def _ours(self, net: nn.Module) -> nn.Module:
        """timm's network with our BatchNorms and without layers that no map needs."""
        self._cut(net)
        changed = 0
        for parent in list(net.modules()):
            for child_name, child in list(parent.named_children()):
                if isinstance(child, nn.modules.batchnorm._BatchNorm):
                    setattr(parent, child_name, self._our_norm(child))
                    changed += 1
        if self.norm == "frozen" and not changed:
            raise RecipeError(
                f"--model.norm frozen: timm/{self.name} has no BatchNorm with fixed statistics. Use --model.norm batch, "
                "which keeps its norms unchanged."
            )
        if self.norm == "frozen":
            _fold(net)
        _fasten(net)
        return net

    def _cut(self, net: nn.Module) -> None:
        """Remove the ends of sequences that reach no map: timm leaves them in some networks, and data parallel would wait for
        their gradients."""
        unused = self._unused(net)
        for parent in [module for module in net.modules() if isinstance(module, nn.Sequential)]:
            while len(parent) and (ids := {id(tensor) for tensor in parent[-1].parameters()}) and ids <= unused.keys():
                del parent[-1]
        if left := [name for name, tensor in net.named_parameters() if id(tensor) in unused]:
            raise RecipeError(
                f"--model.backbone timm/{self.name}: {len(left)} of its tensors ({left[0]}, ...) do not affect a feature "
                "map that this network uses. Choose another backbone."
            )

    def _unused(self, net: nn.Module) -> dict[int, Tensor]:
        parameters, trained = list(net.parameters()), deepcopy(net).train()
        net.eval()
        with torch.enable_grad():
            try:
                every = net(torch.zeros(1, 3, *PROBE))
                maps = every[self.maps]
            except (RuntimeError, AssertionError, ValueError) as problem:
                raise RecipeError(f"--model.backbone timm/{self.name}: must accept images of any size: {problem}") from None
            forms = [(1, count, *(-(-side // by) for side in PROBE)) for count, by in zip(self.channels, self.strides)]
            if [tuple(map.shape) for map in maps] != forms[self.maps]:
                raise RecipeError(
                    f"--model.backbone timm/{self.name}: its feature maps are not (B, C, H / stride, W / stride). "
                    "Choose another backbone."
                )
            pictures = torch.linspace(-1, 1, 6 * math.prod(PROBE)).view(2, 3, *PROBE)
            with torch.random.fork_rng(devices=[]):
                same = all(map(torch.equal, trained(pictures), trained(pictures)))
            if not same:
                raise RecipeError(
                    f"--model.backbone timm/{self.name}: uses random numbers in training, which the seed does not control. "
                    "Choose another backbone."
                )
            names, self.reached = {id(tensor): name for name, tensor in net.named_parameters()}, {}
            for number, one in enumerate(every):
                for tensor in _behind(one):  # a tensor keeps the first map's number
                    self.reached.setdefault(f"net.{names[id(tensor)]}", number)
            results = torch.autograd.grad([map.sum() for map in maps], parameters, allow_unused=True)
        net.train()
        return {id(tensor): tensor for tensor, gradient in zip(parameters, results) if gradient is None}

    def _our_norm(self, theirs: nn.modules.batchnorm._BatchNorm) -> nn.Module:
        from timm.layers.norm_act import BatchNormAct2d

        with_act = type(theirs) is BatchNormAct2d and isinstance(theirs.drop, nn.Identity)
        known = (with_act or type(theirs) is nn.BatchNorm2d) and theirs.affine and theirs.track_running_stats
        if not known:
            raise RecipeError(
                f"--model.backbone timm/{self.name}: its {type(theirs).__name__} does not support statistics over "
                "--bn-batch-size images. Choose another backbone."
            )
        act: Any = theirs.act if with_act else nn.Identity()
        channels, eps = theirs.num_features, theirs.eps
        if self.norm == "batch":
            ours = BatchNormAct(channels, act, eps=eps, momentum=self.momentum)
        else:
            ours = FrozenBatchNormAct(channels, act, eps=eps)
        # Not strict: a frozen norm counts no batches.
        ours.load_state_dict(theirs.state_dict(), strict=False)
        return ours

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) float, normalized -> timm's maps, finest first."""
        return list(self.net(images))

    def stage_of(self) -> dict[str, int]:
        """The number of the finest of timm's maps that a parameter has a part in: a stem without a map belongs to the first."""
        return {name: self.reached[name] for name, _ in self.named_parameters() if name in self.reached}

    @torch.no_grad()
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_residual: bool) -> None:
        """timm's own first weights, from a seed drawn from the generator; init and zero_init_residual are the ResNet's."""
        seed = int(torch.randint(2**62, (), generator=generator))
        drawn = _created(self.name, seed, features_only=True, out_indices=self.places)
        self.net.load_state_dict(self._ours(drawn).state_dict())
        if "fc" in self._modules:
            init_layers(self.fc, init, generator)

    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """timm's names, or ours; a feature network has underscores in them where the classifier has dots."""
        ours = {_bare(name): name for name in self.net.state_dict()}
        if not any(_bare(name) in ours for name in saved):
            return {}, ()
        whole = {_bare(name) for name in _created(self.name, 0).state_dict()}
        beyond = [name for name in saved if _bare(name) in whole and _bare(name) not in ours]
        head = {}
        if any(name.startswith("net.") for name in saved):  # a classifier of ours, with a head beside timm's network
            head = {name: tensor for name, tensor in saved.items() if name in ("fc.weight", "fc.bias")}
        backbone = {
            f"net.{ours.get(_bare(name), name.removeprefix('net.'))}": tensor
            for name, tensor in saved.items()
            if name not in head
        }
        return {**backbone, **head}, (*(f"net.{name.removeprefix('net.')}" for name in beyond), *head)


def build_timm_backbone(name: str, model: BackboneModel, form: BackboneSpec) -> TimmBackbone:
    """timm's network `name` for a recipe.

    Raises RecipeError where timm is missing or has no such network, and for a form that it cannot have.
    """
    if form.norm == "group":
        raise RecipeError(f"--model.norm group: timm/{name} keeps its norms. Use --model.norm batch.")
    # On the CPU whatever the device of the rest: some of timm's networks compute numbers while they are built, which meta cannot.
    with torch.device("cpu"):
        return TimmBackbone(name, stride=form.stride, finest=form.finest, norm=form.norm, momentum=model.bn_momentum)


def get_pretrained_pixels(name: str) -> dict[str, tuple[float, ...]]:
    """Mean and deviation, by these fields of an input, that timm's weights NAME or NAME.TAG were trained on; {} = unknown.

    Raises RecipeError where timm is missing or has no network of this name.
    """
    timm = _timm_with(name.partition(".")[0])
    if not timm.is_model_pretrained(name):
        return {}
    config = timm.get_pretrained_cfg(name)
    return {"mean": tuple(config.mean), "std": tuple(config.std)}


def _timm_with(name: str) -> Any:
    """The package timm, which has a network of this name."""
    require("timm", f"--model.backbone timm/{name}")
    import timm

    # From the registry alone: create_model would also download names like hf-hub:... .
    known = timm.list_models()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else "`timm.list_models()` lists all networks."
        raise RecipeError(f"--model.backbone timm/{name}: network not found in timm {timm.__version__}. {hint}")
    return timm


def _created(name: str, seed: int, **wanted: Any) -> Any:
    """timm's network, its weights drawn on the CPU from `seed`; the global random state stays as it was."""
    timm = _timm_with(name)
    from timm.layers.drop import DropPath

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            net = timm.create_model(name, pretrained=False, **wanted)
        except (RuntimeError, AssertionError, TypeError) as problem:
            raise RecipeError(f"--model.backbone timm/{name}: timm cannot build it as a backbone: {problem}") from None
    # Random draws in a step would depend on the process, not on the recipe's seed, and a resumed run would differ.
    for module in net.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
        elif isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return net


def _behind(map: Tensor) -> Iterator[Tensor]:
    """The parameters that a map was computed from."""
    seen: set[Any] = {None}
    waiting: list[Any] = [map.grad_fn]
    while waiting:
        if (node := waiting.pop()) in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [before for before, _ in node.next_functions]


def _bare(name: str) -> str:
    """A tensor's name in one spelling for timm's two."""
    return name.removeprefix("model.").removeprefix("net.").replace(".", "_")

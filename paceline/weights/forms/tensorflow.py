"""TensorFlow's ResNets and Habana's SSD on one, read: names are counted in the order in which the graph was built.

Letters: n boxes of a cell   C classes with background
Convolutions are HWIO there and OIHW here. A unit's shortcut is built before its own convolutions. Box deltas are y, x, h, w there.
Its strided convolutions in the ResNet pad on both sides, as ours; the max-pool and the extra layers of the SSD pad even sides at their
end alone (SAME), which --model.padding end does too.
Source: HabanaAI/Model-References 1.5.0, SSD_ResNet34/architecture.py; its backbone model.ckpt-28152 is a classifier of that kind.
"""

from __future__ import annotations

import re

from torch import Tensor

from paceline.weights.forms.class_names import COCO_80, imagenet
from paceline.weights.forms.ours import Facts, FormError, Ours, Tensors

PARTS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# Convolutions of the stages' units of ResNet-34, and which stages begin with a shortcut of their own.
UNITS, PER_UNIT, FIRST_SHORTCUT = (3, 4, 6, 3), 2, 2
SCOPE = re.compile(r"(?:resnet\d+/)?(?P<layer>conv2d|batch_normalization|dense)(?:_(?P<count>\d+))?/(?P<part>\w+)")
EXTRA = re.compile(r"(?:ssd/)?block(?P<block>\d+)-conv(?P<size>1x1|3x3)/(?P<part>kernel|bias)")
HEAD = re.compile(r"(?:ssd/)?(?:(?:class|box)_net/)?(?P<kind>class|box)-(?P<level>[3-8])/(?P<part>kernel|bias)")
FIRST_EXTRA, FIRST_LEVEL = 7, 3
# What training keeps beside the weights.
NO_WEIGHTS = re.compile(
    r"global_step|.*/(?:Momentum|ExponentialMovingAverage|Adam|Adam_1|RMSProp|RMSProp_1)|beta[12]_power|.*OBJECT_GRAPH.*"
)
# y, x, h, w -> x, y, w, h
ORDER = (1, 0, 3, 2)


def is_tensorflow(names: Tensors, _: Facts) -> bool:
    """Whether the names are TensorFlow's."""
    return any(re.fullmatch(r"(?:resnet\d+/)?conv2d/kernel", name) for name in names)


def from_tensorflow(saved: Tensors, _: Facts) -> Ours:
    """Under our names: of the trunk alone, with its classes, or of the whole SSD. Raises FormError for other networks."""
    kernels = sum(1 for name in saved if (found := SCOPE.fullmatch(name)) and found["layer"] == "conv2d")
    if kernels not in (_before(3), _before(4)):
        raise FormError(
            f"TensorFlow's, with {kernels} convolutions in its ResNet: read are ResNet-34's, of three or four stages"
        )
    whole = any(HEAD.fullmatch(name) for name in saved)
    trunk = "trunk." if whole else ""
    state, left_out = {}, []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
        elif (found := SCOPE.fullmatch(name)) and found["part"] in PARTS:
            ours = _layer(found["layer"], int(found["count"] or 0))
            state[f"{'' if found['layer'] == 'dense' else trunk}{ours}.{PARTS[found['part']]}"] = _laid_out(tensor)
        elif found := EXTRA.fullmatch(name):
            layer = "reduce" if found["size"] == "1x1" else "conv"
            state[f"extras.{int(found['block']) - FIRST_EXTRA}.{layer}.{PARTS[found['part']]}"] = _laid_out(tensor)
        elif found := HEAD.fullmatch(name):
            kind, tensor = ("loc", _boxes(_laid_out(tensor))) if found["kind"] == "box" else ("conf", _laid_out(tensor))
            state[f"heads.{int(found['level']) - FIRST_LEVEL}.{kind}.{PARTS[found['part']]}"] = tensor
        else:
            state[name] = tensor
    classes: tuple[str, ...] = COCO_80 if whole else ()
    if "fc.bias" in state:
        classes = imagenet() if len(state["fc.bias"]) in (1000, 1001) else ()
        if len(state["fc.bias"]) == 1001:  # a background that no photo has
            state["fc.weight"], state["fc.bias"] = state["fc.weight"][1:], state["fc.bias"][1:]
    return Ours(state, tuple(state), {"padding": "end"}, classes, left_out=tuple(left_out))


def _before(stage: int) -> int:
    """Convolutions of the stem and of the stages before `stage`, counted from 0."""
    return 1 + sum(PER_UNIT * units + (number + 1 >= FIRST_SHORTCUT) for number, units in enumerate(UNITS[:stage]))


def _layer(kind: str, count: int) -> str:
    """Our name of the `count`-th convolution or norm."""
    if kind == "dense":
        return "fc"
    if count == 0:
        return "conv1" if kind == "conv2d" else "bn1"
    stage = next((number for number in range(4) if count < _before(number + 1)), None)
    if stage is None:
        raise FormError(f"TensorFlow's {kind}_{count} is beyond a ResNet-34's")
    place, shortcut = count - _before(stage), stage + 1 >= FIRST_SHORTCUT
    if shortcut and place == 0:
        return f"layer{stage + 1}.0.downsample.{0 if kind == 'conv2d' else 1}"
    unit, layer = divmod(place - shortcut, PER_UNIT)
    return f"layer{stage + 1}.{unit}.{'conv' if kind == 'conv2d' else 'bn'}{layer + 1}"


def _laid_out(tensor: Tensor) -> Tensor:
    """HWIO -> OIHW, and a matrix's inputs and outputs exchanged."""
    if tensor.dim() == 4:
        return tensor.permute(3, 2, 0, 1).contiguous()
    return tensor.t().contiguous() if tensor.dim() == 2 else tensor


def _boxes(tensor: Tensor) -> Tensor:
    """(4 n, ...) of y, x, h, w -> of x, y, w, h."""
    if tensor.shape[0] % 4:
        raise FormError(f"a box convolution of {tensor.shape[0]} channels")
    return tensor.unflatten(0, (-1, 4))[:, list(ORDER)].flatten(0, 1)

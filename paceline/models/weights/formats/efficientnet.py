"""EfficientNet-Lite as efficientnet_pytorch names it: the same network as timm's tf_efficientnet_lite*, under timm's names.

Blocks are numbered through there, and by stage and place at timm: a stage ends where the number of output channels changes. No number
is changed. Source: efficientnet_lite_pytorch (model.py, utils.py) and timm (_efficientnet_blocks.py, efficientnet.py).
"""

from __future__ import annotations

import re

from paceline.models.weights.formats.paceline_format import (
    Facts,
    PacelineWeights,
    Tensors,
    WeightFormatError,
    rename_tensor,
)

BLOCK = re.compile(r"_blocks\.(\d+)\.(_\w+)\.(\w+)")
# A block's parts; the first stage has no expansion, and numbers its BatchNorms from the next part on.
EXPANDED = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw"},
    **{"_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"},
}
PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
ENDS = (
    (r"_conv_stem\.(weight)", r"conv_stem.\1"),
    (r"_bn0\.(\w+)", r"bn1.\1"),
    (r"_conv_head\.(weight)", r"conv_head.\1"),
    (r"_bn1\.(\w+)", r"bn2.\1"),
    (r"_fc\.(weight|bias)", r"classifier.\1"),
)

NOTE = "EfficientNet-Lite, for --model.backbone timm/tf_efficientnet_liteN; its pixel values are from -1 to 1"


def is_efficientnet(tensors: Tensors, _: Facts) -> bool:
    return "_conv_stem.weight" in tensors and "_blocks.0._depthwise_conv.weight" in tensors


def from_efficientnet(saved: Tensors, _: Facts) -> PacelineWeights:
    """-> the tensors under timm's names. Raises WeightFormatError for a name that no Lite network has."""
    indices = _places(saved)
    expanded = {int(result[1]) for name in saved if (result := BLOCK.fullmatch(name)) and result[2] == "_expand_conv"}
    made = {}
    for name, tensor in saved.items():
        block = BLOCK.fullmatch(name)
        if block and int(block[1]) in indices:
            number = int(block[1])
            part = (EXPANDED if number in expanded else PLAIN).get(block[2])
            theirs = part and f"blocks.{indices[number]}.{part}.{block[3]}"
        else:
            theirs = rename_tensor(name, ENDS)
        if not theirs:
            raise WeightFormatError(f"it has {name}, unlike EfficientNet-Lite. Other EfficientNets are not supported")
        made[theirs] = tensor
    return PacelineWeights(made, notes=(NOTE,))


def _places(saved: Tensors) -> dict[int, str]:
    """Number of a block -> "stage.place", from the numbers of output channels."""
    wide: dict[int, int] = {}
    for name, tensor in saved.items():
        if (block := BLOCK.fullmatch(name)) and (block[2], block[3]) == ("_project_conv", "weight"):
            wide[int(block[1])] = len(tensor)
    result, stage, location, before = {}, -1, 0, 0
    for number in sorted(wide):
        stage, location = (stage, location + 1) if wide[number] == before else (stage + 1, 0)
        result[number], before = f"{stage}.{location}", wide[number]
    return result

"""Weights for Mask R-CNN: torchvision's `maskrcnn_resnet50_fpn` of any age, its trunk's, and our own checkpoints.

Letters: K classes, 1..K (0 is the background)
Names are torchvision's, so most tensors load as they are. Its COCO files have 91 classes, numbered by COCO's category ids with
holes; where the data set's ids are COCO's 80, the rows of the three class-wise layers are picked by id.
Where the classes are other ones, these three layers start anew.
The COCO_V1 file was trained and is evaluated with a BatchNorm epsilon of 0: use it with --model.bn-eps 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paceline.models.mask_rcnn import MaskRCNN
from paceline.models.weights import WeightReport, copy_named, read_weights

# Names of files from before torchvision 0.13 -> ours.
RENAMED = (
    (r"backbone\.fpn\.(inner_blocks|layer_blocks)\.(\d+)\.(weight|bias)", r"backbone.fpn.\1.\2.0.\3"),
    (r"rpn\.head\.conv\.(weight|bias)", r"rpn.head.conv.0.0.\1"),
)
OLD_MASK = re.compile(r"roi_heads\.mask_head\.mask_fcn(\d+)\.(weight|bias)")
# Layers with a row, or four, for each class.
CLASS_ROWS = {
    "roi_heads.box_predictor.cls_score": 1,
    "roi_heads.box_predictor.bbox_pred": 4,
    "roi_heads.mask_predictor.mask_fcn_logits": 1,
}
COCO_ROWS = 91  # background, and COCO's category ids 1 to 90
# The 80 ids of COCO's categories.
COCO_IDS = frozenset(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
BODY = "backbone.body."


def load_mask_rcnn_weights(model: MaskRCNN, path: Path, *, category_ids: Sequence[int] = ()) -> WeightReport:
    """Copy a weight file into an initialised `model`, in place, and report every key.

    category_ids  of classes 1..K, as the data set's annotations number them: for files with COCO's 91 rows
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    saved = read_weights(path)
    found, beyond = model.backbone.body.of_file(saved)
    saved = {f"{BODY}{name}": tensor for name, tensor in found.items()} or _our_names(saved)
    own = model.state_dict()
    saved = {name: tensor for name, tensor in saved.items() if name in own or not name.endswith("num_batches_tracked")}
    trunk_only = not any(name.startswith("roi_heads.") for name in saved)
    converted = [] if trunk_only else _coco_rows(saved, own, category_ids)
    if trunk_only:
        fresh = [name for name in own if not name.startswith(BODY)]
    else:
        fresh = [
            name for name in own if _class_layer(name) and (name not in saved or saved[name].shape != own[name].shape)
        ]
        # Boxes or masks of other classes are of no use beside a new class layer: all three start anew together.
        fresh = [name for name in own if _class_layer(name)] if fresh else []
    return copy_named(
        model, saved, path, fresh=fresh, converted=converted, allow_unexpected=tuple(BODY + name for name in beyond)
    )


def _our_names(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Today's names for older files' tensors."""
    state = {}
    for name, tensor in saved.items():
        for pattern, ours in RENAMED:
            name = re.sub(f"^{pattern}$", ours, name)
        if mask := OLD_MASK.fullmatch(name):
            name = f"roi_heads.mask_head.{int(mask[1]) - 1}.0.{mask[2]}"
        state[name] = tensor
    return state


def _class_layer(name: str) -> bool:
    return name.rpartition(".")[0] in CLASS_ROWS


def _coco_rows(saved: dict[str, Tensor], own: Mapping[str, Tensor], category_ids: Sequence[int]) -> list[str]:
    """Pick the rows of the data set's categories from COCO's 91, in place; -> names that were changed.

    Only where the ids are COCO's own 80: number 1 of somebody else's categories is no person, and starts anew.
    """
    rows = [0, *category_ids]
    name = "roi_heads.box_predictor.cls_score.bias"
    if not all(f"{layer}.{part}" in saved for layer in CLASS_ROWS for part in ("weight", "bias")):
        return []  # a detector without masks, say: what is missing is reported later
    if len(saved[name]) != COCO_ROWS or frozenset(category_ids) != COCO_IDS or len(own[name]) != len(rows):
        return []
    changed = []
    for layer, each in CLASS_ROWS.items():
        places = torch.tensor([each * row + part for row in rows for part in range(each)])
        for part in ("weight", "bias"):
            saved[f"{layer}.{part}"] = saved[f"{layer}.{part}"][places]
            changed.append(f"{layer}.{part}")
    return changed

"""Weights into Mask R-CNN: of one of any form, of its trunk, or of a whole classifier.

Letters: K classes, 1..K (0 is the background)
Names are torchvision's, so most tensors load as they are. Its COCO files have 91 classes, numbered by COCO's category ids with
holes; where the data set's ids are COCO's 80, the rows of the three class-wise layers are picked by id. Of other classes rows are
picked by name, and those of no such name start anew.
The COCO_V1 file was trained and is evaluated with a BatchNorm epsilon of 0: use it with --model.bn-eps 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paceline.config.errors import CheckpointError
from paceline.models.mask_rcnn import MaskRCNN
from paceline.weights.class_rows import Labels, Rows, take_rows, with_background
from paceline.weights.forms.torchvision_others import is_faster_rcnn
from paceline.weights.load import STEM, WeightReport, class_rows_of, copy_named, fit_stem, opened
from paceline.weights.weight_file import WeightFile

# Layers with a row, or four, for each class.
CLASS_ROWS = {
    "roi_heads.box_predictor.cls_score": 1,
    "roi_heads.box_predictor.bbox_pred": 4,
    "roi_heads.mask_predictor.mask_fcn_logits": 1,
}
MASK_HEAD = ("roi_heads.mask_head.", "roi_heads.mask_predictor.")
COCO_ROWS = 91  # background, and COCO's category ids 1 to 90
# The 80 ids of COCO's categories.
COCO_IDS = frozenset(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
BODY = "backbone.body."


def load_mask_rcnn_weights(model: MaskRCNN, source: Path | WeightFile, labels: Labels | None = None) -> WeightReport:
    """Copy a weight file into an initialised `model`, in place, and report every key.

    labels   the data set's classes: rows of the class-wise layers are picked for them
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    file = opened(source)
    without_masks = is_faster_rcnn(file.ours.tensors)
    if file.ours.lacks and not without_masks:
        raise CheckpointError(f"{file.path}: {file.ours.lacks}.")
    file.require(model.backbone.body)
    saved = dict(file.ours.tensors)
    found, beyond = model.backbone.body.of_file(saved)
    if found:
        saved = {f"{BODY}{name}": tensor for name, tensor in found.items()}
    own = model.state_dict()
    converted = [name for name in own if name.removeprefix(BODY if found else "") in file.ours.converted]
    converted += fit_stem(saved, own, f"{BODY}{STEM}")
    said = file.notes_for(model.backbone.body) + ([file.ours.lacks] if without_masks else [])
    saved = {name: tensor for name, tensor in saved.items() if name in own or not name.endswith("num_batches_tracked")}
    trunk_only = not any(name.startswith("roi_heads.") for name in saved)
    if trunk_only:
        fresh = [name for name in own if not name.startswith(BODY)]
    else:
        if changed := _coco_rows(saved, own, labels.ids if labels else ()):
            converted += changed
        elif (rows := _rows(saved, own, file, labels)) is not None:
            converted += _with_rows(saved, own, rows)
            said += rows.lines()
        fresh = [
            name for name in own if _class_layer(name) and (name not in saved or saved[name].shape != own[name].shape)
        ]
        # Boxes or masks of other classes are of no use beside a new class layer: all three start anew together.
        fresh = [name for name in own if _class_layer(name)] if fresh else []
        if without_masks:
            fresh += [name for name in own if name.startswith(MASK_HEAD) and name not in fresh]
        converted = [name for name in dict.fromkeys(converted) if name not in fresh]
    return copy_named(
        model, saved, file.path, fresh=fresh, converted=converted, said=said,
        allow_unexpected=tuple(BODY + name for name in beyond),
    )  # fmt: skip


def _rows(
    saved: Mapping[str, Tensor], own: Mapping[str, Tensor], file: WeightFile, labels: Labels | None
) -> Rows | None:
    """How the file's classes become the data set's, see `class_rows_of`; None where a layer is missing, or of other widths."""
    for name in (f"{layer}.{part}" for layer in CLASS_ROWS for part in ("weight", "bias")):
        if name not in saved or name not in own or saved[name].shape[1:] != own[name].shape[1:]:
            return None
    counts = {len(saved[f"{layer}.bias"]) / each for layer, each in CLASS_ROWS.items()}
    return class_rows_of(file, labels, int(counts.pop()) - 1) if len(counts) == 1 else None


def _with_rows(saved: dict[str, Tensor], own: Mapping[str, Tensor], rows: Rows) -> list[str]:
    """Put rows where the data set's classes want them, in place; where none is wanted, all start anew. -> names changed."""
    changed = []
    for layer, each in CLASS_ROWS.items():
        for part in ("weight", "bias"):
            name = f"{layer}.{part}"
            if rows.any:
                saved[name] = take_rows(own[name], saved[name], with_background(rows), each=each)
                changed.append(name)
            else:
                del saved[name]
    return changed


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

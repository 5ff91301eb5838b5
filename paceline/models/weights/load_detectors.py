"""Weights into SSD and Mask R-CNN: of one of any form, of its trunk, or of a whole classifier.

Letters: n boxes of a cell   K classes, 1..K (0 is the background)
SSD: with either kind of head. Mask R-CNN, with its mask head or without: names are torchvision's, so most tensors load as they are.
Its COCO files have 91 classes, numbered by COCO's category ids with holes; where the data set's ids are COCO's 80, the rows of the
class-wise layers are picked by id. Of other classes rows are picked by name, and those without a row of that name start anew.
The COCO_V1 file was trained and is evaluated with a BatchNorm epsilon of 0: use it with --model.bn-eps 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paceline._utils.errors import CheckpointError
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.ssd.model import SSD, FusedHead
from paceline.models.weights.classes import COCO, ClassRows, Labels, add_background_row, select_rows
from paceline.models.weights.formats.torchvision import WITHOUT_MASKS, is_faster_rcnn
from paceline.models.weights.load import STEM, WeightReport, copy_tensors, ensure_open, fit_stem, map_class_rows
from paceline.models.weights.weight_file import WeightFile

OWN_HEAD = re.compile(r"heads\.(\d+)\.(loc|conf|fused)\.(weight|bias)")


def load_ssd_weights(model: SSD, source: Path | WeightFile, labels: Labels | None = None) -> WeightReport:
    """Copy a weight file into an initialized `model`, in place, and report every key.

    A file of the trunk, or of a whole classifier, fills the trunk. An SSD's fills all; where it has other classes, the rows of those
    whose names both sides have are kept, and the others start anew.
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    file = ensure_open(source)
    file.require(model.trunk)
    saved, converted, said = dict(file.ours.tensors), list(file.ours.converted), file.notes_for(model.trunk)
    result, beyond = model.trunk.of_file(saved)
    if result:
        saved = {f"trunk.{name}": tensor for name, tensor in result.items()}
        converted = [f"trunk.{name}" for name in converted if name in result]
    own = model.state_dict()
    converted += fit_stem(saved, own, f"trunk.{STEM}")
    rows = _ssd_rows(model, file, labels) if _same_heads(model, saved) else None
    if rows is not None or any(".fused." in name for name in own) != any(".fused." in name for name in saved):
        saved, changed = _heads_for(model, saved, rows)
        converted = sorted({*converted, *changed})
        said += rows.lines() if rows is not None else []
    trunk_only = not any(name.startswith(("extras.", "heads.")) for name in saved)
    if trunk_only:
        fresh = [name for name in own if not name.startswith("trunk.")]
    else:
        fresh = [
            name
            for name in own
            if OWN_HEAD.fullmatch(name)
            and ".loc." not in name
            and (name not in saved or saved[name].shape != own[name].shape)
        ]
    beyond = tuple(f"trunk.{name}" for name in beyond)
    converted = [name for name in converted if name in own]
    return copy_tensors(model, saved, file.path, fresh=fresh, converted=converted, said=said, allow_unexpected=beyond)


def convert_heads(conf: Tensor, loc: Tensor, channels: int) -> Tensor:
    """A class and a box convolution's weight or bias as one, padded with zeros to `channels` output channels."""
    rest = channels - conf.shape[0] - loc.shape[0]
    return torch.cat((conf, loc, loc.new_zeros(rest, *loc.shape[1:])))


def _ssd_rows(model: SSD, file: WeightFile, labels: Labels | None) -> ClassRows | None:
    """How the file's classes become the data set's, see `map_class_rows`; None also for a file of the trunk alone."""
    boxes, state = _boxes(model)[0], file.ours.tensors
    if "heads.0.conf.bias" in state:
        return map_class_rows(file, labels, len(state["heads.0.conf.bias"]) // boxes - 1)
    fused = state.get("heads.0.fused.bias")
    # A padded head does not tell its classes; those that stand beside it must fit into it.
    if fused is None or (len(file.classes) + 5) * boxes > len(fused):
        return None
    return map_class_rows(file, labels, len(file.classes))


def _same_heads(model: SSD, saved: Mapping[str, Tensor]) -> bool:
    """Whether each head of the file sees as many channels as the model's; else it is another model's, which is said elsewhere."""
    for level, head in enumerate(model.heads):
        results = [saved.get(f"heads.{level}.{kind}.weight") for kind in ("fused", "conf", "loc")]
        weights = [weight for weight in results if weight is not None]
        biases = sum(f"heads.{level}.{kind}.bias" in saved for kind in ("fused", "conf", "loc"))
        inputs = (head.fused if isinstance(head, FusedHead) else head.conf).in_channels  # type: ignore[union-attr]
        if not weights or len(weights) != biases or any(weight.shape[1:] != (inputs, 3, 3) for weight in weights):
            return False
        if (len(weights) == 1) != (results[0] is not None):  # a fused one alone, or one of either kind
            return False
    return True


def _heads_for(model: SSD, saved: Mapping[str, Tensor], rows: ClassRows | None) -> tuple[dict[str, Tensor], list[str]]:
    """Heads of either kind in the model's kind, with the model's classes; -> the state and the names that were made.

    rows   None: the file's classes, of which nothing is known, and of heads of the other kind alone
    """
    state, own, made = dict(saved), model.state_dict(), []
    indices = add_background_row(rows) if rows and rows.any else [None] * (len(rows.places) + 1 if rows else 0)
    for level, (head, boxes) in enumerate(zip(model.heads, _boxes(model))):
        fused = isinstance(head, FusedHead)
        for part in ("weight", "bias"):
            names = {kind: f"heads.{level}.{kind}.{part}" for kind in ("conf", "loc", "fused")}
            if rows is None and names["conf" if fused else "fused"] not in state:
                continue
            # A padded head does not tell its class count: without rows it is cut to the model's.
            count = boxes * (len(rows.theirs) + 1) if rows else 0 if fused else head.conf.out_channels  # type: ignore[union-attr, operator]
            conf, loc = _apart(state, names, count, boxes * 4)  # type: ignore[arg-type]
            if rows:
                mine, _ = _apart(dict(own), names, boxes * len(indices), boxes * 4)
                conf = select_rows(mine, conf, indices, cells=boxes)
            if fused:
                state[names["fused"]] = convert_heads(conf, loc, head.fused.out_channels)
                made.append(names["fused"])
                continue
            state[names["loc"]] = loc
            made += [] if rows else [names["loc"]]
            if rows is None or rows.any:  # else it stays away from the state, and is new
                state[names["conf"]] = conf
                made.append(names["conf"])
    return state, made


def _apart(state: dict[str, Tensor], names: Mapping[str, str], classes: int, deltas: int) -> tuple[Tensor, Tensor]:
    """A level's class and box parts, taken out of the state. Raises KeyError where there are none."""
    if names["fused"] in state:
        fused = state.pop(names["fused"])
        return fused[:classes], fused[classes : classes + deltas]
    return state.pop(names["conf"]), state.pop(names["loc"])


def _boxes(model: SSD) -> list[int]:
    """n of each level."""
    return [
        (head.deltas if isinstance(head, FusedHead) else head.loc.out_channels) // 4  # type: ignore[union-attr, operator]
        for head in model.heads
    ]


# Layers with a row, or four, for each class.
CLASS_ROWS = {
    "roi_heads.box_predictor.cls_score": 1,
    "roi_heads.box_predictor.bbox_pred": 4,
    "roi_heads.mask_predictor.mask_fcn_logits": 1,
}
MASK_HEAD = ("roi_heads.mask_head.", "roi_heads.mask_predictor.")
COCO_ROWS = 91  # background, and COCO's category ids 1 to 90
BODY = "backbone.body."


def load_mask_rcnn_weights(model: MaskRCNN, source: Path | WeightFile, labels: Labels | None = None) -> WeightReport:
    """Copy a weight file into an initialized `model`, in place, and report every key.

    labels   the data set's classes: rows of the class-wise layers are picked for them
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    file = ensure_open(source)
    finds_masks = hasattr(model.roi_heads, "mask_head")
    without_masks = finds_masks and is_faster_rcnn(file.ours.tensors)
    if file.ours.lacks:
        raise CheckpointError(f"{file.path}: {file.ours.lacks}.")
    file.require(model.backbone.body)
    saved = dict(file.ours.tensors)
    result, beyond = model.backbone.body.of_file(saved)
    if result:
        saved = {f"{BODY}{name}": tensor for name, tensor in result.items()}
    own = model.state_dict()
    converted = [name for name in own if name.removeprefix(BODY if result else "") in file.ours.converted]
    converted += fit_stem(saved, own, f"{BODY}{STEM}")
    said = file.notes_for(model.backbone.body) + ([WITHOUT_MASKS] if without_masks else [])
    trunk_only = not any(name.startswith("roi_heads.") for name in saved)
    if trunk_only:
        fresh = [name for name in own if not name.startswith(BODY)]
    else:
        if changed := _coco_rows(saved, own, labels.ids if labels else ()):
            converted += changed
        elif (rows := _rows(saved, own, file, labels)) is not None:
            converted += _with_rows(saved, own, rows)
            said += rows.lines()
        fresh = [name for name in own if _class_layer(name) and (name not in saved or saved[name].shape != own[name].shape)]
        # Boxes or masks of other classes are of no use beside a new class layer: all three start anew together.
        fresh = [name for name in own if _class_layer(name)] if fresh else []
        if without_masks:
            fresh += [name for name in own if name.startswith(MASK_HEAD) and name not in fresh]
        converted = [name for name in dict.fromkeys(converted) if name not in fresh]
    return copy_tensors(
        model, saved, file.path, fresh=fresh, converted=converted, said=said,
        allow_unexpected=(*(BODY + name for name in beyond), *(() if finds_masks else MASK_HEAD)),
    )  # fmt: skip


def _rows(
    saved: Mapping[str, Tensor], own: Mapping[str, Tensor], file: WeightFile, labels: Labels | None
) -> ClassRows | None:
    """How the file's classes become the data set's, see `map_class_rows`; None where a layer is missing, or of other widths."""
    layers = _class_layers(own)
    for name in (f"{layer}.{part}" for layer in layers for part in ("weight", "bias")):
        if name not in saved or name not in own or saved[name].shape[1:] != own[name].shape[1:]:
            return None
    counts = {len(saved[f"{layer}.bias"]) / each for layer, each in layers.items()}
    return map_class_rows(file, labels, int(counts.pop()) - 1) if len(counts) == 1 else None


def _with_rows(saved: dict[str, Tensor], own: Mapping[str, Tensor], rows: ClassRows) -> list[str]:
    """Put rows where the data set's classes want them, in place; where none is wanted, all start anew. -> names changed."""
    changed = []
    for layer, each in _class_layers(own).items():
        for part in ("weight", "bias"):
            name = f"{layer}.{part}"
            if rows.any:
                saved[name] = select_rows(own[name], saved[name], add_background_row(rows), each=each)
                changed.append(name)
            else:
                del saved[name]
    return changed


def _class_layers(own: Mapping[str, Tensor]) -> dict[str, int]:
    """Those of the network, which may have no masks."""
    return {layer: each for layer, each in CLASS_ROWS.items() if f"{layer}.bias" in own}


def _class_layer(name: str) -> bool:
    return name.rpartition(".")[0] in CLASS_ROWS


def _coco_rows(saved: dict[str, Tensor], own: Mapping[str, Tensor], category_ids: Sequence[int]) -> list[str]:
    """Pick the rows of the data set's categories from COCO's 91, in place; -> names that were changed.

    Only where the ids are COCO's own 80: number 1 of somebody else's categories is no person, and starts anew.
    """
    rows = [0, *category_ids]
    name = "roi_heads.box_predictor.cls_score.bias"
    if not all(f"{layer}.{part}" in saved for layer in _class_layers(own) for part in ("weight", "bias")):
        return []  # a detector without masks, say: what is missing is reported later
    if len(saved[name]) != COCO_ROWS or frozenset(category_ids) != COCO.keys() or len(own[name]) != len(rows):
        return []
    changed = []
    for layer, each in _class_layers(own).items():
        indices = torch.tensor([each * row + part for row in rows for part in range(each)])
        for part in ("weight", "bias"):
            saved[f"{layer}.{part}"] = saved[f"{layer}.{part}"][indices]
            changed.append(f"{layer}.{part}")
    return changed

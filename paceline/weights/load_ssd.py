"""Weights into SSD: of an SSD of any form, of its trunk, or of a whole classifier, with either kind of head.

Letters: n boxes of a cell   K classes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from paceline.models.ssd import SSD, FusedHead
from paceline.weights.class_rows import Labels, Rows, take_rows, with_background
from paceline.weights.load import STEM, WeightReport, class_rows_of, copy_named, fit_stem, opened
from paceline.weights.weight_file import WeightFile

OWN_HEAD = re.compile(r"heads\.(\d+)\.(loc|conf|fused)\.(weight|bias)")


def load_ssd_weights(model: SSD, source: Path | WeightFile, labels: Labels | None = None) -> WeightReport:
    """Copy a weight file into an initialised `model`, in place, and report every key.

    A file of the trunk, or of a whole classifier, fills the trunk. An SSD's fills all; where it has other classes, the rows of those
    whose names both sides have are kept, and the others start anew.
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    file = opened(source)
    file.require(model.trunk)
    saved, converted, said = dict(file.ours.tensors), list(file.ours.converted), file.notes_for(model.trunk)
    found, beyond = model.trunk.of_file(saved)
    if found:
        saved = {f"trunk.{name}": tensor for name, tensor in found.items()}
        converted = [f"trunk.{name}" for name in converted if name in found]
    own = model.state_dict()
    converted += fit_stem(saved, own, f"trunk.{STEM}")
    rows = _class_rows(model, file, labels)
    if rows is not None and _same_heads(model, saved):
        saved, changed = _with_rows(model, saved, rows)
        converted = sorted({*converted, *changed})
        said += rows.lines()
    elif any(".fused." in name for name in own) != any(".fused." in name for name in saved):
        saved, changed = _other_heads(model, saved)
        converted = sorted({*converted, *changed})
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
    return copy_named(model, saved, file.path, fresh=fresh, converted=converted, said=said, allow_unexpected=beyond)


def fuse_heads(conf: Tensor, loc: Tensor, channels: int) -> Tensor:
    """A class and a box convolution's weight or bias as one, padded with zeros to `channels` output channels."""
    rest = channels - conf.shape[0] - loc.shape[0]
    return torch.cat((conf, loc, loc.new_zeros(rest, *loc.shape[1:])))


def _other_heads(model: SSD, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Heads of the file's kind in the model's kind; -> the state and the names that were made."""
    state, made = dict(saved), []
    for level, head in enumerate(model.heads):
        for part in ("weight", "bias"):
            ours = f"heads.{level}.fused.{part}"
            apart = {kind: f"heads.{level}.{kind}.{part}" for kind in ("conf", "loc")}
            if isinstance(head, FusedHead) and apart["conf"] in saved:
                conf, loc = (state.pop(apart[kind]) for kind in ("conf", "loc"))
                state[ours] = fuse_heads(conf, loc, head.fused.out_channels)
                made.append(ours)
            elif not isinstance(head, FusedHead) and ours in saved:
                # The file's own class count is not known from a padded head; the model's is what it is cut to.
                fused = state.pop(ours)
                classes, deltas = head.conf.out_channels, head.loc.out_channels  # type: ignore[union-attr]
                state[apart["conf"]], state[apart["loc"]] = fused[:classes], fused[classes : classes + deltas]  # type: ignore[misc]
                made += list(apart.values())
    return state, made


def _class_rows(model: SSD, file: WeightFile, labels: Labels | None) -> Rows | None:
    """How the file's classes become the data set's, see `class_rows_of`; None also for a file of the trunk alone."""
    boxes, state = _boxes(model)[0], file.ours.tensors
    if "heads.0.conf.bias" in state:
        return class_rows_of(file, labels, len(state["heads.0.conf.bias"]) // boxes - 1)
    fused = state.get("heads.0.fused.bias")
    # A padded head does not tell its classes; those that stand beside it must fit into it.
    if fused is None or (len(file.classes) + 5) * boxes > len(fused):
        return None
    return class_rows_of(file, labels, len(file.classes))


def _same_heads(model: SSD, saved: Mapping[str, Tensor]) -> bool:
    """Whether each head of the file sees as many channels as the model's; else it is another model's, which is said elsewhere."""
    for level, head in enumerate(model.heads):
        found = [saved.get(f"heads.{level}.{kind}.weight") for kind in ("fused", "conf", "loc")]
        weights = [weight for weight in found if weight is not None]
        biases = sum(f"heads.{level}.{kind}.bias" in saved for kind in ("fused", "conf", "loc"))
        inputs = (head.fused if isinstance(head, FusedHead) else head.conf).in_channels  # type: ignore[union-attr]
        if not weights or len(weights) != biases or any(weight.shape[1:] != (inputs, 3, 3) for weight in weights):
            return False
        if (len(weights) == 1) != (found[0] is not None):  # a fused one alone, or one of either kind
            return False
    return True


def _with_rows(model: SSD, saved: Mapping[str, Tensor], rows: Rows) -> tuple[dict[str, Tensor], list[str]]:
    """Heads of either kind in the model's kind, with the model's classes; -> the state and the names that were made."""
    state, own, made = dict(saved), model.state_dict(), []
    places = with_background(rows) if rows.any else [None] * (len(rows.places) + 1)
    for level, (head, boxes) in enumerate(zip(model.heads, _boxes(model))):
        for part in ("weight", "bias"):
            names = {kind: f"heads.{level}.{kind}.{part}" for kind in ("conf", "loc", "fused")}
            conf, loc = _apart(state, names, boxes * (len(rows.theirs) + 1), boxes * 4)
            mine, _ = _apart(dict(own), names, boxes * len(places), boxes * 4)
            conf = take_rows(mine, conf, places, cells=boxes)
            if isinstance(head, FusedHead):
                state[names["fused"]] = fuse_heads(conf, loc, head.fused.out_channels)
                made.append(names["fused"])
            else:
                state[names["loc"]] = loc
                if rows.any:  # else it stays away from the state, and is new
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

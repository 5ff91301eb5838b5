"""Weights for SSD: of the MLPerf reference, of its trunk, and of our own checkpoints with either kind of head.

Letters: n boxes of a cell   C classes with background
The reference's head channels run over values first (4 or C), boxes of the cell second, and its outputs over boxes first,
cells second; ours run box by box, cell by cell. So a head's output channels are permuted, and nothing else changes.
Source of the names: MLPerf reference SSD (ssd300.py, base_model.py), torchvision's ResNet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from paceline.models.ssd import SSD, FusedHead
from paceline.models.weights import WeightReport, copy_named, read_weights

# Reference name -> ours, for the parts whose tensors stay as they are.
RENAMED = (
    (r"model\.layer1\.0\.", "trunk.conv1."),
    (r"model\.layer1\.1\.", "trunk.bn1."),
    (r"model\.layer1\.4\.", "trunk.layer1."),
    (r"model\.layer1\.5\.", "trunk.layer2."),
    (r"model\.layer2\.0\.", "trunk.layer3."),
    (r"additional_blocks\.(\d+)\.0\.", r"extras.\1.reduce."),
    (r"additional_blocks\.(\d+)\.2\.", r"extras.\1.conv."),
)
HEAD = re.compile(r"(loc|conf)\.(\d+)\.(weight|bias)")
OWN_HEAD = re.compile(r"heads\.(\d+)\.(loc|conf|fused)\.(weight|bias)")


def load_ssd_weights(model: SSD, path: Path) -> WeightReport:
    """Copy a weight file into an initialised `model`, in place, and report every key.

    A file of the trunk, or of a whole classifier, fills the trunk. An SSD's fills all, but for the class heads where it has
    other classes.
    Raises CheckpointError where something else does not fit; the model is then unchanged.
    """
    saved, converted = read_weights(path), []
    if is_reference(saved):
        saved = from_reference(saved)
        converted = [name for name in saved if OWN_HEAD.fullmatch(name)]
    found, beyond = model.trunk.of_file(saved)
    if found:
        saved = {f"trunk.{name}": tensor for name, tensor in found.items()}
    own = model.state_dict()
    if any(".fused." in name for name in own) != any(".fused." in name for name in saved):
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
    return copy_named(model, saved, path, fresh=fresh, converted=converted, allow_unexpected=beyond)


def is_reference(names: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of the MLPerf reference."""
    return "model.layer1.0.weight" in names and "conf.0.weight" in names


def from_reference(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The MLPerf reference's state dict under our names, for separate heads."""
    state = {}
    boxes = {level: saved[f"loc.{level}.bias"].shape[0] // 4 for level in _levels(saved)}
    for name, tensor in saved.items():
        if head := HEAD.fullmatch(name):
            kind, level, part = head[1], int(head[2]), head[3]
            state[f"heads.{level}.{kind}.{part}"] = swap_channels(tensor, tensor.shape[0] // boxes[level])
            continue
        for pattern, ours in RENAMED:
            if re.match(pattern, name):
                name = re.sub(f"^{pattern}", ours, name)
                break
        state[name] = tensor
    return state


def to_reference(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_reference`."""
    theirs = {}
    for name, tensor in state.items():
        if head := OWN_HEAD.fullmatch(name):
            level, kind, part = int(head[1]), head[2], head[3]
            boxes = state[f"heads.{level}.loc.bias"].shape[0] // 4
            theirs[f"{kind}.{level}.{part}"] = swap_channels(tensor, boxes)
            continue
        for pattern, ours in RENAMED:
            plain = re.sub(r"\\\.", ".", pattern).replace(r"(\d+)", r"\1")
            mine = "^" + re.escape(ours).replace(r"\\1", r"(\d+)")
            if re.match(mine, name):
                name = re.sub(mine, plain, name)
                break
        theirs[name] = tensor
    return theirs


def swap_channels(tensor: Tensor, outer: int) -> Tensor:
    """Output channels (outer x inner) in the order (inner x outer).

    tensor  (outer * inner, ...)
    """
    return tensor.unflatten(0, (outer, -1)).transpose(0, 1).flatten(0, 1).contiguous()


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


def _levels(saved: Mapping[str, Tensor]) -> list[int]:
    return sorted(
        int(head[2]) for name in saved if (head := HEAD.fullmatch(name)) and head[1] == "loc" and head[3] == "bias"
    )

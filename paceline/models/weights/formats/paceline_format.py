"""What any form of weights becomes: tensors under our names, and what must be known beside them; and the tools for it.

Our names are torchvision's for ResNets and Mask R-CNN, and models/ssd/model.py's for SSD. Our networks take RGB pixels on ImageNet's
mean and deviation, and have class rows with the background first. Tools: names by a table of patterns, both ways; a stem for our
pixels made of one for others (Caffe's were BGR, 0 to 255 less a mean, and not divided by a deviation).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.config.model_card import METADATA
from paceline.models.layers.common import IMAGENET_STD

Tensors = Mapping[str, Tensor]
Facts = Mapping[str, Any]  # what stands in a file beside its tensors

# What else a trunk can be, as the recipe's fields have it -> what makes it so, for messages.
NEEDS = {
    "stride_in": {"1x1": "the stride of bottlenecks is in the first 1x1 convolution"},
    "padding": {"same": "strided convolutions pad even sides only at the end, as in TensorFlow"},
}
# Notes that such a file may carry, and characters of each.
MAX_NOTES, MAX_NOTE = 20, 400


# What a user may know that a file does not say: among its facts.
COLOURS, KNOWN_COLOURS = "color_order", ("rgb", "bgr")


class WeightFormatError(Exception):
    """Weights of this form cannot be read or written as asked; the text says why, without the file's name."""


class UnknownColorOrder(WeightFormatError):
    """Nothing in a file says in which order of colors its pixels were."""


@dataclass(frozen=True)
class PacelineWeights:
    """Weights under our names."""

    tensors: dict[str, Tensor]
    converted: tuple[str, ...] = ()  # of them, those whose numbers or order are not the file's
    # The network that the numbers are for, where it is not the usual one: {"stride_in": "1x1"}, {"padding": "same"}
    needs: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()  # names of the class rows, without the background; () = unknown
    notes: tuple[str, ...] = ()  # what a user should know, a line each
    left_out: tuple[str, ...] = ()  # names in the file that are no weights: counters, anchors, an optimizer's state
    lacks: str = ""  # of a network known by name that none of ours is: what it is, and what of it fits
    certain: bool = False  # whether a file of ours says these classes; else so many rows were published with them


def to_metadata(ours: PacelineWeights) -> dict[str, str]:
    """What our own .safetensors carries beside the tensors."""
    known = {
        "classes": list(ours.classes),
        "published": bool(ours.classes) and not ours.certain,
        "needs": dict(ours.needs),
        "notes": list(ours.notes),
    }
    return {"format": "pt", METADATA: json.dumps({key: value for key, value in known.items() if value})}


def from_metadata(tensors: dict[str, Tensor], facts: Facts) -> PacelineWeights:
    """The tensors with what our own file carries beside them; nothing for others'. Raises WeightFormatError where ours is garbled."""
    try:
        known = json.loads(facts.get(METADATA, "{}"))
        classes, needs, notes = known.get("classes", []), known.get("needs", {}), known.get("notes", [])
        if not all(isinstance(name, str) for name in classes) or not all(
            needs[field] in NEEDS.get(field, ()) for field in needs
        ):
            raise ValueError("invalid classes or needs")
        if len(notes) > MAX_NOTES or not all(note.isprintable() and len(note) <= MAX_NOTE for note in notes):
            raise ValueError("invalid notes")
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise WeightFormatError("its metadata of paceline is damaged. Convert the original file again") from None
    certain = bool(classes) and not known.get("published", False)
    return PacelineWeights(tensors, needs=dict(needs), classes=tuple(classes), certain=certain, notes=tuple(notes))


def require_no_needs(ours: PacelineWeights, whose: str) -> None:
    """Raises WeightFormatError where the numbers are for a network that somebody does not have."""
    for name, value in ours.needs.items():
        raise WeightFormatError(f"{whose} does not support this network: {NEEDS[name][value]}. The outputs would differ")


# (a regular expression of plain text, groups and escaped dots; what it becomes, with \1 for its first group)
Rules = Sequence[tuple[str, str]]

GROUP = re.compile(r"\([^()]*\)")


def rename_tensor(name: str, rules: Rules) -> str | None:
    """The first rule whose pattern is the whole name decides; None where there is none."""
    for pattern, ours in rules:
        if result := re.fullmatch(pattern, name):
            return result.expand(ours)
    return None


def invert_rules(rules: Rules) -> list[tuple[str, str]]:
    """Rules for the way back: groups of both sides stand in one order."""
    back = []
    for pattern, ours in rules:
        groups = GROUP.findall(pattern)
        pieces = [re.escape(piece) for piece in re.split(r"\\\d", ours)]
        mine = "".join(piece + group for piece, group in zip(pieces, [*groups, ""], strict=True))
        plain = re.split(GROUP, pattern.replace(r"\.", "."))
        theirs = "".join(piece + f"\\{number}" for number, piece in enumerate(plain[:-1], start=1)) + plain[-1]
        back.append((mine, theirs))
    return back


CAFFE_NOTE = "its pixels were BGR from 0 to 255 minus a mean, so the stem was converted to RGB and scaled by ImageNet's std"
# ImageNet's deviation of R, G and B in 0..255.
OUR_STD = tuple(255 * std for std in IMAGENET_STD)


def from_pixels(stem: Tensor, std: Sequence[float], *, bgr: bool) -> Tensor:
    """(O, 3, h, w) for channels in 0..255 less a mean, divided by `std` in their own order -> the same response to our R, G and B.

    Exact, borders included, where the mean that was taken off is ImageNet's: a padded zero is then the mean in both.
    """
    scale = (
        stem.new_tensor(OUR_STD) / stem.new_tensor(std).flip(0) if bgr else stem.new_tensor(OUR_STD) / stem.new_tensor(std)
    )
    return (stem.flip(1) if bgr else stem) * scale.view(1, 3, 1, 1)


def from_caffe(stem: Tensor) -> Tensor:
    """`from_pixels` of Caffe's: B, G and R, not divided."""
    return from_pixels(stem, (1.0, 1.0, 1.0), bgr=True)


TORCHVISION = "torchvision"  # the author of files whose trunk is torchvision's
TURNED = "the stem was converted to RGB"


@dataclass(frozen=True)
class PreprocessingStyle:
    """Pixels and strides of a detectron2 file: MSRA's (BGR, undivided, 1x1 strides), torchvision's, or others'."""

    bgr: bool
    std: tuple[float, ...]  # of each channel in 0..255, in its own order
    msra: bool  # whether a bottleneck's first convolution strides
    notes: tuple[str, ...] = ()


def detect_preprocessing(saved: Tensors, state: Tensors, facts: Facts) -> PreprocessingStyle:
    """By the author, else by pixel_std and pixel_mean, which older files keep, else by the norms of the trunk.

    Raises UnknownColorOrder where none of them tells, and `facts` does not say what the user knows of it.
    """
    if facts.get("__author__") == TORCHVISION:
        return PreprocessingStyle(False, OUR_STD, False)
    mean, std = (
        [float(part) for part in saved.get(name, torch.zeros(0)).flatten()] for name in ("pixel_mean", "pixel_std")
    )
    if len(std) == 3:
        if not all(0 < part < math.inf for part in std):
            raise WeightFormatError(f"its pixel_std {std} is not a standard deviation")
        if std[0] <= 2:
            return PreprocessingStyle(True, tuple(std), True, (CAFFE_NOTE,))
        if _is_bgr((mean, std), facts):
            rounded = " ".join(f"{part:.6g}" for part in std)
            return PreprocessingStyle(True, tuple(std), False, (f"its pixels were BGR, divided by {rounded}; {TURNED}",))
        return PreprocessingStyle(False, tuple(std), False)
    body = [tensor for name, tensor in state.items() if name.endswith(("running_mean", "running_var"))]
    # Caffe2's norms are a scale and a shift: mean 0, and one variance for all channels.
    if any(bool((tensor != tensor.flatten()[0]).any()) for tensor in body if tensor.numel()):
        note = "it has no pixel_std, and its norms have statistics, unlike MSRA's, so ImageNet's std is used"
        if _is_bgr((mean,), facts):
            return PreprocessingStyle(True, OUR_STD[::-1], False, (f"{note}, BGR", TURNED))
        return PreprocessingStyle(False, OUR_STD, False, (f"{note}, RGB",))
    note = "it has no pixel_std, and its norms are like Caffe2's, so MSRA's preprocessing is used"
    return PreprocessingStyle(True, (1.0, 1.0, 1.0), True, (note, CAFFE_NOTE))


def _is_bgr(rows: Sequence[Sequence[float]], facts: Facts) -> bool:
    """By means and deviations, of which red has ImageNet's largest; else by what was asked. Raises UnknownColorOrder."""
    told = [row[0] - row[2] for row in rows if len(row) == 3 and row[0] != row[2]]
    if told:
        return min(told) <= 0
    if facts.get(COLOURS) not in KNOWN_COLOURS:
        raise UnknownColorOrder("it is not known whether its pixels are RGB or BGR, which changes the outputs")
    return facts[COLOURS] == "bgr"

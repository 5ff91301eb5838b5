"""What any form of weights becomes: tensors under our names, and what must be known beside them.

Our names are torchvision's for ResNets and Mask R-CNN, and models/ssd.py's for SSD. Our networks take RGB pixels on ImageNet's
mean and deviation, and have class rows with the background first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tensors = Mapping[str, Tensor]
Facts = Mapping[str, Any]  # what stands in a file beside its tensors

# What else a trunk can be, as the recipe's fields have it -> what makes it so, for messages.
NEEDS = {
    "stride_in": {"1x1": "its bottlenecks stride in the first 1x1 convolution"},
    "padding": {"end": "TensorFlow pads even sides at their end alone where it strides"},
}
# Key of a safetensors file's metadata under which ours are.
METADATA = "paceline"
# Notes that such a file may carry, and characters of each.
MOST_NOTES, MOST_NOTE = 20, 400


# What a user may know that a file does not say: among its facts.
COLOURS, KNOWN_COLOURS = "colours", ("rgb", "bgr")


class FormError(Exception):
    """Weights of this form cannot be read or written as asked; the text says why, without the file's name."""


class UnknownColours(FormError):
    """Nothing in a file says in which order of colours its pixels were."""


@dataclass(frozen=True)
class Ours:
    """Weights under our names."""

    tensors: dict[str, Tensor]
    converted: tuple[str, ...] = ()  # of them, those whose numbers or order are not the file's
    # The network that the numbers are for, where it is not the usual one: {"stride_in": "1x1"}, {"padding": "end"}
    needs: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()  # names of the class rows, without the background; () = unknown
    notes: tuple[str, ...] = ()  # what a user should know, a line each
    left_out: tuple[str, ...] = ()  # names in the file that are no weights: counters, anchors, an optimiser's state
    lacks: str = ""  # of a network known by name that none of ours is: what it is, and what of it fits
    certain: bool = False  # whether a file of ours says these classes; else so many rows were published with them


def to_metadata(ours: Ours) -> dict[str, str]:
    """What our own .safetensors carries beside the tensors."""
    known = {
        "classes": list(ours.classes),
        "published": bool(ours.classes) and not ours.certain,
        "needs": dict(ours.needs),
        "notes": list(ours.notes),
    }
    return {"format": "pt", METADATA: json.dumps({key: value for key, value in known.items() if value})}


def of_metadata(tensors: dict[str, Tensor], facts: Facts) -> Ours:
    """The tensors with what our own file carries beside them; nothing for others'. Raises FormError where ours is garbled."""
    try:
        known = json.loads(facts.get(METADATA, "{}"))
        classes, needs, notes = known.get("classes", []), known.get("needs", {}), known.get("notes", [])
        if not all(isinstance(name, str) for name in classes) or not all(
            needs[field] in NEEDS.get(field, ()) for field in needs
        ):
            raise ValueError("of another kind")
        if len(notes) > MOST_NOTES or not all(note.isprintable() and len(note) <= MOST_NOTE for note in notes):
            raise ValueError("no notes of ours")
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise FormError("its metadata of paceline's is damaged; convert the original again") from None
    certain = bool(classes) and not known.get("published", False)
    return Ours(tensors, needs=dict(needs), classes=tuple(classes), certain=certain, notes=tuple(notes))


def refuse_needs(ours: Ours, whose: str) -> None:
    """Raises FormError where the numbers are for a network that somebody does not have."""
    for name, value in ours.needs.items():
        raise FormError(
            f"{whose} has no such network: {NEEDS[name][value]}, and its outputs would not be these weights'"
        )

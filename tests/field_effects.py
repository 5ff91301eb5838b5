"""What a recipe's fields do to what people get: one field is changed, and what it is for must come out otherwise."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from paceline.config.recipe import Recipe, override

Observe = Callable[[Recipe], Any]


class Row(NamedTuple):
    """One field, another value, what must show it, and what else is to be set on both sides."""

    field: str
    value: Any
    shown: Observe
    beside: Mapping[str, Any] = {}


def hashed(*seen: Any) -> str:
    """Of everything that was observed, bit by bit."""
    total = hashlib.sha256()
    for part in seen:
        if isinstance(part, Tensor):
            part = part.detach().numpy()
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype} {part.shape}".encode())
            part = part.tobytes()
        total.update(part if isinstance(part, bytes) else repr(part).encode())
    return total.hexdigest()


def both(row: Row, recipe: Recipe) -> tuple[Any, Any]:
    """What is seen without the change and with it."""
    before = override(recipe, dict(row.beside))
    return seen(row.shown, before), row.shown(override(before, {row.field: row.value}))


@cache
def seen(shown: Observe, recipe: Recipe) -> Any:
    """Once for all rows that begin with that recipe."""
    return shown(recipe)


def fields_of(node: Any, path: str) -> Iterator[str]:
    """Dotted names of all fields of a part of a recipe."""
    for entry in dataclasses.fields(node):
        value, name = getattr(node, entry.name), f"{path}.{entry.name}"
        if dataclasses.is_dataclass(value):
            yield from fields_of(value, name)
        else:
            yield name


class Said(nn.Module):
    """A network that has said what it says."""

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, _: Tensor) -> tuple[Tensor, ...]:
        return self.outputs


def weights_of(model: nn.Module) -> list[Any]:
    """Names, values and whether they train; buffers too."""
    trained = [(name, weight.requires_grad) for name, weight in model.named_parameters()]
    return [trained, *(part for pair in model.state_dict().items() for part in pair)]

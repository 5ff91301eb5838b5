"""What a recipe's fields do to what people get: one field is changed, and what it is for must come out otherwise."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from instance_sets import make_instances
from torch import Tensor, nn

from paceline.config.recipe import Recipe, override
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.workload import WorkloadSpec

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


class Pictures(NamedTuple):
    """What the rows look at."""

    manifest: Manifest
    photo: bytes  # one of validation


PICTURES: list[Pictures] = []  # those of `pictures_drawn`, while it is open


@contextmanager
def pictures_drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Six photos of 60 x 80 pixels with 1 to 3 objects, one empty, one with a crowd alone."""
    root = make_instances(tmp_path_factory.mktemp("photos") / "set", train=6, val=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        manifest = Manifest.load(prepare_if_needed(root, kind="boxes"))
        PICTURES.append(Pictures(manifest, (root / "val2017" / "000.jpg").read_bytes()))
        yield
        PICTURES.pop()


def task_on(workload: WorkloadSpec, recipe: Recipe) -> Any:
    """The task of a recipe on those pictures."""
    return workload.open(recipe, PICTURES[-1].manifest)


def photo() -> bytes:
    """One of those photos that are evaluated, of 60 x 80 pixels."""
    return PICTURES[-1].photo


def wanted_by(task: Any) -> str:
    """What of the pictures is learned from."""
    return hashed(task.data.wanted, task.data.train_numbers, task.data.max_objects)

"""Loaders without photos: samples that are made up from their key, and records in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from paceline.data.index.records import RecordReader
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header


class InMemory(RecordReader):
    """Encoded photos, named by `names` or by number; a single one stands for every number."""

    def __init__(self, photos: Sequence[bytes], names: Sequence[str] = ()) -> None:
        self.photos, self.names = photos, names

    def __len__(self) -> int:
        return len(self.photos)

    def name(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else f"photo {i}"

    def read(self, i: int) -> bytes:
        return self.photos[i if len(self.photos) > 1 else 0]


def tiny_photo() -> bytes:
    """A JPEG of four pixels."""
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "JPEG")
    return file.getvalue()


def drawn(epoch: int, index: int, header: Header, name: str, label: Any = None) -> SampleSpec:
    """A draw whose window's corner is the sample's key."""
    return SampleSpec(name, header, CropWindow(epoch, index, 2, 2, 2, 2), label)


def made_up(
    paint: Callable[[int, int, np.ndarray], Any],
    label: Callable[[int], Any] = lambda index: index % 10,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """A loader's arguments for samples that `paint(epoch, index, out)` makes, labeled by their number."""
    return {
        "records": InMemory([tiny_photo()], names),
        "draw": lambda epoch, index, header, name: drawn(epoch, index, header, name, label(index)),
        "render": lambda data, draw, out: paint(draw.window.top, draw.window.left, out),
    }

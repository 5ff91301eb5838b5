"""Whether other libraries see a photo as this package does: Pillow as most loaders call it, and torchvision's own decoders."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from paceline.input.picture import open_rgb

# Levels of 255 between means of GRID x GRID cells; another upsampling of colour makes less than 2.
GRID, APART = 32, 8.0


def decoded_apart(data: bytes) -> str:
    """What an encoded photo is elsewhere, in words; "" where it is alike, or nobody else can read it.

    Raises whatever Pillow's readers raise on damaged bytes.
    """
    ours = np.asarray(open_rgb(data, "ignore"), np.float32)
    notes = []
    for name, theirs in _elsewhere(data):
        if ours.shape != theirs.shape:
            notes.append(
                f"{theirs.shape[1]} x {theirs.shape[0]} pixels, not {ours.shape[1]} x {ours.shape[0]}, by {name}"
            )
        elif (far := float(np.abs(_cells(ours) - _cells(theirs)).max())) > APART:
            notes.append(f"up to {far:.0f} of 255 levels otherwise by {name}")
    return ", ".join(notes)


def _elsewhere(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """(H, W, 3) float32, of 0..255, by each other way that has no trouble with it."""
    from torch import frombuffer, uint8
    from torchvision.io import ImageReadMode, decode_image

    with Image.open(io.BytesIO(data)) as image:
        image.info.pop("transparency", None)  # Pillow warns about a palette's, which plays no part in RGB
        yield "Pillow's convert('RGB')", np.asarray(image.convert("RGB"), np.float32)
    try:
        photo = decode_image(frombuffer(bytearray(data), dtype=uint8), ImageReadMode.RGB)
    except RuntimeError:  # of a format that it has no reader for; a damaged one Pillow has refused
        return
    yield "torchvision", photo.permute(1, 2, 0).numpy().astype(np.float32) / (1.0 if photo.dtype == uint8 else 257.0)


def _cells(photo: np.ndarray) -> np.ndarray:
    """(GRID, GRID, 3) means."""
    parts = [Image.fromarray(photo[:, :, k]).resize((GRID, GRID), Image.Resampling.BOX) for k in range(3)]
    return np.stack([np.asarray(part) for part in parts], axis=2)

"""Whether other ways to decode a photo give the same pixels: Pillow as most loaders call it, and libjpeg-turbo, as training does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import simplejpeg
from PIL import Image

from paceline.input.picture import open_rgb
from paceline.store.header import open_picture

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
    with open_picture(data) as image:
        image.info.pop("transparency", None)  # Pillow warns about a palette's, which plays no part in RGB
        jpeg = image.format == "JPEG" and image.mode in ("L", "RGB")
        yield "Pillow's convert('RGB')", np.asarray(image.convert("RGB"), np.float32)
    if jpeg:
        try:
            yield "libjpeg-turbo", simplejpeg.decode_jpeg(data).astype(np.float32)
        except ValueError:  # it refuses what Pillow reads to the end
            yield "libjpeg-turbo", np.zeros((0, 0, 3), np.float32)


def _cells(photo: np.ndarray) -> np.ndarray:
    """(GRID, GRID, 3) means."""
    parts = [Image.fromarray(photo[:, :, k]).resize((GRID, GRID), Image.Resampling.BOX) for k in range(3)]
    return np.stack([np.asarray(part) for part in parts], axis=2)

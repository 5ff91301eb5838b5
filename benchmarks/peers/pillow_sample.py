"""One sample for loaders that bring no transforms: libjpeg-turbo through simplejpeg, resized by Pillow as torchvision does."""

from __future__ import annotations

import random

import numpy as np
import simplejpeg
from peer_protocol import crop  # pyright: ignore[reportMissingImports]
from PIL import Image


def sample(encoded: bytes, size: int, draw: random.Random) -> np.ndarray:
    """(size, size, 3) uint8."""
    pixels = simplejpeg.decode_jpeg(encoded)
    top, left, height, width = crop(pixels.shape[0], pixels.shape[1], draw)
    resized = Image.fromarray(pixels[top : top + height, left : left + width]).resize(
        (size, size), Image.Resampling.BILINEAR
    )
    if draw.random() < 0.5:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(resized)

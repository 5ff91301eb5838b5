"""Which names are photos'."""

from __future__ import annotations

import os

# What torchvision's ImageFolder takes for an image, so both find the same files in the same order.
IMAGE_SUFFIXES = frozenset({b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp"})


def is_image_name(name: bytes) -> bool:
    """True for a visible name with an image suffix, in either case. `name` is without folders."""
    return not name.startswith(b".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES

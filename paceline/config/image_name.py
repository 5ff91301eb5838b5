"""Which names are photos', and which format stands behind each: the one list of both."""

from __future__ import annotations

import os

# Pillow's words. "MPO", a JPEG followed by further ones (stereo, burst, depth), is read as a JPEG.
SUFFIX_FORMATS = {
    b".jpg": "JPEG",
    b".jpeg": "JPEG",
    b".png": "PNG",
    b".ppm": "PPM",
    b".pgm": "PPM",
    b".bmp": "BMP",
    b".tif": "TIFF",
    b".tiff": "TIFF",
    b".webp": "WEBP",
}
# What torchvision's ImageFolder takes for an image, so both find the same files in the same order.
IMAGE_SUFFIXES = frozenset(SUFFIX_FORMATS)
FORMATS = tuple(dict.fromkeys(SUFFIX_FORMATS.values()))
# What answers are given on beside those of data sets. None of these formats is read by another program.
PREDICTED_SUFFIX_FORMATS = {**SUFFIX_FORMATS, b".gif": "GIF", b".avif": "AVIF"}
PREDICTED_FORMATS = tuple(dict.fromkeys(PREDICTED_SUFFIX_FORMATS.values()))


def is_image_name(name: bytes) -> bool:
    """True for a visible name with an image suffix, in either case. `name` is without folders."""
    return not name.startswith(b".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES

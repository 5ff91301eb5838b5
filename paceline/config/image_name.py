"""Which names are photos', and which format stands behind each: the one list of both."""

from __future__ import annotations

import os
from collections.abc import Mapping

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


# Files that are left out because of their names' suffix, in words for people.


# Pictures, by a suffix that no reader here takes. A phone writes the first two; some name a JPEG so, or .jfif.
OTHER_PICTURES = frozenset(
    f".{suffix}"
    for suffix in (
        *("heic", "heif", "avif", "gif", "jfif", "jpe", "jp2", "j2k", "jxl", "jxr", "psd", "tga", "ico", "svg", "eps"),
        *("dng", "raw", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2"),  # of cameras
    )
)
NAMED, LONGEST = 8, 20


def suffix_of(name: bytes) -> str:
    """The suffix of a file's name, as `by_suffix` counts it."""
    return os.fsdecode(os.path.splitext(name)[1].lower())[:LONGEST]


def by_suffix(counts: Mapping[str, int]) -> str:
    """What was left out: '7 files: 6 .heic, 1 without suffix; .heic is not read: ...'; "" where nothing was.

    counts  of each suffix, in small letters with its dot, how many files; "" for none
    """
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if not ordered:
        return ""
    named = [f"{count:,} {suffix or 'without suffix'}" for suffix, count in ordered[:NAMED]]
    if more := sum(count for _, count in ordered[NAMED:]):
        named.append(f"{more:,} of other suffixes")
    total = sum(counts.values())
    text = f"{total:,} file{'' if total == 1 else 's'}: {', '.join(named)}"
    pictures = [suffix for suffix, _ in ordered if suffix in OTHER_PICTURES]
    if not pictures:
        return text
    are = "is" if len(pictures) == 1 else "are"
    return f"{text}; {', '.join(pictures)} {are} not read: convert these to JPEG, or name .jpg what is JPEG inside"

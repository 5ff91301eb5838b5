"""One photo of a packed set: its name, and its bytes where it is written anew (smaller, or of another JPEG quality).

Name: CLASS/photo.jpg, so that unpacking or indexing it gives the classes as folders. WebDataset's key ends at the first dot of a
file's name, so other dots become "_"; a .lst has a name a line between tabs. A photo that is written anew is a JPEG and named
so. Of names that are then the same, the later ones get their record's number.

Bytes: decoded as training decodes it (data/transforms/image_io.py: 16 bits a value to 8, palettes and CMYK to RGB; gray stays
gray), resized by Lanczos' filter with antialiasing to torchvision's sizes, and written as a baseline JPEG with Pillow's usual
subsampling. The pixels stay in the stored frame and keep their EXIF orientation, so `--input.exif` means the same before and after.
Everything else that came with the photo (thumbnail, place, color profile) is left out.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from paceline._utils.errors import DataError
from paceline._utils.names import IMAGE_SUFFIXES
from paceline.data.index.index import Index
from paceline.data.index.manifest import FILES, Manifest
from paceline.data.prepare.verify_image import GRAY_MODES
from paceline.data.transforms.exif import UPRIGHT, read_orientation
from paceline.data.transforms.image_io import open_image, to_rgb

_ORIENTATION = 0x0112
_JPEG = (b".jpg", b".jpeg")
_BREAKS = bytes.maketrans(b"\t\n\r\0", b"____")


class EncodedImage(NamedTuple):
    """A photo as it is packed; sizes in pixels of the stored frame."""

    data: bytes
    height: int
    width: int


def smaller_size(height: int, width: int, short: int) -> tuple[int, int]:
    """-> (height, width) with the shorter side `short`, the longer one cut to whole pixels as torchvision's Resize does.

    The same where the photo is no larger, or `short` is 0.
    """
    if not short or min(height, width) <= short:
        return height, width
    longer = int(short * max(height, width) / min(height, width))
    return (short, longer) if height <= width else (longer, short)


def reencode_record(index: Index, row: int, short: int, quality: int) -> EncodedImage:
    """A record of a data set as `encode` makes it. Raises DataError, naming it, where it cannot be read or decoded."""
    data = index.read(row)
    try:
        return encode(data, short, quality)
    except (
        Exception
    ) as error:  # as in data/prepare/verify_image.py: Pillow's readers raise whatever a damaged file leads them into
        raise DataError(f"{index.name(row)}: cannot be decoded ({error}). {index.records.places.remedy}") from None


def encode(data: bytes, short: int, quality: int) -> EncodedImage:
    """The photo as a JPEG, its shorter side at most `short` (0: its size). Raises whatever Pillow's readers raise."""
    orientation = read_orientation(data)
    with open_image(data) as opened:
        if opened.format == "TIFF":
            orientation = UPRIGHT  # Pillow turned it as it read it
        gray = opened.mode in GRAY_MODES
        picture = to_rgb(opened)
    if gray:
        picture = picture.convert("L")
    height, width = smaller_size(picture.height, picture.width, short)
    if (height, width) != (picture.height, picture.width):
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    exif = Image.Exif()
    if orientation != UPRIGHT:
        exif[_ORIENTATION] = orientation
    picture.save(out, "JPEG", quality=quality, **({"exif": exif.tobytes()} if orientation != UPRIGHT else {}))
    return EncodedImage(out.getvalue(), height, width)


def class_folders(classes: Sequence[str]) -> list[bytes]:
    """K folder names: the classes' own, or their numbers where a class's name is no folder's."""
    return [os.fsencode(name) if _is_folder(os.fsencode(name)) else b"%04d" % k for k, name in enumerate(classes)]


def packed_names(manifest: Manifest, index: Index, form: str, anew: np.ndarray) -> list[bytes]:
    """N names, each once.

    form  of the pack: "webdataset", "recordio" or "tfrecord"
    anew  (N,) bool, photos that are written anew
    """
    split = manifest.splits[index.split]
    if split.boxes is None:
        folders = class_folders(manifest.classes)
        own = (folders[label] + b"/" + os.path.basename(index.relative_name(i)) for i, label in enumerate(index.labels))
    else:
        own = _below(index, os.fsencode(split.folder), split.records != FILES)
    names: list[bytes] = []
    seen: set[bytes] = set()
    for i, path in enumerate(own):
        stem, suffix = _fitting(path, form, bool(anew[i]))
        of_key = b"" if form == "webdataset" else suffix  # what of the suffix keeps two names apart
        if stem + of_key in seen:
            stem += b"-%d" % i
            while stem + of_key in seen:
                stem += b"_"
        seen.add(stem + of_key)
        names.append(stem + suffix)
    return names


def _is_folder(name: bytes) -> bool:
    plain = name == name.strip() == name.translate(_BREAKS)
    return bool(name.strip(b".")) and b"/" not in name and plain and len(name) < 256


def _below(index: Index, folder: bytes, contained: bool) -> Iterator[bytes]:
    """Paths below the split's folder of photos."""
    prefixes = [os.path.normpath(folder) + b"/", *([index.split.encode() + b"/"] if contained else [])]
    for i in range(len(index)):
        name = index.relative_name(i)
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        yield b"/".join(part for part in name.split(b"/") if part not in (b"", b".", b".."))


def _fitting(path: bytes, form: str, anew: bool) -> tuple[bytes, bytes]:
    """-> the path less its suffix, and the suffix, as the form can store them."""
    folder, slash, name = path.translate(_BREAKS).rpartition(b"/")
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in IMAGE_SUFFIXES:
        stem, suffix = name, b".jpg"
    if anew and suffix.lower() not in _JPEG:
        suffix = b".jpg"
    stem = stem.strip() or b"photo"
    if form == "webdataset":
        stem = stem.replace(b".", b"_")
    return (folder + slash).lstrip() + stem, suffix

"""Photos that are nearly equal: re-encoded, resized, or mirrored copies, whatever their bytes.

Each photo becomes 32 x 32 gray pixels of mean 0 and norm 1; two are near copies where the product of them, or of one and the other's
mirror image, is SAME or more. Measured on five small sets (results/lint): copies at 0.7 of the side and JPEG quality 50 have
0.995 and more, and of different photos none above 0.94. Crops are not found: 95 percent of a photo has 0.67 to 0.91.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from paceline._utils.platform import count_cpus
from paceline.data.index.index import Index
from paceline.data.transforms.image_io import open_image, open_rgb
from paceline.data.workers.crew import map_ordered

SIDE, SAME = 32, 0.97
# Each is compared with each: 60,000 take minutes.
MAX_PHOTOS = 60_000
AHEAD = 256  # photos that workers may have begun
BLOCK = 512  # photos compared with all at once: some 250 MiB where there are the most


class DuplicatePair(NamedTuple):
    """Two photos, the first of the first split or earlier in its own."""

    first: tuple[str, int]  # split, row
    second: tuple[str, int]
    alike: float  # SAME to 1


class NearDuplicates(NamedTuple):
    """What was found."""

    pairs: list[DuplicatePair]  # the most alike first
    damaged: list[tuple[str, int]]  # photos that cannot be decoded: split, row
    apart: list[tuple[tuple[str, int], str]]  # photos that another library decodes otherwise, and by how much


def find_near_duplicates(splits: Mapping[str, Index]) -> NearDuplicates | None:
    """None for more than MAX_PHOTOS photos.

    splits  in the order in which photos count as first
    Raises DataError for a photo that is gone or has changed since it was indexed.
    """
    indices = [(name, row) for name, index in splits.items() for row in range(len(index))]
    if len(indices) > MAX_PHOTOS:
        return None

    processes = all(index.records.portable for index in splits.values())
    seen = map_ordered(indices, partial(_seen_in, splits), size=count_cpus(), ahead=AHEAD, processes=processes)
    read = dict(zip(indices, seen))
    damaged = [position for position, photo in read.items() if photo is None]
    apart = [(position, photo[1]) for position, photo in read.items() if photo and photo[1]]
    indices = [position for position, photo in read.items() if photo is not None]
    photos = np.array([photo[0] for photo in read.values() if photo], np.float32).reshape(-1, SIDE, SIDE)
    flat, mirrored = (some.reshape(len(photos), SIDE * SIDE) for some in (photos, photos[:, :, ::-1]))
    pairs = []
    for first in range(0, len(flat), BLOCK):
        some = flat[first : first + BLOCK]
        alike = np.maximum(some @ flat[first:].T, some @ mirrored[first:].T)
        for one, other in zip(*np.nonzero(alike >= SAME)):
            if other > one:
                pairs.append(
                    DuplicatePair(indices[first + one], indices[first + other], float(min(1.0, alike[one, other])))
                )
    return NearDuplicates(sorted(pairs, key=lambda pair: -pair.alike), damaged, apart)


def _seen_in(splits: Mapping[str, Index], location: tuple[str, int]) -> tuple[np.ndarray, str] | None:
    return _seen(splits[location[0]].read(location[1]))


def _seen(data: bytes) -> tuple[np.ndarray, str] | None:
    """-> (SIDE, SIDE) float32 of mean 0 and norm 1, zeros for one gray, and `describe_decoder_difference`; None
    where it cannot be decoded."""
    try:
        photo, apart = open_rgb(data, "apply", least=(2 * SIDE, 2 * SIDE)), describe_decoder_difference(data)
    except Exception:  # Pillow's format plugins raise many types on damaged bytes; the caller names the photo
        return None
    pixels = np.asarray(photo.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    pixels -= pixels.mean()
    norm = float(np.linalg.norm(pixels))
    return (pixels / norm if norm > SIDE else np.zeros_like(pixels)), apart  # a deviation below one gray says nothing


# Levels of 255 between means of GRID x GRID cells; another upsampling of color makes less than 2.
GRID, APART = 32, 8.0


def describe_decoder_difference(data: bytes) -> str:
    """What an encoded photo is elsewhere, in words; "" where it is alike, or nobody else can read it.

    Raises whatever Pillow's readers raise on damaged bytes.
    """
    ours = np.asarray(open_rgb(data, "ignore"), np.float32)
    notes = []
    for name, theirs in _elsewhere(data):
        if ours.shape != theirs.shape:
            notes.append(f"{name} decodes {theirs.shape[1]} x {theirs.shape[0]}, not {ours.shape[1]} x {ours.shape[0]}")
        elif (far := float(np.abs(_cells(ours) - _cells(theirs)).max())) > APART:
            notes.append(f"{name} differs by up to {far:.0f} of 255 gray levels")
    return ", ".join(notes)


def _elsewhere(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """(H, W, 3) float32, of 0..255, by each other way that has no trouble with it."""
    with open_image(data) as image:
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

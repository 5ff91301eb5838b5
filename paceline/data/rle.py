"""Tables with several rows for each image, and masks as compressed run lengths: COCO's strings, many of them in two arrays.

Letters: n masks   R runs of all masks   T characters of all masks   H, W pixels of a photo
Rows of image i are starts[i] to starts[i + 1] - 1.
Runs count a photo's pixels column by column, background first; the first run may be 0, no other is. In the string each run is a
number of 5 bits a character, lowest first, from character 48 on; bit 5 marks that more follow; the sign is the last character's
bit 4; from the fourth run on, it is the difference to the run two before.
Source: Lin et al. 2014; the form of the string: rleToString in pycocotools' maskApi.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

# One mask of a whole photo: (h, w) bool or 0/1, or COCO's {"size": [h, w], "counts": compressed, str or bytes}.
Mask: TypeAlias = "np.ndarray | dict[str, Any]"


def concatenated_ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers starts[i] .. stops[i] - 1 of every i, one after the other, and the i of each; no stop lies before its start."""
    counts = stops - starts
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(owners)) + np.repeat(stops - np.cumsum(counts), counts), owners


def gather_rows(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows of these images, image after image: starts (N+1,) int64, numbers (n,) int64 in 0..N-1."""
    return concatenated_ranges(starts[numbers], starts[numbers + 1])[0]


# A string does not know its photo; hotcoco wants a size that holds its runs, and no photo has a longer side.
ANY_SIZE = [2**16 - 1, 2**16 - 1]


@dataclass(frozen=True)
class RLE:
    """n masks, each a compressed string, end to end, without the photo's height and width."""

    text: np.ndarray  # (T,) uint8, ASCII
    starts: np.ndarray  # (n+1,) int64 into text

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> RLE:
        """From one string a mask; n may be 0."""
        starts = np.zeros(len(strings) + 1, np.int64)
        np.cumsum([len(string) for string in strings], out=starts[1:])
        return cls(np.frombuffer(b"".join(strings), np.uint8), starts)

    @classmethod
    def join(cls, parts: Sequence[RLE]) -> RLE:
        """All masks of the parts, in their order."""
        lengths = [np.diff(part.starts) for part in parts]
        starts = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
        return cls(np.concatenate([np.zeros(0, np.uint8), *(part.text for part in parts)]), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> bytes:
        """The string of one mask, 0 <= row < n."""
        return self.text[self.starts[row] : self.starts[row + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        text, bounds = self.text.tobytes(), self.starts.tolist()
        return (text[first:last] for first, last in pairwise(bounds))

    def take(self, rows: np.ndarray) -> RLE:
        """These masks, in this order: row j of the result is row rows[j]. A mask may be taken several times."""
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate([np.zeros(1, np.int64), lengths]).cumsum()
        return RLE(self.text[gather_rows(self.starts, rows)], starts)


def compress(runs: np.ndarray, starts: np.ndarray) -> RLE:
    """Runs (R,) int64, not negative, of n masks end to end, and their starts (n+1,) int64, to strings."""
    from hotcoco.mask import rle_to_string

    of_each = (runs[first:last].tolist() for first, last in pairwise(starts.tolist()))
    return RLE.of([rle_to_string({"size": ANY_SIZE, "counts": counts}).encode() for counts in of_each])


def decompress(masks: RLE) -> tuple[np.ndarray, np.ndarray]:
    """Strings that `compress` or COCO's tools wrote, to runs (R,) int64 and their starts (n+1,) int64."""
    parts = masks.text.astype(np.int64) - 48
    ends = np.flatnonzero(parts & 32 == 0)
    begins = np.concatenate([np.zeros(1, np.int64), ends + 1])[:-1]
    digits = ends - begins + 1
    starts = np.searchsorted(ends, masks.starts)
    if not len(parts):
        return parts, starts
    location = np.arange(len(parts)) - np.repeat(begins, digits)
    numbers = np.add.reduceat((parts & 31) << 5 * location, begins)
    numbers -= np.where(parts[ends] & 16, np.int64(1) << 5 * digits, 0)
    # Two chains of differences in each mask: runs 1, 3, 5, ... and 2, 4, 6, ...; run 0 stands alone.
    row = np.repeat(np.arange(len(masks)), np.diff(starts))
    run = np.arange(len(numbers)) - starts[row]
    for parity in (1, 2):
        chain = np.flatnonzero((run > 0) & (run % 2 == parity % 2))
        total = np.cumsum(numbers[chain])
        # The sum of the chains of all masks before.
        first = np.flatnonzero(run[chain] == parity)
        before = np.zeros(len(masks), np.int64)
        before[row[chain[first]]] = total[first] - numbers[chain[first]]
        numbers[chain] = total - before[row[chain]]
    return numbers, starts


def mask_areas(masks: RLE) -> np.ndarray:
    """(n,) int64: pixels of each mask."""
    from hotcoco.mask import area

    return np.fromiter((area({"size": ANY_SIZE, "counts": text}) for text in masks), np.int64, len(masks))


def decode_mask(text: bytes, height: int, width: int) -> np.ndarray:
    """One mask as (H, W) uint8, 0 or 1. Raises ValueError where the string does not fill the photo."""
    runs, _ = decompress(RLE.of([text]))
    if (runs < 0).any() or runs.sum() != height * width:
        raise ValueError(f"a mask has {runs.sum():,} pixels, but the image has {height * width:,}")
    column_by_column = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.uint8)
    return column_by_column.reshape(width, height).T


def mask_pixels(mask: Mask) -> np.ndarray:
    """-> (h, w) uint8, 0 or 1. Raises ValueError for an encoding that is damaged."""
    if isinstance(mask, np.ndarray):
        return (mask != 0).astype(np.uint8)
    from hotcoco.mask import decode

    return decode(mask)

"""What any source of boxes yields: one split's images and objects, as annotated; and how readers of photos one by one build it.

Letters: N images, M objects. Nothing here is sorted, cleaned or renumbered yet; data/prepare/box_source.py does that.

A mask as annotations give it becomes polygons or run lengths in one form. Polygons are lists of numbers, x1 y1 x2 y2 ..., as COCO has
them. Points are read too: [[x1, y1], [x2, y2], ...], a list of such lists, and one list of numbers. The number of corners decides
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import describe_read_error, read_plain_text
from paceline._utils.text import abbreviate, join_names
from paceline.data import rle

# Broken files that an error names itself.
NAMED_IN_ERROR = 5
# A number of more characters does not fit into 64 bits.
MAX_DIGITS = 12
# x and y of three points: less encloses nothing, and pycocotools takes four numbers for a box.
MIN_NUMBERS = 6
EXPECTED = 'expected polygons, [[x1, y1, x2, y2, ...], ...], or run lengths, {"size": [height, width], "counts": ...}'

Box = tuple[float, float, float, float]
Segmentation = dict[str, Any] | list[Any] | None


@dataclass(frozen=True)
class Annotations:
    """One split as its source has it. Rows are those of `file_names`."""

    source: Path  # the file or folder that was read, for messages
    images_folder: Path
    file_names: list[str]  # N paths relative to images_folder
    image_ids: np.ndarray  # (N,) int64
    heights: np.ndarray  # (N,) int32 pixels; 0 where the source names none
    widths: np.ndarray  # (N,) int32
    object_rows: np.ndarray  # (M,) int64 row of the object's image
    boxes: np.ndarray  # (M, 4) float64 x, y, width, height in pixels, as annotated
    categories: np.ndarray  # (M,) int64 the source's ids
    crowd: np.ndarray  # (M,) uint8
    areas: np.ndarray  # (M,) float64 square pixels; NaN where the source names none: the mask's, or the box's
    annotation_ids: np.ndarray  # (M,) int64
    segmentations: list[Any]  # (M) None, or what `to_rle_or_polygons` reads
    names: dict[int, str]  # category id -> name, in the source's order
    orphans: str = ""  # which objects are left out, as their image is not listed, in words; "" for none

    def chosen(self, rows: np.ndarray) -> Annotations:
        """Those images alone, with their objects; file names, ids and class names stay what they are.

        rows  (n,) integers 0..N-1, ascending
        """
        new_row = np.full(len(self.file_names), -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        objects = np.flatnonzero((self.object_rows >= 0) & (new_row[self.object_rows] >= 0))
        of_images = {name: getattr(self, name)[rows] for name in ("image_ids", "heights", "widths")}
        of_objects = ("boxes", "categories", "crowd", "areas", "annotation_ids")
        return replace(
            self,
            file_names=[self.file_names[row] for row in rows],
            object_rows=new_row[self.object_rows[objects]],
            segmentations=[self.segmentations[i] for i in objects],
            **of_images,
            **{name: getattr(self, name)[objects] for name in of_objects},
        )


@dataclass
class ImageLabels:
    """One photo and its objects, in the order of its label file."""

    file_name: str  # relative to the folder of images
    height: int  # pixels; 0 where unknown
    width: int
    categories: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)  # x, y, width, height in pixels
    crowd: list[int] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)  # square pixels
    segmentations: list[Any] = field(default_factory=list)  # as COCO's JSON has them, None for a box alone

    def add(self, category: int, box: Box, *, crowd: bool = False, polygon: list[float] | None = None) -> None:
        """Append one object: x0 y0 x1 y1 ... of its polygon, in pixels, where it has one. Its area is the polygon's, or the box's."""
        self.categories.append(category)
        self.boxes.append(box)
        self.crowd.append(int(crowd))
        self.areas.append(box[2] * box[3] if polygon is None else polygon_area(polygon))
        self.segmentations.append(None if polygon is None else [polygon])


def make_annotations(
    source: Path,
    images_folder: Path,
    photos: Sequence[ImageLabels],
    names: dict[int, str],
    *,
    image_ids: Sequence[int] = (),
    after: Annotations | None = None,
) -> Annotations:
    """One split's arrays.

    Objects are numbered in order, from 1 or behind those of the split `after`, as these formats give them no ids; so are images
    where no `image_ids` are given.
    """

    def joined(name: str, dtype: type) -> np.ndarray:
        return np.array([one for photo in photos for one in getattr(photo, name)], dtype)

    counts = [len(photo.boxes) for photo in photos]
    images, objects = (0, 0) if after is None else (len(after.file_names), len(after.boxes))
    return Annotations(
        source=source,
        images_folder=images_folder,
        file_names=[photo.file_name for photo in photos],
        image_ids=np.array(image_ids or range(images + 1, images + len(photos) + 1), np.int64),
        heights=np.array([photo.height for photo in photos], np.int32),
        widths=np.array([photo.width for photo in photos], np.int32),
        object_rows=np.repeat(np.arange(len(photos), dtype=np.int64), counts),
        boxes=joined("boxes", np.float64).reshape(-1, 4),
        categories=joined("categories", np.int64),
        crowd=joined("crowd", np.uint8),
        areas=joined("areas", np.float64),
        annotation_ids=np.arange(objects + 1, objects + sum(counts) + 1, dtype=np.int64),
        segmentations=[one for photo in photos for one in photo.segmentations],
        names=names,
    )


def polygon_area(polygon: Sequence[float]) -> float:
    """Area inside x0 y0 x1 y1 ..., in square pixels, by the shoelace formula; 0 or more in either direction of turn."""
    x, y = np.asarray(polygon[0::2]), np.asarray(polygon[1::2])
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def read_list(path: Path, most: int, remedy: str) -> list[str]:
    """The lines of a text file of at most `most` bytes, stripped, without empty ones. Raises DataError, which ends with `remedy`."""
    try:
        lines = [line.strip() for line in read_plain_text(path, most).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({describe_read_error(error)}). {remedy}") from None
    if any("\0" in line for line in lines):
        raise DataError(f"{path}: contains NUL characters. {remedy}")
    return lines


def raise_problems(problems: Sequence[str]) -> None:
    """Raises DataError naming the first few of `problems` (each "file: reason"), where there are any."""
    if problems:
        more = len(problems) - NAMED_IN_ERROR
        others = f"\nand {more:,} more like these" if more > 0 else ""
        raise DataError(
            "\n".join(problems[:NAMED_IN_ERROR])
            + f"{others}\nCorrect or remove these entries, then run `paceline prepare` again."
        )


def to_rle_or_polygons(explicit: Any) -> Segmentation:
    """-> run lengths, polygons (each a list of an even number of values, which are not looked at), or None for no mask.

    Raises ValueError with the reason if it is neither.
    """
    if explicit is None or (isinstance(explicit, dict) and "counts" in explicit):
        return explicit
    if not isinstance(explicit, list | tuple):
        what = f"{abbreviate(explicit, 40)!r}"
        what = f"an object with {join_names(map(abbreviate, explicit))}" if isinstance(explicit, dict) else what
        raise ValueError(f"its segmentation is {what}; {EXPECTED}")
    if any(isinstance(part, dict) for part in explicit):
        if len(explicit) == 1 and isinstance(explicit[0], dict) and "counts" in explicit[0]:
            return explicit[0]
        keys = join_names(map(abbreviate, next(part for part in explicit if isinstance(part, dict))))
        raise ValueError(f"its segmentation is a list of {len(explicit):,} objects with {keys}; {EXPECTED}")
    lists = [isinstance(part, list | tuple) for part in explicit]
    if not any(lists):
        polygons = [list(explicit)] if explicit else []
    elif not all(lists):
        raise ValueError(f"its segmentation mixes numbers and lists; {EXPECTED}")
    elif all(map(_is_point, explicit)):
        polygons = [list(chain.from_iterable(explicit))]
    else:
        polygons = [_flat(part) for part in explicit]
    if odd := next((polygon for polygon in polygons if len(polygon) % 2), None):
        raise ValueError(f"its segmentation has a list with an odd number of values ({len(odd):,}); {EXPECTED}")
    return polygons


def _is_point(part: Any) -> bool:
    return len(part) == 2 and not any(isinstance(value, list | tuple) for value in part)


def _flat(part: Any) -> Any:
    """A polygon's values, given one by one or as points."""
    if not part or not isinstance(part[0], list | tuple):
        return part
    if not all(isinstance(point, list | tuple) and _is_point(point) for point in part):
        raise ValueError(f"its segmentation has a polygon whose points are not pairs of numbers; {EXPECTED}")
    return list(chain.from_iterable(part))


def decompress(text: bytes) -> np.ndarray:
    """The runs in a compressed RLE string, (n,) int64. Raises ValueError where a character or the end does not fit."""
    parts = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(parts):
        return parts
    if parts.min() < 0 or parts.max() > 63:
        raise ValueError("a character that is not allowed in run lengths")
    last = parts & 32 == 0
    if not last[-1]:
        raise ValueError("it ends within a number")
    ends = np.flatnonzero(last)
    if np.diff(ends, prepend=-1).max() > MAX_DIGITS:
        raise ValueError("a number with too many digits")
    return rle.decompress(rle.RLE.of([text]))[0]


def decode_runs(overrides: dict[str, Any], height: int, width: int) -> np.ndarray:
    """(n,) uint32, the runs of a mask of an image of that size. Raises ValueError with the reason if they are not its."""
    counts, size = overrides.get("counts"), overrides.get("size")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise ValueError(f"its RLE mask has size {abbreviate(size, 40)}, but the image has [{height}, {width}]")
    try:
        if isinstance(counts, str | bytes):
            runs = decompress(counts.encode("ascii") if isinstance(counts, str) else counts)
        else:
            if type(counts) is not list or not set(map(type, counts)) <= {int}:
                raise ValueError("its runs are not a list of integers")
            runs = np.array(counts, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"its RLE mask cannot be read ({error})") from None
    if (runs < 0).any():
        raise ValueError(f"its RLE mask has a run with a negative length ({runs.min():,})")
    if (runs > height * width).any() or runs.sum() != height * width:
        raise ValueError(f"its RLE mask covers {runs.sum():,} pixels, but the image has {height * width:,}")
    return runs.astype(np.uint32)


def run_extent(runs: np.ndarray, height: int, width: int) -> Box:
    """left, top, right, bottom of the pixels that the run lengths of an image mark; inf, inf, -inf, -inf for none."""
    from hotcoco.mask import to_bbox

    if not runs[1::2].any():
        return np.inf, np.inf, -np.inf, -np.inf
    x, y, across, down = to_bbox({"size": [height, width], "counts": runs.tolist()}).tolist()
    return x, y, x + across, y + down


def segmentation_box(explicit: Any) -> Box | None:
    """x, y, width, height: the bounds of a segmentation's polygons, or of the pixels of its run lengths; None if it marks nothing.

    Raises ValueError, TypeError, or OverflowError with the reason if it cannot be read.
    """
    mask = to_rle_or_polygons(explicit)
    if isinstance(mask, dict):
        size = mask.get("size")
        if not isinstance(size, list | tuple) or len(size) != 2 or not set(map(type, size)) <= {int} or min(size) < 1:
            raise ValueError(f"its RLE mask has size {abbreviate(size, 40)}, expected [height, width]")
        left, top, right, bottom = run_extent(decode_runs(mask, *size), *size)
    else:
        polygons = [np.array(polygon, np.float64) for polygon in mask or () if len(polygon) >= MIN_NUMBERS]
        finite = [polygon.reshape(-1, 2) for polygon in polygons if np.isfinite(polygon).all()]
        if not finite:
            return None
        points = np.concatenate(finite)
        left, top, right, bottom = *points.min(axis=0).tolist(), *points.max(axis=0).tolist()
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None

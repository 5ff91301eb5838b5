"""Pictures of errors, one small picture each, which the page filters by class, kind and score.

A detector's tile is the part of the photo around the error: what was found is solid, what is annotated is dashed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from PIL import Image

from paceline.config.resnet import Exif
from paceline.data.checks.suspicious_boxes import paired_overlaps
from paceline.inference.drawing.boxes import Annotation, draw_annotations
from paceline.inference.drawing.rendering import encode_jpeg_uri, read_rgb
from paceline.models.metrics.detection_errors import BACKGROUND_CLASS, KINDS, RIGHT, ErrorKinds
from paceline.tools.report.detection_results import ScoredPredictions

# Words for the kinds, in the order of the page.
WORDS = {
    "missed": "missed",
    "background": "false positive",
    "classification": "wrong class",
    "localisation": "inaccurate box",
    "duplicate": "duplicate",
    "both": "wrong class and inaccurate box",
}
MAX_OF_A_KIND = 24
# A crowded photo would fill a kind alone.
MAX_OF_A_PHOTO = 2
SIDE = 216  # pixels of a tile; sharp on a phone
# A box is shown with so much around it, in its own longer side, and at least so many pixels.
AROUND, MIN_REGION = 1.9, 56.0

T = TypeVar("T")
Line: TypeAlias = Literal["solid", "thin"]


@dataclass(frozen=True)
class GalleryTile:
    """One picture with what the page's filters look at."""

    photo: str  # a data URI; "" where the photo cannot be read
    kind: str
    classes: tuple[int, ...]  # 1..K
    score: float | None  # None of a missed object
    pair: str  # class_pair of the two, or ""
    about: str  # kind, score, overlap
    name: str  # of the class that was found, or missed
    more: str  # what is annotated there, where that is something else
    file: str


class DetectionError(NamedTuple):
    """A detection, or an object that nothing has found."""

    kind: str
    box: int  # row of the detection, or -1
    object: int  # row of the object, or -1
    photo: int


def interleave(groups: Sequence[Sequence[T]]) -> Iterator[T]:
    """The first of each group, then the second of each, ..."""
    missing = object()
    for turn in zip_longest(*groups, fillvalue=missing):
        yield from (one for one in turn if one is not missing)  # type: ignore[misc]


def choose_errors(result: ScoredPredictions, errors: ErrorKinds) -> list[DetectionError]:
    """Kinds by turns; of each the surest (of missed objects the largest), pairs of classes by turns, the frequent ones first."""
    truth, boxes, kept = result.truth, result.boxes, []
    photo_of = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))
    for kind in WORDS:
        groups: dict[tuple[int, int], list[DetectionError]] = defaultdict(list)
        if kind == "missed":
            rows = np.flatnonzero(errors.missed)
            for row in rows[np.argsort(-truth.areas[rows], kind="stable")].tolist():
                groups[int(truth.classes[row]), 0].append(DetectionError(kind, -1, row, int(photo_of[row])))
        else:
            rows = np.flatnonzero(errors.kinds == KINDS.index(kind))
            for row in rows[np.argsort(-boxes.scores[rows], kind="stable")].tolist():
                about = int(errors.partners[row])
                key = int(truth.classes[about]) if about >= 0 else BACKGROUND_CLASS, int(boxes.classes[row])
                groups[key].append(DetectionError(kind, row, about, int(boxes.images[row])))
        ranked = sorted(groups.values(), key=len, reverse=True)
        kept.append(list(islice(interleave([list(_few_of_a_photo(group)) for group in ranked]), MAX_OF_A_KIND)))
    return list(interleave(kept))


def _few_of_a_photo(errors: Sequence[DetectionError]) -> Iterator[DetectionError]:
    seen: dict[int, int] = defaultdict(int)
    for error in errors:
        seen[error.photo] += 1
        if seen[error.photo] <= MAX_OF_A_PHOTO:
            yield error


def error_tiles(result: ScoredPredictions, kinds: ErrorKinds, names: Sequence[str], exif: Exif) -> list[GalleryTile]:
    """A tile for each chosen error.

    kinds  of the boxes of `found`, which are those that count
    names  of classes 1..K
    """
    chosen = choose_errors(result, kinds)
    of_photo: dict[int, list[int]] = defaultdict(list)
    for index, error in enumerate(chosen):
        of_photo[error.photo].append(index)
    pictures: Mapping[int, str] = {
        index: picture
        for photo, indices in of_photo.items()
        for index, picture in zip(indices, _cut_out(result, kinds, photo, [chosen[index] for index in indices], exif))
    }
    return [_tile(result, error, names, pictures[index]) for index, error in enumerate(chosen)]


def _tile(result: ScoredPredictions, error: DetectionError, names: Sequence[str], picture: str) -> GalleryTile:
    truth, boxes = result.truth, result.boxes
    real = int(truth.classes[error.object]) if error.object >= 0 else BACKGROUND_CLASS
    if error.box < 0:
        seen, score = BACKGROUND_CLASS, None
        width, height = truth.boxes[error.object, 2:].tolist()
        about = [f"{width:.0f} x {height:.0f} px"]
    else:
        seen, score = int(boxes.classes[error.box]), float(boxes.scores[error.box])
        about = [f"{score:.2f}"]
        if real:
            there = truth.boxes[error.object][None]
            about += [f"IoU {float(paired_overlaps(boxes.boxes[error.box][None], there, np.zeros(1, bool))[0]):.2f}"]
    more = f"label: {names[real - 1]}" if real and seen and real != seen else ""
    pair = class_pair(real, seen) if real != seen else ""
    classes = tuple(sorted({real, seen} - {BACKGROUND_CLASS}))
    words = ", ".join([WORDS[error.kind], *about])
    return GalleryTile(
        picture, error.kind, classes, score, pair, words, names[(seen or real) - 1], more, result.files[error.photo]
    )


def _cut_out(
    result: ScoredPredictions, kinds: ErrorKinds, photo: int, errors: Sequence[DetectionError], exif: Exif
) -> list[str]:
    """The part of one photo around each error, a JPEG data URI; "" where the photo cannot be read."""
    size = float(result.truth.widths[photo]), float(result.truth.heights[photo])
    shown = [_marks(result, kinds, error) for error in errors]
    regions = [_region([mark.box for mark in marks], *size) for marks in shown]
    scale = max(SIDE / max(right - left, bottom - top) for left, top, right, bottom in regions)
    picture = read_rgb(result.files[photo], exif, least=(round(size[0] * scale), round(size[1] * scale)))
    if picture is None:
        return [""] * len(errors)
    return [_drawn(picture, size, region, marks) for region, marks in zip(regions, shown)]


def _drawn(
    picture: Image.Image, size: tuple[float, float], region: tuple[float, float, float, float], marks: Sequence[Annotation]
) -> str:
    left, top, right, bottom = region
    across, down = picture.width / size[0], picture.height / size[1]
    scale = SIDE / max(right - left, bottom - top)
    target = max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))
    source = left * across, top * down, right * across, bottom * down
    part = picture.resize(target, Image.Resampling.BICUBIC, box=source, reducing_gap=2)
    moved = [
        Annotation(((x - left) * scale, (y - top) * scale, width * scale, height * scale), mark.label, mark.text, mark.line)
        for mark in marks
        for x, y, width, height in (mark.box,)
    ]
    return encode_jpeg_uri(draw_annotations(part, moved, width=SIDE, height=SIDE), quality=72, subsampling=0)


def _marks(result: ScoredPredictions, kinds: ErrorKinds, error: DetectionError) -> list[Annotation]:
    """What was found, solid, over what is annotated, dashed, and of a duplicate the first box, thin."""
    marks = []
    boxes: list[tuple[int, Line]] = [(error.box, "solid")] if error.box >= 0 else []
    if error.kind == "duplicate":
        first = np.flatnonzero((kinds.kinds == RIGHT) & (kinds.partners == error.object))
        boxes.append((int(first[0]), "thin"))
    for row, line in boxes:
        marks.append(Annotation(tuple(result.boxes.boxes[row].tolist()), int(result.boxes.classes[row]), "", line))
    if error.object >= 0:
        box, label = result.truth.boxes[error.object].tolist(), int(result.truth.classes[error.object])
        marks.append(Annotation(tuple(box), label, "", "dashed"))
    return marks


def _region(
    boxes: Sequence[tuple[float, float, float, float]], width: float, height: float
) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a square around the boxes, moved into the photo; of a narrow photo its whole side."""
    left, top = (min(max(min(box[axis] for box in boxes), 0), side - 1) for axis, side in ((0, width), (1, height)))
    right, bottom = (
        min(max(max(box[axis] + box[axis + 2] for box in boxes), first + 1), side)
        for axis, first, side in ((0, left, width), (1, top, height))
    )
    side = max(AROUND * max(right - left, bottom - top), MIN_REGION)
    x, y = min(side, width), min(side, height)
    left = min(max((left + right - x) / 2, 0), width - x)
    top = min(max((top + bottom - y) / 2, 0), height - y)
    return left, top, left + x, top + y


class ConfusionCell(NamedTuple):
    """One cell of the drawn matrix."""

    text: str
    share: float  # of the row
    tone: str  # a class of the page's style
    pair: str  # what the gallery's tiles of this cell are marked with; "" where it has none


def class_pair(true: int, result: int) -> str:
    """The mark of an object of one class that was taken for another."""
    return f"{true}-{result}"


def list_mistakes(counts: np.ndarray, names: Sequence[str], most: int) -> list[tuple[str, str, int, float, str]]:
    """(class, taken for, times, share of the class's objects, mark) of the most frequent confusions of two classes."""
    pairs = [
        (
            *(names[true - 1], names[result - 1]),
            *(int(counts[true, result]), float(counts[true, result] / counts[true].sum()), class_pair(true, result)),
        )
        for true, result in np.argwhere(counts).tolist()
        if true != result and BACKGROUND_CLASS not in (true, result)
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:most]


def format_confusion_matrix(
    counts: np.ndarray, names: Sequence[str], *, background: bool = True
) -> list[tuple[str, list[ConfusionCell]]]:
    """Rows of the drawn matrix, background last both ways where there is one: (class, cells).

    counts  (K+1, K+1): objects of a class (row) found as a class (column)
    """
    order = [*range(1, len(names) + 1), *([BACKGROUND_CLASS] if background else [])]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def cell(true: int, match: int) -> ConfusionCell:
        text = f"{counts[true, match]:,}" if true or match else ""
        tone = "good" if true == match else "bad"
        wrong = true != match and counts[true, match]
        return ConfusionCell(text, float(shares[true, match]), tone, class_pair(true, match) if wrong else "")

    return [(names[true - 1] if true else "no object", [cell(true, result) for result in order]) for true in order]

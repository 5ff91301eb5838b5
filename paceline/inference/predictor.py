"""What every predictor does: photos of any kind are taken, read on threads some photos ahead, and answered in batches, in order.

What answers is its own: a trained network (predictor.py), or a graph (graph_model.py). Imports no torch.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import IOBase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast, overload

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.platform import count_cpus
from paceline.data.transforms.image_io import Header
from paceline.data.workers.crew import map_ordered
from paceline.inference.image_input import WANTED, Photo, decode_photo, get_photo_path, is_photo
from paceline.inference.image_paths import FailedImage, find_photos
from paceline.inference.results import ClassificationResult, DetectionResult, PredictionResult
from paceline.inference.tiling import OVERLAP, predict_tiled
from paceline.training.logging.events import read_events

# Numbers of objects, (m,), and their boxes' corners in the photo, (m, 4) pixels -> their masks as COCO's run lengths.
Draw: TypeAlias = Callable[[np.ndarray, np.ndarray], Iterable[bytes]]


class PreparedImage(NamedTuple):
    """A photo as the network takes it."""

    photo: Photo
    header: Header  # its size in the recipe's frame
    orientation: int  # as EXIF has it, 1 to 8
    pixels: np.ndarray  # (H, W, 3) uint8, the network's input
    label: Any  # what the workload's `draw_eval` labeled it with


class Predictor(ABC):
    """An opened model that answers for photos: `predict` for what is at hand, `stream` for more than fits into memory."""

    trained: Any  # what was opened: folder, workload, recipe, classes, category_ids, checkpoint, step, facts

    @property
    def finds_objects(self) -> bool:
        """Whether results are objects (`DetectionResult`); else they name whole photos (`ClassificationResult`)."""
        return self.trained.workload.finds_objects

    @property
    def classes(self) -> tuple[str, ...]:
        """Readable class names: of a classifier by class index, of a detector class k is classes[k - 1]."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        return self.trained.category_ids

    def best_f1(self) -> dict[str, float]:
        """Of a detector's run: the threshold with the best F1 in the evaluation of these weights, and f1, precision, recall there.

        Chosen on those very photos (models/metrics/detection_errors.py). {} where it is not known: of a file of weights, of another
        checkpoint than an evaluated one, of runs of older versions.
        """
        best = self.evaluation().get("best_f1")
        if not isinstance(best, dict) or "threshold" not in best:
            return {}
        known = all(isinstance(one, float | int) and 0 <= one <= 1 for one in best.values())
        return {str(name): float(value) for name, value in best.items()} if known else {}

    def evaluation(self) -> Mapping[str, Any]:
        """The event of these weights' newest evaluation in their run, {} where there is none; of a file what its card says."""
        trained = self.trained
        if not trained.folder.is_dir():
            return trained.facts.as_dict()
        events = reversed(read_events(trained.folder / "events.jsonl"))
        return next((one for one in events if one["event"] == "eval" and one["step"] == trained.step), {})

    @overload
    def predict(
        self, photos: Photo, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> PredictionResult: ...
    @overload
    def predict(
        self, photos: Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> list[PredictionResult]: ...
    def predict(self, photos: Any, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP) -> Any:
        """One photo gives one result; a folder, list, tuple or generator of photos gives a list of results.

            run = paceline.load("runs/first")
            run.predict("cat.jpg").draw().show()
            for result in run.predict("holiday/"): print(result.file, result.line())

        A photo is
            a path                  str or Path; a folder means the photos in it and in its folders, in name order
            bytes                   of an image file
            a PIL image             of any mode but F
            an array                (H, W, 3) uint8, RGB (OpenCV's are BGR: array[..., ::-1]); (H, W); (H, W, 4), alpha is dropped
            a tensor                (3, H, W) or (1, H, W), uint8 or floating point from 0 to 1, on any device

        photos  one of them, a folder, or an iterable of them
        batch   most photos in one forward; None: as many as suit the model
        tile    objects: larger photos in tiles of so many pixels a side too, merged with the whole one's (tiling.py); 0: whole alone
        overlap share of a side that neighboring tiles have in common
        return  an Answer (classes) or a Found (objects, with masks where the run has them): .draw(), .save(path), .line(),
                and of a Found .to_coco(image_id); in a list in the photos' order, a folder in it counts as its photos
        Raises DataError for the first photo that cannot be read; `stream` goes on instead.
        """
        results = []
        for index, result in enumerate(self.stream(_listed(photos), batch=batch, tile=tile, overlap=overlap)):
            if isinstance(result, FailedImage):
                name = result.file or ("" if _is_one(photos) else f"photo {index + 1} of those given")
                raise DataError(f"{name}: {result.reason}." if name else f"{result.reason}.")
            results.append(result)
        return results[0] if _is_one(photos) else results

    def stream(
        self, photos: Photo | Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> Iterator[PredictionResult | FailedImage]:
        """Results one after the other, in the photos' order; a photo that cannot be read is an Unreadable in its place.

        photos  as `predict` takes them: one, a folder, or several, which are taken as they are needed, a few ahead. Files of a folder
                or a list are read and decoded by processes where they are many, all else by threads
        batch, tile, overlap  as `predict` takes them
        """
        by_name = _is_one(photos) or isinstance(photos, str | os.PathLike)  # a name is no list of letters
        listed = list(_listed(photos)) if by_name else cast("Iterable[Photo]", photos)
        if tile and self.finds_objects:
            alone = partial(self.stream, batch=batch)
            yield from predict_tiled(alone, listed, self.trained.recipe.input, tile=tile, overlap=overlap)
            return
        size = self.trained.workload.photos_at_once if batch is None else max(1, batch)
        cores = count_cpus()
        read = partial(_read_or_reason, self.reader())
        portable = isinstance(listed, Sequence) and all(isinstance(photo, str | os.PathLike) for photo in listed)
        inputs = map_ordered(listed, read, size=cores, ahead=cores + size, processes=portable)
        while part := list(islice(inputs, size)):
            answers = iter(self._answers([read for read in part if not isinstance(read, FailedImage)]))
            yield from (read if isinstance(read, FailedImage) else next(answers) for read in part)

    @abstractmethod
    def reader(self) -> Callable[[Photo], PreparedImage]:
        """A function that reads a photo as the network takes it, and raises DataError. Threads and other processes call it."""

    @abstractmethod
    def _answers(self, part: Sequence[PreparedImage]) -> Iterable[PredictionResult]:
        """The results of photos that were read, in their order."""


def _read_or_reason(read: Callable[[Photo], PreparedImage], photo: Photo) -> PreparedImage | FailedImage:
    try:
        return read(photo)
    except DataError as problem:
        # The first line is the reason; the others are advice on training sets.
        name = get_photo_path(photo)
        reason = str(problem).partition("\n")[0].removeprefix(f"{name}: ")
        return FailedImage(name, reason.rstrip("."))


def _is_one(photos: object) -> bool:
    if isinstance(photos, str | os.PathLike):
        return not os.path.isdir(photos)
    return is_photo(photos)


def _listed(photos: Any) -> Iterator[Photo]:
    """The photos, those of a folder in its place. Raises DataError for what holds none."""
    if _is_one(photos):
        yield photos
    elif isinstance(photos, str | os.PathLike):
        listing = find_photos([Path(photos)])
        for file, reason in listing.refused:
            raise DataError(f"{file}: {reason}.")
        yield from listing.photos
    elif isinstance(photos, IOBase):  # its lines would be taken for photos
        raise DataError(f"an opened file is no photo; hand over its bytes: .read(). {WANTED}; several are a list of these.")
    elif isinstance(photos, Iterable) and not isinstance(photos, Mapping):
        for photo in photos:
            yield from _listed(photo) if isinstance(photo, str | os.PathLike) else [photo]
    else:
        raise DataError(f"{type(photos).__name__} is no photo. {WANTED}; several are a folder, or a list of these.")


def to_classification(
    seen: PreparedImage, trained: Any, classes: Sequence[int], scores: Sequence[float]
) -> ClassificationResult:
    """classes, scores: of the photo, best first."""
    names = tuple(trained.classes[index] for index in classes)
    return ClassificationResult(**_fields(seen, trained), classes=tuple(classes), names=names, scores=tuple(scores))


def to_detections(seen: PreparedImage, trained: Any, rows: np.ndarray, draw: Draw | None = None) -> DetectionResult:
    """A photo's objects, best first.

    rows    (D, 6), as networks have them: left, top, right, bottom as fractions of the photo, score, class 1..K, or 0 where there is
            none; a network's settings may have `detect.plus_one`
    draw    makes the masks, of a network that has them
    """
    h, w = seen.header.height, seen.header.width
    indices = np.flatnonzero(rows[:, 5] > 0)
    indices = indices[np.argsort(-rows[indices, 4], kind="stable")]
    rows = rows[indices].astype(np.float64)
    corners = rows[:, :4] * [w, h, w, h]
    boxes = np.column_stack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
    boxes[:, 2:] += getattr(trained.recipe.model.detect, "plus_one", False)
    labels = rows[:, 5].astype(int).tolist()
    return DetectionResult(
        **_fields(seen, trained),
        width=w,
        height=h,
        boxes=boxes,
        classes=tuple(labels),
        names=tuple(trained.classes[label - 1] for label in labels),
        scores=tuple(rows[:, 4].tolist()),
        category_ids=tuple(trained.category_ids[label - 1] for label in labels),
        masks=None if draw is None else tuple(draw(indices, corners)),
    )


def _fields(seen: PreparedImage, trained: Any) -> dict[str, Any]:
    """The fields of every result."""
    pixels = partial(decode_photo, seen.photo, trained.recipe.input)
    return {"file": get_photo_path(seen.photo), "pixels": pixels, "orientation": seen.orientation}

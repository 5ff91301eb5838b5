"""Predict images of any kind: threads read a few images ahead, and the model predicts them in batches, in order.

The model belongs to a subclass: a trained network (trained_model.py) or a graph (graph/graph_model.py). This module imports no torch.
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
    """A model that is open for prediction. `paceline.load` returns one.

    `predict` returns all results at once. `predict_iter` yields them one by one, for more images than fit into memory.

    Attributes:
        trained: the opened model, with its recipe, checkpoint, and step.
    """

    trained: Any  # what was opened: folder, workload, recipe, classes, category_ids, checkpoint, step, facts

    @property
    def finds_objects(self) -> bool:
        """bool: True if results are `DetectionResult`, False if they are `ClassificationResult`."""
        return self.trained.workload.finds_objects

    @property
    def classes(self) -> tuple[str, ...]:
        """tuple[str, ...]: class names. `classes[i]` is the name of class index i in the `class_ids` of a result."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """tuple[int, ...]: ids in the annotation file of the training data, in the order of `classes`; 1 to K if unknown."""
        return self.trained.category_ids

    def best_f1(self) -> dict[str, float]:
        """Return the score threshold with the best F1 in the evaluation of these weights. It is for detectors.

        The threshold was chosen on the images of the evaluation, so F1 is likely lower on others.

        Returns:
            dict[str, float]: ``threshold``, ``f1``, ``precision``, and ``recall``. Empty if they are unknown: for a file of
            weights, for a checkpoint that was not evaluated, and for a run of an older version.
        """
        best = self.evaluation().get("best_f1")
        if not isinstance(best, dict) or "threshold" not in best:
            return {}
        known = all(isinstance(one, float | int) and 0 <= one <= 1 for one in best.values())
        return {str(name): float(value) for name, value in best.items()} if known else {}

    def evaluation(self) -> Mapping[str, Any]:
        """Return the newest evaluation of these weights.

        Returns:
            Mapping[str, Any]: the ``eval`` event of the run, empty if there is none. For a file of weights, its card.
        """
        trained = self.trained
        if not trained.folder.is_dir():
            return trained.facts.as_dict()
        events = reversed(read_events(trained.folder / "events.jsonl"))
        return next((one for one in events if one["event"] == "eval" and one["step"] == trained.step), {})

    @overload
    def predict(
        self, images: Photo, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> PredictionResult: ...
    @overload
    def predict(
        self, images: Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> list[PredictionResult]: ...
    def predict(self, images: Any, *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP) -> Any:
        """Predict one image, or several.

        Example::

            predictor = paceline.load("runs/first")
            predictor.predict("cat.jpg").draw().show()
            for result in predictor.predict("holiday/"):
                print(result.file, result.summary())

        An image is one of:

        - a path (str or Path). A folder means all images in it and in its subfolders, sorted by name.
        - the bytes of an image file
        - a PIL image of any mode except F
        - an array, uint8, in RGB order: (h, w, 3), (h, w), or (h, w, 4) whose alpha is dropped. OpenCV's order is BGR: pass
          ``array[..., ::-1]``.
        - a tensor of shape (3, h, w) or (1, h, w), uint8, or floating point from 0 to 1, on any device

        Args:
            images (image, folder, or iterable): an image as above, a folder, or an iterable of images and folders.
            batch (int, optional): largest number of images per forward pass. Default: a number that suits the model.
            tile (int): for objects, also predict larger images in tiles of this side in pixels, and merge the results.
                0 predicts whole images only.
            overlap (float): fraction of the side that neighboring tiles share.

        Returns:
            ClassificationResult, DetectionResult, or a list of them: one image gives one result. A folder or an iterable
            gives a list in the order of the images.

        Raises:
            DataError: for the first image that cannot be read. `predict_iter` yields a `FailedImage` instead.
        """
        results = []
        for index, result in enumerate(self.predict_iter(_listed(images), batch=batch, tile=tile, overlap=overlap)):
            if isinstance(result, FailedImage):
                name = result.file or ("" if _is_one(images) else f"image {index + 1} of the list")
                raise DataError(f"{name}: {result.reason}." if name else f"{result.reason}.")
            results.append(result)
        return results[0] if _is_one(images) else results

    def predict_iter(
        self, images: Photo | Iterable[Photo], *, batch: int | None = None, tile: int = 0, overlap: float = OVERLAP
    ) -> Iterator[PredictionResult | FailedImage]:
        """Predict images one by one, and continue after an image that cannot be read.

        Images are taken from the iterable as they are needed, a few ahead. Many files are read by worker processes, and all
        other images by threads.

        Args:
            images (image, folder, or iterable): as `predict` accepts them.
            batch, tile, overlap: as in `predict`.

        Yields:
            ClassificationResult, DetectionResult, or FailedImage: one per image, in the order of the images.
        """
        by_name = _is_one(images) or isinstance(images, str | os.PathLike)  # a name is no list of letters
        listed = list(_listed(images)) if by_name else cast("Iterable[Photo]", images)
        if tile and self.finds_objects:
            whole_images = partial(self.predict_iter, batch=batch)
            yield from predict_tiled(whole_images, listed, self.trained.recipe.input, tile=tile, overlap=overlap)
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
        raise DataError(f"an open file is not an image. Pass its bytes: .read(). {WANTED}. Lists are accepted.")
    elif isinstance(photos, Iterable) and not isinstance(photos, Mapping):
        for photo in photos:
            yield from _listed(photo) if isinstance(photo, str | os.PathLike) else [photo]
    else:
        raise DataError(f"{type(photos).__name__} is not an image. {WANTED}. Folders and lists are accepted.")


def to_classification(
    seen: PreparedImage, trained: Any, class_ids: Sequence[int], scores: Sequence[float]
) -> ClassificationResult:
    """class_ids, scores: of the photo, best first."""
    names = tuple(trained.classes[index] for index in class_ids)
    return ClassificationResult(**_fields(seen, trained), class_ids=tuple(class_ids), names=names, scores=tuple(scores))


def to_detections(seen: PreparedImage, trained: Any, rows: np.ndarray, draw: Draw | None = None) -> DetectionResult:
    """A photo's objects, best first.

    rows    (D, 6), as networks have them: left, top, right, bottom as fractions of the photo, score, class 1..K, or 0 where there is
            none; a network's settings may have `parity.plus_one`
    draw    makes the masks, of a network that has them
    """
    h, w = seen.header.height, seen.header.width
    indices = np.flatnonzero(rows[:, 5] > 0)
    indices = indices[np.argsort(-rows[indices, 4], kind="stable")]
    rows = rows[indices].astype(np.float64)
    corners = rows[:, :4] * [w, h, w, h]
    boxes = np.column_stack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
    boxes[:, 2:] += getattr(getattr(trained.recipe.model, "parity", None), "plus_one", False)
    class_ids = (rows[:, 5].astype(int) - 1).tolist()
    return DetectionResult(
        **_fields(seen, trained),
        width=w,
        height=h,
        boxes_xywh=boxes,
        class_ids=tuple(class_ids),
        names=tuple(trained.classes[index] for index in class_ids),
        scores=tuple(rows[:, 4].tolist()),
        category_ids=tuple(trained.category_ids[index] for index in class_ids),
        masks_rle=None if draw is None else tuple(draw(indices, corners)),
    )


def _fields(seen: PreparedImage, trained: Any) -> dict[str, Any]:
    """The fields of every result."""
    pixels = partial(decode_photo, seen.photo, trained.recipe.input)
    return {"file": get_photo_path(seen.photo), "pixels": pixels, "orientation": seen.orientation}

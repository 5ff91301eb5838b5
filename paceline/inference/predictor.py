"""Predict images in batches and in order.

Threads or processes read a few images ahead. The subclasses of `Predictor` provide the model: a trained network (trained_model.py)
or an exported graph (graph/graph_model.py). This module does not import torch.
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
    """Hold an image as the network receives it."""

    photo: Photo
    header: Header  # its size in the recipe's frame
    orientation: int  # as EXIF has it, 1 to 8
    pixels: np.ndarray  # (H, W, 3) uint8, the network's input
    label: Any  # what the workload's `draw_eval` labeled it with


class Predictor(ABC):
    """Predict images with a trained model. `paceline.load` returns a `Predictor`.

    `predict` returns all results at once. `predict_iter` yields one result at a time, so the images need not fit into memory.

    Attributes:
        trained: the opened model. Its attributes include `folder`, `workload`, `recipe`, `classes`, `category_ids`, `checkpoint`,
            `step`, and `facts`.
    """

    trained: Any  # what was opened: folder, workload, recipe, classes, category_ids, checkpoint, step, facts

    @property
    def finds_objects(self) -> bool:
        """bool: True if results are `DetectionResult`, False if they are `ClassificationResult`."""
        return self.trained.workload.finds_objects

    @property
    def classes(self) -> tuple[str, ...]:
        """tuple[str, ...]: class names. `classes[i]` is the name of class index i in a result."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """tuple[int, ...]: ids of the classes in the annotation file of the training data.

        The order is that of `classes`. If the ids are unknown, they are 1 to K.
        """
        return self.trained.category_ids

    def best_f1(self) -> dict[str, float]:
        """Return the score threshold that had the best F1 when a detector was evaluated.

        The threshold was selected on the images of that evaluation, so F1 is likely lower on other images.

        Returns:
            dict[str, float]: ``threshold``, ``f1``, ``precision``, and ``recall``, with values between 0 and 1. The dict is empty if
            they are unknown: for a classifier, for a checkpoint that was not evaluated, for a weight file without this metadata, and
            for a run of an older version.
        """
        best = self.evaluation().get("best_f1")
        if not isinstance(best, dict) or "threshold" not in best:
            return {}
        known = all(isinstance(one, float | int) and 0 <= one <= 1 for one in best.values())
        return {str(name): float(value) for name, value in best.items()} if known else {}

    def evaluation(self) -> Mapping[str, Any]:
        """Return the newest evaluation of these weights.

        Returns:
            Mapping[str, Any]: the ``eval`` event of the run, or an empty mapping if these weights were not evaluated. For a weight
            file or an exported graph, the metadata in the file.
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
        """Predict one image or several images.

        Example::

            predictor = paceline.load("runs/first")
            predictor.predict("cat.jpg").draw().show()
            for result in predictor.predict("holiday/"):
                print(result.file, result.summary())

        An image is one of:

        - a path (str or Path). A folder stands for all images in it and in its subfolders, sorted by name.
        - the bytes of an image file
        - a PIL image of any mode except F
        - a uint8 array in RGB order, shape (h, w, 3), (h, w, 4), (h, w, 1), or (h, w). The alpha channel is ignored. OpenCV uses BGR
          order: pass ``array[..., ::-1]``.
        - a tensor of shape (3, h, w) or (1, h, w) on any device, either uint8 or floating point from 0 to 1

        Args:
            images (image, folder, or iterable): an image as above, a folder, or an iterable of images and folders.
            batch (int, optional): maximum number of images per forward pass. Default: a number that depends on the task
            tile (int): side of the tiles in pixels for sliced inference. Detectors then also predict overlapping tiles of each image
                that is larger than a tile, and merge the results. Classifiers ignore it. Default: 0 (no tiles)
            overlap (float): minimum overlap of neighboring tiles, as a fraction of the side of a tile. Default: 0.2

        Returns:
            PredictionResult or list[PredictionResult]: a `ClassificationResult` or `DetectionResult` for one image. For a folder or an
            iterable, a list of results in the order of the images.

        Raises:
            DataError: if an image cannot be read. To continue after such an image, use `predict_iter`.
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
        """Predict images one at a time, and continue after an image that cannot be read.

        Images are read from the iterable when they are needed, a few images ahead. If `images` is a folder or a list of many paths,
        worker processes read the files. In all other cases, threads read the images.

        Args:
            images (image, folder, or iterable): images, as for `predict`.
            batch (int, optional): maximum number of images per forward pass, as for `predict`.
            tile (int): side of the tiles in pixels, as for `predict`.
            overlap (float): minimum overlap of neighboring tiles, as for `predict`.

        Yields:
            PredictionResult or FailedImage: one per image, in the order of the images.
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
        """Return a function that reads an image and prepares the network input.

        Worker threads and worker processes call this function. Subclasses of `Predictor` implement this method.

        Returns:
            Callable[[Photo], PreparedImage]: function that raises `DataError` if the image cannot be read.
        """

    @abstractmethod
    def _answers(self, part: Sequence[PreparedImage]) -> Iterable[PredictionResult]:
        """Return the results for prepared images, in their order."""


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
    """Yield the images, with each folder replaced by its images.

    Raises:
        DataError: if the argument is not an image and does not contain images.
    """
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
    """Build the result of an image from its class indices and scores, best first."""
    names = tuple(trained.classes[index] for index in class_ids)
    return ClassificationResult(**_fields(seen, trained), class_ids=tuple(class_ids), names=names, scores=tuple(scores))


def to_detections(seen: PreparedImage, trained: Any, rows: np.ndarray, draw: Draw | None = None) -> DetectionResult:
    """Build the result of an image from the rows that a detector returns.

    Args:
        seen (PreparedImage): the image.
        trained (Any): the opened model. A recipe with `model.parity.plus_one` adds 1 pixel to the width and height of each box.
        rows (ndarray): shape (D, 6): left, top, right, and bottom as fractions of the image, score, and class from 1 to K. Rows with
            class 0 are empty.
        draw (Callable, optional): function that returns the masks of the objects. Default: no masks

    Returns:
        DetectionResult: the objects, best first.
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
    """Return the fields that every result has."""
    pixels = partial(decode_photo, seen.photo, trained.recipe.input)
    return {"file": get_photo_path(seen.photo), "pixels": pixels, "orientation": seen.orientation}

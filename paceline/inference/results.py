"""Define the result of a prediction for one image. Each type of task has its own class.

Notation:
    N: number of objects
    h, w: height and width of the image in pixels
    K: number of classes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._utils.errors import PacelineError
from paceline._utils.text import escape_line

if TYPE_CHECKING:
    from PIL import Image

# Smallest score of the objects that are printed and drawn by default.
SCORE_THRESHOLD = 0.3
# Pixels of the longer side of a picture with objects: small images are enlarged so that names fit, large ones are reduced.
SMALLEST, LARGEST = 640, 1600
# A picture with many objects is larger, up to LARGEST: its side is that of a square of N fields with this side.
ROOM = 200


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PredictionResult(ABC):
    """Store the result of one image. This is the base class of all results.

    Classes or objects are sorted by score in descending order.

    Attributes:
        class_ids (tuple[int, ...]): class indices from 0 to K - 1. They are indices into `Predictor.classes`.
        names (tuple[str, ...]): class names.
        scores (tuple[float, ...]): class probabilities from 0 to 1.
        file (str): path of the image, or "" if the image was passed as bytes or pixels.
        pixels (Callable[[], ndarray]): function that decodes the image in its original size and in the orientation that the network
            received. It returns a uint8 array of shape (h, w, 3) in RGB order.
        orientation (int): EXIF orientation of the image, from 1 (upright) to 8. The recipe field ``input.exif`` determines if the
            pixels are rotated accordingly.
    """

    class_ids: tuple[int, ...]
    names: tuple[str, ...]
    scores: tuple[float, ...]
    file: str
    pixels: Callable[[], np.ndarray]
    orientation: int = 1

    def __repr__(self) -> str:
        return escape_line(f"<{type(self).__name__} in {self.file or 'the given image'}: {self.summary()}>")

    @abstractmethod
    def summary(self, score_threshold: float = SCORE_THRESHOLD) -> str:
        """Describe the result on one line.

        Args:
            score_threshold (float): minimum score of the objects that are counted. Classification ignores it. Default: 0.3

        Returns:
            str: class names and scores, best first.
        """

    @abstractmethod
    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw the result on the image.

        If the image was passed as a path, the file is read again. Classification ignores all arguments.

        Args:
            score_threshold (float): minimum score of the objects that are drawn. Default: 0.3
            labels (bool): draw class names and scores. Default: True
            max_side (int): length of the longer side of the drawing in pixels, so that several drawings have the same size. Tiny
                images remain smaller. Default: 0 (a size that depends on the number of objects, with a legend below the image if
                names do not fit)

        Returns:
            PIL.Image.Image: drawing in RGB mode.

        Raises:
            DataError: if the image cannot be read again.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary that `json.dumps` accepts.

        These are the fields of the image in predictions.json, which adds others, such as ``file``.

        Returns:
            dict[str, Any]: the fields that the subclass documents.
        """

    def save(self, path: str | Path) -> None:
        """Write the drawing that `draw` returns to an image file.

        Args:
            path (str or Path): file to write. The suffix selects the format.

        Raises:
            DataError: if the image cannot be read again.
            OSError: if the file cannot be written.
            ValueError: if the suffix is not a known image format.
        """
        self.draw().save(path)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ClassificationResult(PredictionResult):
    """Store the classes of one image that have the highest probabilities.

    There are at most five classes, sorted by probability in descending order.

    Attributes:
        class_ids (tuple[int, ...]): class indices from 0.
        names (tuple[str, ...]): class names.
        scores (tuple[float, ...]): softmax probabilities from 0 to 1.
        file, pixels, orientation: as in `PredictionResult`.
    """

    def summary(self, score_threshold: float = SCORE_THRESHOLD) -> str:
        """Describe the three most probable classes on one line. `score_threshold` is ignored.

        Returns:
            str: class names and probabilities in percent.
        """
        return "  ".join(f"{name} {100 * score:.1f}%" for name, score in zip(self.names[:3], self.scores))

    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw the image with one bar per class below it. All arguments are ignored."""
        from paceline.inference.drawing.rendering import draw_top5

        return draw_top5(self.pixels(), self.names, self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary with the keys `classes` (indices from 0), `names`, and `scores`."""
        return {"classes": list(self.class_ids), "names": list(self.names), "scores": list(self.scores)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DetectionResult(PredictionResult):
    """Store the objects that a detector found in one image.

    Objects are sorted by score in descending order. ``len(result)`` is their number. ``result[rows]`` returns a new
    `DetectionResult` with the selected objects. `rows` is an index, a slice, a list of indices, or a boolean mask. Boxes are not
    clipped to the image, as in evaluation.

    Attributes:
        width, height (int): original size of the image in pixels, in the orientation that the network received.
        boxes_xywh (ndarray): boxes as (left, top, width, height) in pixels, shape (N, 4), float64.
        boxes_xyxy (ndarray): boxes as (left, top, right, bottom) in pixels, shape (N, 4), float64.
        class_ids (tuple[int, ...]): class index of each object, from 0.
        names (tuple[str, ...]): class name of each object.
        scores (tuple[float, ...]): score of each object, from 0 to 1.
        category_ids (tuple[int, ...]): category id of each object in the annotation file of the training data. COCO, for example,
            uses 1 to 90.
        masks (ndarray or None): masks, shape (N, h, w), bool. None if the model does not predict masks.
        masks_rle (tuple[bytes, ...] or None): masks in the compressed run-length encoding (RLE) of COCO.
        file, pixels, orientation: as in `PredictionResult`.
    """

    width: int
    height: int
    boxes_xywh: np.ndarray
    category_ids: tuple[int, ...]
    masks_rle: tuple[bytes, ...] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: int | slice | Sequence[int] | Sequence[bool] | np.ndarray) -> DetectionResult:
        indices = np.atleast_1d(np.arange(len(self))[rows])
        columns = ["class_ids", "names", "scores", "category_ids", *([] if self.masks_rle is None else ["masks_rle"])]
        selected = {column: tuple(getattr(self, column)[i] for i in indices) for column in columns}
        return replace(self, boxes_xywh=self.boxes_xywh[indices], **selected)

    @property
    def boxes_xyxy(self) -> np.ndarray:
        """ndarray: boxes as (left, top, right, bottom) in pixels, shape (N, 4), float64."""
        return np.concatenate((self.boxes_xywh[:, :2], self.boxes_xywh[:, :2] + self.boxes_xywh[:, 2:]), axis=1)

    @property
    def masks(self) -> np.ndarray | None:
        """ndarray or None: masks, shape (N, h, w), bool. None if the model does not predict masks.

        Each access decodes all masks. To decode only one mask, use `mask`.
        """
        if self.masks_rle is None:
            return None
        masks = [self.mask(i) for i in range(len(self))]
        return np.array(masks, bool).reshape(len(self), self.height, self.width)

    def mask(self, i: int) -> np.ndarray:
        """Decode the mask of one object.

        Args:
            i (int): index of the object.

        Returns:
            ndarray: mask, shape (h, w), bool.

        Raises:
            ValueError: if the result has no masks.
        """
        from hotcoco.mask import decode

        return decode(self.rle(i)).astype(bool)

    def rle(self, i: int) -> dict[str, Any]:
        """Return the mask of one object in the run-length encoding (RLE) of COCO, which pycocotools accepts.

        Args:
            i (int): index of the object.

        Returns:
            dict[str, Any]: ``{"size": [h, w], "counts": str}``.

        Raises:
            ValueError: if the result has no masks.
        """
        if self.masks_rle is None:
            raise ValueError("masks are required, and these detections have only boxes")
        return {"size": [self.height, self.width], "counts": self.masks_rle[i].decode("ascii")}

    def filter(
        self, classes: str | int | Iterable[str | int] | None = None, *, max_detections: int | None = None
    ) -> DetectionResult:
        """Select objects by class and limit their number.

        Example::

            people = result.filter("person", max_detections=10)

        Args:
            classes (str, int, or iterable, optional): class names or class indices to keep. Default: all classes
            max_detections (int, optional): maximum number of objects to keep, best first. Default: no limit

        Returns:
            DetectionResult: the selected objects, in the same order.

        Raises:
            ValueError: if `max_detections` is negative.
        """
        if max_detections is not None and max_detections < 0:
            raise ValueError(f"max_detections must be 0 or more, got {max_detections}")
        wanted = {classes} if isinstance(classes, str | int) else None if classes is None else set(classes)
        rows = [
            i for i, pair in enumerate(zip(self.names, self.class_ids)) if wanted is None or not wanted.isdisjoint(pair)
        ]
        return self[rows[:max_detections]]

    def summary(self, score_threshold: float = SCORE_THRESHOLD) -> str:
        """Describe the best five objects and the number of other objects on one line.

        Args:
            score_threshold (float): minimum score of the objects that are counted. Default: 0.3

        Returns:
            str: class names and scores, best first.
        """
        count = sum(score >= score_threshold for score in self.scores)
        if not count:
            return f"no detections with a score of {score_threshold:g} or more"
        best = "  ".join(f"{name} {score:.2f}" for name, score in zip(self.names[: min(count, 5)], self.scores))
        return best + (f"  and {count - 5} more" if count > 5 else "")

    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw the box and, if available, the mask of each object.

        The arguments are those of `PredictionResult.draw`.
        """
        from paceline.inference.drawing.boxes import Annotation, draw_annotations

        marks = []
        rows = zip(self.boxes_xywh.tolist(), self.class_ids, self.names, self.scores)
        for i, (box, class_id, name, score) in enumerate(rows):
            if score >= score_threshold:
                mask = None if self.masks_rle is None else self.rle(i)
                marks.append(Annotation(tuple(box), class_id + 1, f"{name} {score:.2f}" if labels else "", mask=mask))
        if max_side:
            return draw_annotations(self.pixels(), marks, width=max_side, height=max_side)
        side = min(max(self.width, self.height, SMALLEST, round(ROOM * len(marks) ** 0.5)), LARGEST)
        legend = {class_id + 1: name for class_id, name in zip(self.class_ids, self.names)}
        return draw_annotations(self.pixels(), marks, width=side, height=side, legend=legend)

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary with the keys `width`, `height`, and `detections`.

        Each detection has ``category_id``, ``name``, ``bbox`` (left, top, width, and height in pixels, rounded to 0.01), and ``score``
        (rounded to 0.00001). If the model predicts masks, it also has ``segmentation`` (run-length encoding).
        """
        boxes = [[round(edge, 2) for edge in box] for box in self.boxes_xywh.tolist()]
        rows = zip(self.category_ids, self.names, boxes, self.scores)
        detections = [
            {"category_id": category, "name": name, "bbox": box, "score": round(score, 5), **self._segmentation(i)}
            for i, (category, name, box, score) in enumerate(rows)
        ]
        return {"width": self.width, "height": self.height, "detections": detections}

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Convert the objects to entries of a COCO result file.

        To score several images, concatenate their lists and pass the result to ``COCO.loadRes``.

        Args:
            image_id (int): id of the image in the annotation file.

        Returns:
            list[dict[str, Any]]: one entry per object with ``image_id``, ``category_id``, ``bbox``, ``score``, and, if the model
            predicts masks, ``segmentation``. Numbers are not rounded.
        """
        rows = zip(self.category_ids, self.boxes_xywh.tolist(), self.scores)
        return [
            {"image_id": image_id, "category_id": category, "bbox": box, "score": score, **self._segmentation(i)}
            for i, (category, box, score) in enumerate(rows)
        ]

    def _segmentation(self, i: int) -> dict[str, Any]:
        """Return the dictionary entry with the mask of object `i`, or {} if the result has no masks."""
        return {} if self.masks_rle is None else {"segmentation": self.rle(i)}

    def crops(self, *, margin: float = 0.0) -> list[np.ndarray]:
        """Crop each object from the image.

        The box is rounded outward to whole pixels and clipped to the image. The image is decoded once for all objects.

        Args:
            margin (float): enlarge the box on each side by this fraction of its width or height. Default: 0.0

        Returns:
            list[ndarray]: one uint8 array of shape (height, width, 3) in RGB order per object. If a box is outside the image, its
            array is empty.

        Raises:
            DataError: if the image cannot be read again.
        """
        pixels, boxes = self.pixels(), self.boxes_xyxy
        more = margin * self.boxes_xywh[:, 2:]
        low = np.floor(boxes[:, :2] - more).clip(0).astype(int)
        high = np.ceil(boxes[:, 2:] + more).clip(0).astype(int)
        return [pixels[top:bottom, left:right] for (left, top), (right, bottom) in zip(low.tolist(), high.tolist())]

    def to_supervision(self) -> Any:
        """Convert the objects to `supervision.Detections`.

        Returns:
            supervision.Detections: boxes, scores, class indices from 0, masks if available, and class names in ``data["class_name"]``.

        Raises:
            PacelineError: if the package supervision is not installed.
        """
        try:
            import supervision  # type: ignore[import-not-found]
        except ImportError:
            raise PacelineError("to_supervision: supervision is not installed:  pip install supervision") from None
        return supervision.Detections(
            xyxy=self.boxes_xyxy.astype(np.float32),
            confidence=np.array(self.scores, np.float32),
            class_id=np.array(self.class_ids, int),
            mask=self.masks,
            data={"class_name": np.array(self.names, str)},
        )

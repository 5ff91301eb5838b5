"""The result of prediction for one image, with one class per kind of task.

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
    """Base class of the result for one image. What it found is sorted by score, best first.

    Attributes:
        class_ids (tuple[int, ...]): class indices, from 0 to K - 1: indices into `Predictor.classes`.
        names (tuple[str, ...]): class names.
        scores (tuple[float, ...]): class probabilities.
        file (str): path of the image, or "" if the image was given as bytes or pixels.
        pixels (Callable): function that reads the image as the network saw it and returns an array of shape (h, w, 3),
            uint8, in RGB order.
        orientation (int): EXIF orientation of the image, 1 (upright) to 8. The field ``input.exif`` of the recipe decides
            whether the pixels are rotated accordingly.
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
            score_threshold (float): count only objects with at least this score. Ignored for classification.

        Returns:
            str: class names and scores, best first.
        """

    @abstractmethod
    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw the result on the image. An image that was given as a path is read again.

        Args:
            score_threshold (float): draw only objects with at least this score.
            labels (bool): write class names and scores.
            max_side (int): length of the longer side of the picture in pixels, for pictures of one size; tiny images stay
                smaller. 0 chooses a size for the number of objects, and may add a legend below the image.

        All arguments are ignored for classification.

        Returns:
            PIL.Image.Image: an RGB picture.

        Raises:
            DataError: if the image cannot be read again.
        """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary that ``json.dumps`` accepts: the entry of the image in predictions.json.

        Returns:
            dict: the fields that the subclass documents.
        """

    def save(self, path: str | Path) -> None:
        """Write the picture that `draw` returns to an image file.

        Args:
            path (str or Path): file to write. Its suffix selects the format.

        Raises:
            DataError: if the image cannot be read again.
            OSError: if the file cannot be written.
            ValueError: if the suffix is not a known image format.
        """
        self.draw().save(path)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ClassificationResult(PredictionResult):
    """The classes of one image with the highest scores, at most five, best first.

    Attributes:
        class_ids, names, scores (tuple): index, name, and softmax probability of each class. See `PredictionResult`.
        file, pixels, orientation: see `PredictionResult`.
    """

    def summary(self, score_threshold: float = SCORE_THRESHOLD) -> str:
        """Describe the best three classes and their probabilities on one line. `score_threshold` is ignored."""
        return "  ".join(f"{name} {100 * score:.1f}%" for name, score in zip(self.names[:3], self.scores))

    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw the image with one bar per class below it. All arguments are ignored."""
        from paceline.inference.drawing.rendering import draw_top5

        return draw_top5(self.pixels(), self.names, self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary with ``classes`` (indices from 0), ``names``, and ``scores``."""
        return {"classes": list(self.class_ids), "names": list(self.names), "scores": list(self.scores)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DetectionResult(PredictionResult):
    """The objects of one image, best first.

    ``len(result)`` is the number of objects. ``result[rows]`` selects objects: an index, a slice, a list of indices, or a
    boolean mask gives a new `DetectionResult`. Boxes may reach beyond the image, as they do in evaluation.

    Attributes:
        width, height (int): size of the image as the network saw it, in pixels.
        boxes_xywh (ndarray): boxes as (left, top, width, height) in pixels, shape (N, 4), float64.
        boxes_xyxy (ndarray): the same boxes as (left, top, right, bottom).
        class_ids, names, scores (tuple): class index (from 0), class name, and score of each object. See
            `PredictionResult`.
        category_ids (tuple[int, ...]): class of each object by its id in the annotation file of the training data, such as
            COCO's 1 to 90.
        masks (ndarray or None): masks, shape (N, h, w), bool. None if the model predicts boxes only.
        masks_rle (tuple[bytes, ...] or None): the same masks as COCO's compressed run-length encoding.
        file, pixels, orientation: see `PredictionResult`.
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
        """ndarray or None: masks, shape (N, h, w), bool. They are decoded at each access; `mask` decodes one of them."""
        if self.masks_rle is None:
            return None
        masks = [self.mask(i) for i in range(len(self))]
        return np.array(masks, bool).reshape(len(self), self.height, self.width)

    def mask(self, i: int) -> np.ndarray:
        """Decode the mask of object `i`.

        Args:
            i (int): index of the object.

        Returns:
            ndarray: the mask, shape (h, w), bool.

        Raises:
            ValueError: if the result has no masks.
        """
        from hotcoco.mask import decode

        return decode(self.rle(i)).astype(bool)

    def rle(self, i: int) -> dict[str, Any]:
        """Return the mask of object `i` in COCO's run-length encoding, as pycocotools accepts it.

        Args:
            i (int): index of the object.

        Returns:
            dict: ``{"size": [h, w], "counts": str}``.

        Raises:
            ValueError: if the result has no masks.
        """
        if self.masks_rle is None:
            raise ValueError("masks are required, and these detections have only boxes")
        return {"size": [self.height, self.width], "counts": self.masks_rle[i].decode("ascii")}

    def filter(
        self, classes: str | int | Iterable[str | int] | None = None, *, max_detections: int | None = None
    ) -> DetectionResult:
        """Select objects by class and number.

        Args:
            classes (str, int, or iterable, optional): class names or class indices to keep. None keeps all.
            max_detections (int, optional): keep at most this many objects, the best ones. None keeps all.

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
        """Describe the best five objects and the number of the others on one line.

        Args:
            score_threshold (float): count only objects with at least this score.

        Returns:
            str: class names and scores, best first.
        """
        count = sum(score >= score_threshold for score in self.scores)
        if not count:
            return f"no detections with a score of {score_threshold:g} or more"
        best = "  ".join(f"{name} {score:.2f}" for name, score in zip(self.names[: min(count, 5)], self.scores))
        return best + (f"  and {count - 5} more" if count > 5 else "")

    def draw(self, score_threshold: float = SCORE_THRESHOLD, *, labels: bool = True, max_side: int = 0) -> Image.Image:
        """Draw a box, and a mask if there is one, for each object. See `PredictionResult.draw` for the arguments."""
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
        """Convert the result to a dictionary with ``width``, ``height``, and ``detections``.

        Each detection has ``category_id``, ``name``, ``bbox`` (left, top, width, height in pixels, rounded to 0.01),
        ``score`` (rounded to 0.00001), and ``segmentation`` (run-length encoding) if there is a mask.
        """
        boxes = [[round(edge, 2) for edge in box] for box in self.boxes_xywh.tolist()]
        rows = zip(self.category_ids, self.names, boxes, self.scores)
        detections = [
            {"category_id": category, "name": name, "bbox": box, "score": round(score, 5), **self._segmentation(i)}
            for i, (category, name, box, score) in enumerate(rows)
        ]
        return {"width": self.width, "height": self.height, "detections": detections}

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Convert the objects to rows of a COCO result file. The joined rows of all images are a list for `COCO.loadRes`.

        Args:
            image_id (int): id of the image in the annotation file.

        Returns:
            list[dict]: one row per object with ``image_id``, ``category_id``, ``bbox``, ``score``, and ``segmentation`` if
            there is a mask. The numbers are not rounded.
        """
        rows = zip(self.category_ids, self.boxes_xywh.tolist(), self.scores)
        return [
            {"image_id": image_id, "category_id": category, "bbox": box, "score": score, **self._segmentation(i)}
            for i, (category, box, score) in enumerate(rows)
        ]

    def _segmentation(self, i: int) -> dict[str, Any]:
        """Return the entry of object `i` that holds its mask, {} if there is none."""
        return {} if self.masks_rle is None else {"segmentation": self.rle(i)}

    def crops(self, *, margin: float = 0.0) -> list[np.ndarray]:
        """Cut each object out of the image. Boxes are rounded outwards and clipped to the image. The image is read once.

        Args:
            margin (float): enlarge the box on each side by this fraction of its width and height.

        Returns:
            list[ndarray]: one array per object, shape (h, w, 3), uint8, RGB. A box outside the image gives an empty array.

        Raises:
            DataError: if the image cannot be read again.
        """
        pixels, boxes = self.pixels(), self.boxes_xyxy
        more = margin * self.boxes_xywh[:, 2:]
        low = np.floor(boxes[:, :2] - more).clip(0).astype(int)
        high = np.ceil(boxes[:, 2:] + more).clip(0).astype(int)
        return [pixels[top:bottom, left:right] for (left, top), (right, bottom) in zip(low.tolist(), high.tolist())]

    def to_supervision(self) -> Any:
        """Convert the objects to `supervision.Detections`, with class names in ``data["class_name"]``.

        Returns:
            supervision.Detections: boxes, scores, class indices from 0, and masks if there are any.

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

"""The result for one photo, a class for each kind: it prints, draws and records itself.

Letters: n objects   h, w pixels of the photo   K classes
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

# Smallest score of the objects that are printed and drawn unless another is named.
SHOWN_ABOVE = 0.3
# Pixels of the longer side of a picture with objects: small photos are enlarged for the names, large ones reduced.
SMALLEST, LARGEST = 640, 1600
# Where many are drawn the picture is larger, up to LARGEST: for n objects as long as a square of n fields of this side.
ROOM = 200


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PredictionResult(ABC):
    """What was found in one photo."""

    file: str  # path, or "" for a photo given as bytes or pixels
    pixels: Callable[[], np.ndarray]  # reads the photo as the network saw it: (h, w, 3) uint8 RGB
    # As EXIF has it, 1 (upright) to 8; the recipe's input.exif decides whether pixels are turned by it.
    orientation: int = 1

    def __repr__(self) -> str:
        return escape_line(f"<{type(self).__name__} in {self.file or 'the given photo'}: {self.line()}>")

    @abstractmethod
    def line(self, score_above: float = SHOWN_ABOVE) -> str:
        """What was found, on one line. `score_above` counts for objects."""

    @abstractmethod
    def draw(self, score_above: float = SHOWN_ABOVE, *, labels: bool = True, side: int = 0) -> Image.Image:
        """The photo with what was found, RGB. `score_above`, `labels` (names and scores) and `side` count for objects.

        side  pixels of the longer side, whatever was found, for pictures of one size; 0: as suits, maybe with a legend below

        A photo that was named by its path is read again. Raises DataError where that fails.
        """

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What was found, for a JSON file."""

    def save(self, path: str | Path) -> None:
        """Write `draw()` to an image file; its suffix names the format. Raises OSError, ValueError as PIL's save does."""
        self.draw().save(path)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ClassificationResult(PredictionResult):
    """The best five classes of one photo, best first."""

    classes: tuple[int, ...]  # 0..K-1
    names: tuple[str, ...]
    scores: tuple[float, ...]  # softmax probabilities

    def line(self, score_above: float = SHOWN_ABOVE) -> str:
        """The best three with their probabilities."""
        return "  ".join(f"{name} {100 * score:.1f} %" for name, score in zip(self.names[:3], self.scores))

    def draw(self, score_above: float = SHOWN_ABOVE, *, labels: bool = True, side: int = 0) -> Image.Image:
        """The photo with a bar for each of its classes below it."""
        from paceline.inference.drawing.rendering import draw_top5

        return draw_top5(self.pixels(), self.names, self.scores)

    def record(self) -> dict[str, Any]:
        """Class numbers, names and scores."""
        return {"classes": list(self.classes), "names": list(self.names), "scores": list(self.scores)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DetectionResult(PredictionResult):
    """The objects of one photo, best first; as evaluation scores them, so boxes may reach beyond the photo."""

    width: int  # of the photo as the network saw it, pixels
    height: int
    boxes: np.ndarray  # (n, 4) float64 left, top, width, height, pixels
    classes: tuple[int, ...]  # 1..K
    names: tuple[str, ...]
    scores: tuple[float, ...]  # class probabilities
    category_ids: tuple[int, ...]  # of each object, as the training set's annotation file numbers its class
    masks: tuple[bytes, ...] | None = None  # COCO's compressed run lengths; None: boxes alone

    def rle(self, i: int) -> dict[str, Any]:
        """The mask of object `i` as COCO's tools take it: {"size": [h, w], "counts": str}. ValueError where there is none."""
        if self.masks is None:
            raise ValueError("these objects have boxes and no masks")
        return {"size": [self.height, self.width], "counts": self.masks[i].decode("ascii")}

    def mask(self, i: int) -> np.ndarray:
        """(h, w) bool, the pixels of object `i`. Raises ValueError where there is no mask."""
        from hotcoco.mask import decode

        return decode(self.rle(i)).astype(bool)

    def only(self, classes: Iterable[str] | None = None, *, most: int | None = None) -> DetectionResult:
        """The best `most` objects of the named classes alone (None: all)."""
        wanted = None if classes is None else frozenset(classes)
        return self.at([i for i, name in enumerate(self.names) if wanted is None or name in wanted][:most])

    def at(self, rows: Sequence[int]) -> DetectionResult:
        """The objects of these numbers alone, in this order."""
        columns = ("classes", "names", "scores", "category_ids", *(() if self.masks is None else ("masks",)))
        kept = {column: tuple(getattr(self, column)[i] for i in rows) for column in columns}
        return replace(self, boxes=self.boxes[list(rows)], **kept)

    def line(self, score_above: float = SHOWN_ABOVE) -> str:
        """The best five with their scores, and how many more there are."""
        count = sum(score >= score_above for score in self.scores)
        if not count:
            return f"nothing with a score of {score_above:g} or more"
        best = "  ".join(f"{name} {score:.2f}" for name, score in zip(self.names[: min(count, 5)], self.scores))
        return best + (f"  and {count - 5} more" if count > 5 else "")

    def draw(self, score_above: float = SHOWN_ABOVE, *, labels: bool = True, side: int = 0) -> Image.Image:
        """The photo with a box, and a mask where there is one, for each object of this score; with names where labels."""
        from paceline.inference.drawing.boxes import Annotation, draw_annotations

        marks = []
        for i, (box, label, name, score) in enumerate(zip(self.boxes.tolist(), self.classes, self.names, self.scores)):
            if score >= score_above:
                mask = None if self.masks is None else self.rle(i)
                marks.append(Annotation(tuple(box), label, f"{name} {score:.2f}" if labels else "", mask=mask))
        if side:
            return draw_annotations(self.pixels(), marks, width=side, height=side)
        side = min(max(self.width, self.height, SMALLEST, round(ROOM * len(marks) ** 0.5)), LARGEST)
        legend = dict(zip(self.classes, self.names))
        return draw_annotations(self.pixels(), marks, width=side, height=side, legend=legend)

    def record(self) -> dict[str, Any]:
        """The photo's size, and each object with its category's id, name, box, score and mask; numbers are rounded."""
        detections = [
            {
                "category_id": category,
                "name": name,
                "bbox": [round(edge, 2) for edge in box],
                "score": round(score, 5),
                **({} if self.masks is None else {"segmentation": self.rle(i)}),
            }
            for i, (category, name, box, score) in enumerate(
                zip(self.category_ids, self.names, self.boxes.tolist(), self.scores)
            )
        ]
        return {"width": self.width, "height": self.height, "detections": detections}

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """The objects as rows of a COCO result file: joined over the photos, a list that `COCO.loadRes` takes.

        image_id  the photo's id in the annotation file
        """
        rows = zip(self.category_ids, self.boxes.tolist(), self.scores)
        return [
            {
                "image_id": image_id,
                "category_id": category,
                "bbox": box,
                "score": score,
                **({} if self.masks is None else {"segmentation": self.rle(i)}),
            }
            for i, (category, box, score) in enumerate(rows)
        ]

    def crop(self, *, margin: float = 0.0) -> list[np.ndarray]:
        """Each object's pixels, (h, w, 3) uint8 RGB: its box, cut at the photo's edges and rounded outwards; the photo is read once.

        margin  more on each side, as a share of the box's width and height
        A box that lies beside the photo gives an array without pixels. Raises DataError as `draw`.
        """
        pixels = self.pixels()
        more = margin * self.boxes[:, 2:]
        low = np.floor(self.boxes[:, :2] - more).clip(0).astype(int)
        high = np.ceil(self.boxes[:, :2] + self.boxes[:, 2:] + more).clip(0).astype(int)
        return [pixels[top:bottom, left:right] for (left, top), (right, bottom) in zip(low.tolist(), high.tolist())]

    def to_supervision(self) -> Any:
        """The objects as `supervision.Detections`: corners, scores, masks where there are any, and class names.

        Its class_id counts from 0: the place in the predictor's `classes`. Raises PacelineError where supervision is not installed.
        """
        try:
            import supervision  # type: ignore[import-not-found]
        except ImportError:
            raise PacelineError("to_supervision: supervision is not installed. pip install supervision") from None
        corners = np.concatenate((self.boxes[:, :2], self.boxes[:, :2] + self.boxes[:, 2:]), axis=1)
        shape = (len(self.scores), self.height, self.width)
        return supervision.Detections(
            xyxy=corners.astype(np.float32),
            confidence=np.array(self.scores, np.float32),
            class_id=np.array(self.classes, int) - 1,
            mask=None if self.masks is None else np.array([self.mask(i) for i in range(shape[0])], bool).reshape(shape),
            data={"class_name": np.array(self.names, str)},
        )

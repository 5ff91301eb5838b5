"""A detector's boxes for photos.

Letters: N photos   S side of the network's input   D places for detections   n boxes found   K classes, 1..K
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.batch.batch import Batch
from paceline.data.box_sample import read_evaluation_sample
from paceline.data.header import read_header
from paceline.evaluate import inference
from paceline.predict.photos import Photo, encoded, name_of
from paceline.tasks.box_predictions import to_detections
from paceline.trained import Trained


@dataclass(frozen=True)
class Found:
    """The boxes of one photo, best first; as evaluation scores them, so they may reach beyond the photo."""

    file: str  # path, or "" for a photo given as pixels
    width: int  # of the photo as it is stored (EXIF orientation is ignored), pixels
    height: int
    boxes: np.ndarray  # (n, 4) float64 left, top, width, height, pixels
    classes: tuple[int, ...]  # 1..K
    names: tuple[str, ...]
    scores: tuple[float, ...]  # class probabilities


class BoxPredictor:
    """A trained detector that finds objects in photos."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @property
    def classes(self) -> tuple[str, ...]:
        """Readable names; class k is classes[k - 1]."""
        return self.trained.classes

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        return self.trained.category_ids

    def predict(self, photos: Sequence[Photo], *, batch: int = 8) -> list[Found]:
        """What was found, in the photos' order. A photo is a path, an (H, W, 3) uint8 RGB array or a PIL image.

        Raises DataError naming a photo that cannot be decoded.
        """
        return list(self.findings(photos, batch=batch))

    def findings(self, photos: Sequence[Photo], *, batch: int = 8) -> Iterator[Found]:
        """As `predict`, one after the other."""
        settings, detect = self.trained.recipe.input, self.trained.recipe.model.detect
        for start in range(0, len(photos), batch):
            part = photos[start : start + batch]
            pixels = np.empty((len(part), settings.size, settings.size, 3), np.uint8)
            headers = []
            for slot, photo in zip(pixels, part):
                data, name = encoded(photo)
                headers.append(read_header(data, name))
                read_evaluation_sample(data, name, settings, slot)
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.trained.device)
            none = torch.zeros(len(part), dtype=torch.int64, device=self.trained.device)
            with inference(self.trained.model), self.trained.autocast():
                outputs = self.trained.model.predict(Batch(images, none, none)).cpu().numpy()  # type: ignore[operator]
            for photo, header, rows in zip(part, headers, outputs):
                rows = rows[rows[:, 5] > 0].astype(np.float64)
                one = np.column_stack((np.zeros(len(rows)), rows))  # image number 0: each photo stands alone
                found = to_detections(one, np.array([header.height]), np.array([header.width]), detect.plus_one)
                order = np.argsort(-found.scores, kind="stable")
                classes = found.classes[order].tolist()
                yield Found(
                    name_of(photo),
                    header.width,
                    header.height,
                    found.boxes[order],
                    tuple(classes),
                    tuple(self.classes[label - 1] for label in classes),
                    tuple(found.scores[order].tolist()),
                )

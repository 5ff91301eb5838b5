"""A detector's boxes for photos.

Letters: N photos   S side of the network's input   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from paceline.batch.batch import Batch
from paceline.data.box_sample import read_evaluation_sample
from paceline.data.header import Header
from paceline.data.orientation import orientation_of
from paceline.evaluate import inference
from paceline.predict.photos import Photo, encoded, header_of, name_of, whole_photo
from paceline.predict.predictor import Predictor
from paceline.predict.results import Found
from paceline.tasks.box_predictions import to_detections


class _Read(NamedTuple):
    photo: Photo
    header: Header
    orientation: int
    pixels: np.ndarray  # (S, S, 3) uint8


class BoxPredictor(Predictor[Found, _Read]):
    """A trained detector that finds objects in photos."""

    batch, finds_objects = 8, True

    def _read(self, photo: Photo) -> _Read:
        settings = self.trained.recipe.input
        data, name = encoded(photo)
        header = header_of(data, name, settings)
        pixels = np.empty((settings.size, settings.size, 3), np.uint8)
        read_evaluation_sample(data, name, settings, pixels)
        return _Read(photo, header, orientation_of(data), pixels)

    def _answers(self, part: Sequence[_Read]) -> list[Found]:
        if not part:
            return []
        images = torch.from_numpy(np.stack([read.pixels for read in part])).permute(0, 3, 1, 2).to(self.trained.device)
        none = torch.zeros(len(part), dtype=torch.int64, device=self.trained.device)
        with inference(self.trained.model), self.trained.autocast():
            outputs = self.trained.model.predict(Batch(images, none, none)).cpu().numpy()  # type: ignore[operator]
        return [self._found(read, rows) for read, rows in zip(part, outputs)]

    def _found(self, read: _Read, rows: np.ndarray) -> Found:
        """rows: (D, 6) of one photo."""
        rows = rows[rows[:, 5] > 0].astype(np.float64)
        one = np.column_stack((np.zeros(len(rows)), rows))  # image number 0: each photo stands alone
        plus_one = self.trained.recipe.model.detect.plus_one
        found = to_detections(one, np.array([read.header.height]), np.array([read.header.width]), plus_one)
        order = np.argsort(-found.scores, kind="stable")
        classes = found.classes[order].tolist()
        return Found(
            file=name_of(read.photo),
            pixels=partial(whole_photo, read.photo, self.trained.recipe.input),
            orientation=read.orientation,
            width=read.header.width,
            height=read.header.height,
            boxes=found.boxes[order],
            classes=tuple(classes),
            names=tuple(self.classes[label - 1] for label in classes),
            scores=tuple(found.scores[order].tolist()),
            category_ids=tuple(self.category_ids[label - 1] for label in classes),
        )

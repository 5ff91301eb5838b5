"""A classifier's answers for photos.

Letters: S side of the network's input
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from paceline.batch.batch import Batch
from paceline.data.orientation import orientation_of
from paceline.evaluate import inference
from paceline.metrics.top_k import best_classes
from paceline.predict.photos import Photo, encoded, name_of, whole_photo
from paceline.predict.predictor import Predictor
from paceline.predict.results import Answer
from paceline.tasks.classification import read_for_evaluation


class _Read(NamedTuple):
    photo: Photo
    orientation: int
    pixels: np.ndarray  # (S, S, 3) uint8


class ClassPredictor(Predictor[Answer, _Read]):
    """A trained classifier that answers for photos."""

    batch, finds_objects = 32, False

    def _read(self, photo: Photo) -> _Read:
        settings = self.trained.recipe.input
        pixels = np.empty((settings.eval_size, settings.eval_size, 3), np.uint8)
        data, name = encoded(photo)
        read_for_evaluation(data, name, settings, pixels)
        return _Read(photo, orientation_of(data), pixels)

    def _answers(self, part: Sequence[_Read]) -> list[Answer]:
        if not part:
            return []
        images = torch.from_numpy(np.stack([read.pixels for read in part])).permute(0, 3, 1, 2).to(self.trained.device)
        none = torch.zeros(len(part), dtype=torch.int64, device=self.trained.device)
        with inference(self.trained.model), self.trained.autocast():
            classes, scores = best_classes(self.trained.model.predict(Batch(images, none, none)))  # type: ignore[operator]
        return [
            Answer(
                file=name_of(read.photo),
                pixels=partial(whole_photo, read.photo, self.trained.recipe.input),
                orientation=read.orientation,
                classes=tuple(best),
                names=tuple(self.classes[index] for index in best),
                scores=tuple(values),
            )
            for read, best, values in zip(part, classes.tolist(), scores.tolist())
        ]

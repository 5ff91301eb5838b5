"""A classifier's answers for photos.

Letters: N photos   S side of the network's input
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.batch.batch import Batch
from paceline.evaluate import inference
from paceline.metrics.top_k import best_classes
from paceline.predict.photos import Photo, encoded, name_of
from paceline.tasks.classification import read_for_evaluation
from paceline.trained import Trained


@dataclass(frozen=True)
class Answer:
    """The best five classes of one photo, best first."""

    file: str  # path, or "" for a photo given as pixels
    classes: tuple[int, ...]
    names: tuple[str, ...]
    scores: tuple[float, ...]  # softmax probabilities


class ClassPredictor:
    """A trained classifier that answers for photos."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @property
    def classes(self) -> tuple[str, ...]:
        """Readable class names, by class index."""
        return self.trained.classes

    def predict(self, photos: Sequence[Photo], *, batch: int = 32) -> list[Answer]:
        """Answers in the photos' order. A photo is a path, an (H, W, 3) uint8 RGB array or a PIL image.

        Raises DataError naming a photo that cannot be decoded.
        """
        return list(self.answers(photos, batch=batch))

    def answers(self, photos: Sequence[Photo], *, batch: int = 32) -> Iterator[Answer]:
        """As `predict`, one after the other."""
        settings = self.trained.recipe.input
        for start in range(0, len(photos), batch):
            part = photos[start : start + batch]
            pixels = np.empty((len(part), settings.eval_size, settings.eval_size, 3), np.uint8)
            for slot, photo in zip(pixels, part):
                read_for_evaluation(*encoded(photo), settings, slot)
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.trained.device)
            none = torch.zeros(len(part), dtype=torch.int64, device=self.trained.device)
            with inference(self.trained.model), self.trained.autocast():
                classes, scores = best_classes(self.trained.model.predict(Batch(images, none, none)))  # type: ignore[operator]
            for photo, best, values in zip(part, classes.tolist(), scores.tolist()):
                yield Answer(name_of(photo), tuple(best), tuple(self.classes[index] for index in best), tuple(values))

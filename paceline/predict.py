"""Prediction on photos: `paceline.load(RUN).predict(["cat.jpg"])`.

Letters: N photos   S side of the network's input
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from paceline.batch.batch import Batch
from paceline.config.errors import DataError
from paceline.evaluate import inference
from paceline.metrics.top_k import best_classes
from paceline.tasks.classification import read_for_evaluation
from paceline.trained import Trained, open_trained

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
Photo = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True)
class Answer:
    """The best five classes of one photo, best first."""

    file: str  # path, or "" for a photo given as pixels
    classes: tuple[int, ...]
    names: tuple[str, ...]
    scores: tuple[float, ...]  # softmax probabilities


class Predictor:
    """A trained run that answers for photos."""

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
                read_for_evaluation(*_encoded(photo), settings, slot)
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.trained.device)
            none = torch.zeros(len(part), dtype=torch.int64, device=self.trained.device)
            with inference(self.trained.model):
                classes, scores = best_classes(self.trained.model.predict(Batch(images, none, none)))  # type: ignore[operator]
            for photo, best, values in zip(part, classes.tolist(), scores.tolist()):
                name = str(photo) if isinstance(photo, str | Path) else ""
                yield Answer(name, tuple(best), tuple(self.classes[index] for index in best), tuple(values))


def load(run: str | Path, *, checkpoint: str = "best") -> Predictor:
    """Open a run folder for prediction.

    checkpoint  best, last or step-N
    Raises UserError for a folder that is no run, CheckpointError for a damaged checkpoint.
    """
    return Predictor(open_trained(Path(run), checkpoint=checkpoint))


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """The named photos, and every photo directly in a named folder, in name order.

    Raises DataError for a path that is not there and for a folder without photos.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(f"{path}: no photos in this folder (looked for {', '.join(SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path}: there is no such file or folder.")
    return found


def _encoded(photo: Photo) -> tuple[bytes, str]:
    """A photo's encoded bytes and its name; pixels are encoded without loss, so that all photos take one path."""
    if isinstance(photo, str | Path):
        try:
            return Path(photo).read_bytes(), str(photo)
        except OSError as problem:
            raise DataError(f"{photo}: cannot be read ({problem.strerror}).") from None
    if isinstance(photo, np.ndarray) and not (
        photo.dtype == np.uint8 and photo.ndim == 3 and photo.shape[2] == 3 and photo.size
    ):
        raise DataError(f"a photo given as an array must be (H, W, 3) uint8 RGB, not {photo.shape} {photo.dtype}.")
    image = photo if isinstance(photo, Image.Image) else Image.fromarray(photo)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="BMP")
    return buffer.getvalue(), "the given photo"

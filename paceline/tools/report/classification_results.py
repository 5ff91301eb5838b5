"""Read a classifier's predictions: which photos to show, how good each class is, which classes are taken for which.

A predictions file, RUN/predictions/step-*.json:
    {"step": 350, "kind": "classification", "classes": [name, ...],
     "images": [{"index": 17, "file": path, "label": 3, "top5": [{"class": 3, "score": 0.91}, ...]}, ...]}
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from paceline.config.resnet import Exif
from paceline.inference.drawing.rendering import encode_jpeg_uri, read_rgb
from paceline.tools.report.gallery import class_pair, interleave

# Photos in the report are squares of this many pixels: sharp at twice the density of the page.
TILE = 232
# A mislabeled or odd class would fill the page alone; from each pair of classes so many wrong answers are shown.
MAX_OF_A_PAIR = 6


@dataclass(frozen=True)
class ImageClassification:
    """One photo's prediction; answers: (class name, score), best first."""

    file: str
    truth: str
    answers: tuple[tuple[str, float], ...]
    label: int = 0  # number of the true class and of the best answer's, 1..K
    guess: int = 0

    @property
    def pair(self) -> str:
        """The mark of its cell in the confusion matrix."""
        return class_pair(self.label, self.guess)

    @property
    def best(self) -> str:
        """The predicted class."""
        return self.answers[0][0]

    @property
    def right(self) -> bool:
        """Whether the best answer is the truth."""
        return self.best == self.truth


def read_answers(predictions: Mapping[str, Any], root: Path) -> list[ImageClassification]:
    """Every image of a classification predictions file that has an answer; relative files lie in `root`.

    Of a damaged file raises ValueError, LookupError or TypeError.
    """
    names = [str(name) for name in predictions["classes"]]
    return [
        ImageClassification(
            file=str(root / image["file"]),
            truth=names[image["label"]],
            answers=tuple((names[answer["class"]], float(answer["score"])) for answer in image["top5"]),
            label=range(len(names)).index(image["label"]) + 1,
            guess=range(len(names)).index(image["top5"][0]["class"]) + 1,
        )
        for image in predictions["images"]
        if image["top5"]
    ]


def select_wrong(answers: Iterable[ImageClassification], most: int) -> list[ImageClassification]:
    """Wrong answers, pairs of truth and prediction by turns, the frequent ones first; of a pair the surest, at most MAX_OF_A_PAIR."""
    pairs: dict[tuple[str, str], list[ImageClassification]] = defaultdict(list)
    for answer in sorted((answer for answer in answers if not answer.right), key=lambda answer: -answer.answers[0][1]):
        pairs[answer.truth, answer.best].append(answer)
    ranked = sorted(pairs.values(), key=len, reverse=True)
    return list(islice(interleave([group[:MAX_OF_A_PAIR] for group in ranked]), most))


def select_right(answers: Iterable[ImageClassification], most: int) -> list[ImageClassification]:
    """Right answers, classes by turns; of each class the one of median score first: neither luck nor a showpiece."""
    by_class: dict[str, list[ImageClassification]] = defaultdict(list)
    for answer in answers:
        if answer.right:
            by_class[answer.truth].append(answer)
    queues = []
    for _, group in sorted(by_class.items()):
        group.sort(key=lambda answer: answer.answers[0][1])
        middle = len(group) // 2
        queues.append(group[middle:] + group[:middle])
    return list(islice(interleave(queues), most))


def count_classes(answers: Iterable[ImageClassification], classes: int) -> np.ndarray:
    """(K+1, K+1): photos of a class (row) taken for a class (column); row and column 0 are empty."""
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    for answer in answers:
        counts[answer.label, answer.guess] += 1
    return counts


def class_accuracies(answers: Iterable[ImageClassification]) -> list[tuple[str, int, int]]:
    """(class, right, images) for every class that has images, the worst first."""
    images: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for answer in answers:
        images[answer.truth] += 1
        right[answer.truth] += answer.right
    rows = [(name, right[name], count) for name, count in images.items()]
    return sorted(rows, key=lambda row: (row[1] / row[2], row[0]))


def add_images(answers: Sequence[ImageClassification], exif: Exif) -> list[tuple[ImageClassification, str]]:
    """Each answer with its photo, a small JPEG data URI; "" where the file cannot be read."""
    return [(answer, _thumbnail(answer.file, exif)) for answer in answers]


def _thumbnail(file: str, exif: Exif) -> str:
    """A square JPEG of the photo's middle, about what the network sees."""
    photo = read_rgb(file, exif, least=(2 * TILE, 2 * TILE))
    if photo is None:  # the data may have moved since: the page says "no photo"
        return ""
    return encode_jpeg_uri(ImageOps.fit(photo, (TILE, TILE), Image.Resampling.LANCZOS), quality=82)

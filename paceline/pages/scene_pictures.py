"""A detector's photos as the page shows them: what was found on the left, what is annotated on the right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from paceline.config.classification import Exif
from paceline.pages.detected import FREE, Scene
from paceline.pages.marks import Mark, beside, largest_first
from paceline.pages.masks import RunLengths
from paceline.pages.pictures import jpeg_uri
from paceline.pages.stored_photo import read_rgb

# Each half of a picture fits into this many pixels: legible at the width that the page gives it.
HALF_WIDTH, HALF_HEIGHT = 400, 300
# A crowded photo would be nothing but frames.
MOST_FOUND = 40


def with_pictures(scenes: Sequence[Scene], names: Sequence[str], exif: Exif) -> list[tuple[Scene, str]]:
    """Each photo with its picture, a JPEG data URI with boxes and masks; "" where the file cannot be read.

    names  of classes 1..K
    exif   how the run took photos that lie turned
    """
    return [(scene, _picture(scene, names, exif)) for scene in scenes]


def _picture(scene: Scene, names: Sequence[str], exif: Exif) -> str:
    """Predictions beside annotations as a JPEG data URI; a dashed box has no counterpart on the other side."""
    pixels = read_rgb(scene.file, exif, least=(2 * HALF_WIDTH, 2 * HALF_HEIGHT))
    if pixels is None:  # the data may have moved since: the page says so
        return ""
    across, down = pixels.width / scene.width, pixels.height / scene.height
    scale = np.array([across, down, across, down])
    taken = set(scene.partners.tolist())
    hues = scene.hues
    found = [
        _mark(box * scale, label, f"{names[label - 1]} {score:.2f}", partner == FREE, mask, hue)
        for box, label, score, partner, mask, hue in zip(
            scene.boxes, scene.labels.tolist(), scene.scores, scene.partners, scene.masks or repeat(None), hues[0]
        )
    ]
    there = [
        _mark(
            box * scale,
            label,
            names[int(label) - 1] + (" (crowd)" if crowd else ""),
            not crowd and number not in taken,
            mask,
            hue,
        )
        for number, (box, label, crowd, mask, hue) in enumerate(
            zip(scene.truth, scene.truth_labels.tolist(), scene.crowd, scene.truth_masks or repeat(None), hues[1])
        )
    ]
    return jpeg_uri(beside(pixels, found[:MOST_FOUND], largest_first(there), width=HALF_WIDTH, height=HALF_HEIGHT))


def _mark(box: np.ndarray, label: int, text: str, alone: bool, mask: RunLengths | None, hue: int) -> Mark:
    left, top, width, height = box.tolist()
    return Mark((left, top, width, height), label, text, "dashed" if alone else "solid", mask, hue)

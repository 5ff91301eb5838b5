"""Do annotations count with the EXIF rotation of their photos? Told by the sizes that they name.

A photo that lies on its side has one size as it is stored and another as it is shown. Which of them the annotations name is
how whoever drew the boxes saw it, and how a recipe must read it: `--input.exif ignore` (as stored) or `apply` (as shown).
YOLO's fractions name no sizes, squares and photos that are turned by half have only one: nothing is told then.

Letters: N images of one split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from paceline.config.errors import DataError
from paceline.config.printable import some
from paceline.datasets.formats.annotations import Annotations
from paceline.datasets.formats.layouts import Layout
from paceline.datasets.inspection import Inspection
from paceline.store.orientation import UPRIGHT, lies_on_its_side, orientations

Reading = Literal["", "apply", "ignore"]

MOST_NAMED = 5


def shown_sizes(rows: np.ndarray, found: Inspection) -> tuple[np.ndarray, np.ndarray]:
    """(N,) heights and (N,) widths of the photos as they are shown, pixels.

    rows  (N,) of the files in `found`
    """
    heights, widths = found.heights[rows], found.widths[rows]
    side = lies_on_its_side(orientations(found.flags[rows]))
    return np.where(side, widths, heights), np.where(side, heights, widths)


def frame_sizes(rows: np.ndarray, found: Inspection, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """(N,) heights and (N,) widths of the photos in the frame that their boxes were drawn in, pixels."""
    return shown_sizes(rows, found) if reading == "apply" else (found.heights[rows], found.widths[rows])


def check_sizes(annotations: Annotations, rows: np.ndarray, found: Inspection) -> None:
    """Boxes are in pixels of the size that the annotations name, so the files must have it, stored or shown.

    Raises DataError naming the first that has neither.
    """
    wrong = ~_fits(annotations, found.heights[rows], found.widths[rows]) & ~_fits(
        annotations, *shown_sizes(rows, found)
    )
    if not wrong.any():
        return
    i = int(np.flatnonzero(wrong)[0])
    raise DataError(
        f"{annotations.images_folder / annotations.file_names[i]}: {found.widths[rows][i]} x {found.heights[rows][i]} pixels, "
        f"and {annotations.source} says {annotations.widths[i]} x {annotations.heights[i]}; so with "
        f"{int(wrong.sum()):,} of {len(wrong):,} images. Its boxes would lie wrong. "
        "Use the images that were annotated, at their size."
    )


def reading_of(layout: Layout, splits: Mapping[str, tuple[Annotations, np.ndarray]], found: Inspection) -> Reading:
    """Which reading of rotated photos the annotations fit; "" where nothing tells.

    splits  of each split, what was annotated and the rows of its files in `found`; their sizes were checked
    Raises DataError where some fit one reading alone, and some the other.
    """
    if layout == "yolo":
        return ""  # the sizes are the files' own
    only: dict[str, list[str]] = {"apply": [], "ignore": []}
    for split, rows in splits.values():
        as_stored = _fits(split, found.heights[rows], found.widths[rows])
        as_shown = _fits(split, *shown_sizes(rows, found))
        for reading, telling in (("apply", as_shown & ~as_stored), ("ignore", as_stored & ~as_shown)):
            only[reading] += [str(split.images_folder / split.file_names[i]) for i in np.flatnonzero(telling)]
    if only["apply"] and only["ignore"]:
        raise DataError(
            f"{only['apply'][0]}: of the photos with an EXIF rotation, {len(only['apply']):,} have annotations that fit them as "
            f"they are shown, this one first, and {len(only['ignore']):,} as they are stored, {only['ignore'][0]} first; "
            "no recipe reads both right. Store the pixels of all photos upright and export the annotations again:\n"
            "  mogrify -auto-orient FILES"
        )
    return "apply" if only["apply"] else "ignore" if only["ignore"] else ""


def notes_on_rotation(
    layout: Layout, splits: Mapping[str, tuple[Annotations, np.ndarray]], found: Inspection, reading: Reading
) -> list[str]:
    """A line for people where photos carry an EXIF rotation: how many, and which recipes read them right."""
    names = [
        split.file_names[i]
        for split, rows in splits.values()
        for i in np.flatnonzero(orientations(found.flags[rows]) != UPRIGHT)
    ]
    if not names:
        return []
    photos = f"{len(names):,} photo{' carries' if len(names) == 1 else 's carry'} an EXIF rotation ({some(names, MOST_NAMED)})"
    if reading == "apply":
        what = "their annotations fit the photos as shown: train with --input.exif apply, as the custom and tiny recipes do"
    elif reading == "ignore":
        what = "their annotations fit the photos as stored: train with --input.exif ignore, as the published recipes do"
    else:
        why = "YOLO labels name no sizes" if layout == "yolo" else "the annotated sizes do not tell the two apart"
        what = (
            f"{why}, so look at them in check.html, which shows photos upright: where boxes lie right, train with "
            "--input.exif apply (the custom and tiny recipes do), where not, with --input.exif ignore"
        )
    return [f"{photos}; {what}"]


def _fits(annotations: Annotations, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """(N,) bool: the sizes are those that the annotations name; a side that they do not name fits anything."""
    return ((annotations.heights == 0) | (annotations.heights == heights)) & (
        (annotations.widths == 0) | (annotations.widths == widths)
    )

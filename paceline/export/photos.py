"""Photos to compare a form's answers on, as its graph takes them.

Letters: n photos   H, W pixels of the input
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.config.errors import DataError, UserError
from paceline.config.run import data_from_here
from paceline.input.draw import render
from paceline.predict.folders import find_photos
from paceline.predict.graph_model import Input
from paceline.predict.photos import Photo, encoded
from paceline.store.header import read_header
from paceline.store.index import open_split
from paceline.store.manifest import Manifest, find_manifest
from paceline.tasks.task import spread
from paceline.training.trained import Trained

if TYPE_CHECKING:
    from paceline.export.verb import Flags


def inputs(
    trained: Trained, flags: Flags, shape: tuple[int, int], photos: Iterable[Photo] | None = None
) -> list[Input]:
    """The photos that are readable and fit, of `photos`; else of --photos or the run's validation set `flags.compare`, evenly spread.

    shape  H, W
    Raises UserError where there are none, with what to do.
    """
    found = []
    for photo in _photos(trained, flags) if photos is None else photos:
        try:
            found.append(_input(trained, photo, shape))
        except DataError:  # damaged, or larger than --size
            continue
    if not found:
        raise UserError(f"{flags.photos or trained.folder}: none of its photos can be read and fits the file's input.")
    return found


def named_photos(folder: str, most: int) -> list[Path]:
    """Those of --photos, evenly spread."""
    photos = find_photos([Path(folder).expanduser()]).photos
    return [photos[place] for place in spread(len(photos), most)]


def _photos(trained: Trained, flags: Flags) -> Iterator[Photo]:
    if flags.photos:
        yield from named_photos(flags.photos, flags.compare)
        return
    try:
        index = open_split(_manifest(trained), "val")
    except UserError as problem:
        raise UserError(
            f"{trained.folder}: the photos that it was evaluated on are not here ({str(problem).splitlines()[0].rstrip('.')}). "
            "Compare answers on others with --photos DIR, or write a file that nobody has compared: --compare 0"
        ) from None
    yield from (index.read(int(place)) for place in spread(len(index), flags.compare))


def _manifest(trained: Trained) -> Manifest:
    """Of the data set that the run was trained on. Raises DataError where it is not here."""
    facts = trained.facts
    noted = facts.get("data", {}).get("manifest")
    if isinstance(noted, str) and Path(noted).is_dir():
        return Manifest.load(Path(noted))
    place = data_from_here(facts) if "controls" in facts else ""
    found = find_manifest(Path(place).expanduser()) if place else None
    if found is None:
        raise DataError("no data set is noted" if not place else f"{place}: not prepared here")
    return Manifest.load(found)


def _input(trained: Trained, photo: Photo, shape: tuple[int, int]) -> Input:
    recipe = trained.recipe
    data, name = encoded(photo)
    draw = trained.workload.draw_eval(recipe, read_header(data, name, recipe.input.exif), name, shape)
    pixels = np.empty((*shape, 3), np.uint8)
    render(data, draw, pixels)
    return Input(pixels, (draw.window.resized_height, draw.window.resized_width))

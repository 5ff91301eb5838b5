"""Photos to compare a form's answers on, as its graph takes them.

Letters: H, W pixels of the input
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.errors import DataError, UserError
from paceline.config.run import data_from_here
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.inference.graph.graph_model import Input
from paceline.inference.graph.onnx_reader import as_input
from paceline.inference.photo_paths import find_photos
from paceline.inference.photos import Photo, encoded
from paceline.inference.torch_predictor import Predictor
from paceline.inference.trained_model import Trained
from paceline.models.datamodule import spread

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions


def inputs(
    trained: Trained, flags: ExportOptions, shape: tuple[int, int] | None = None, photos: Iterable[Photo] | None = None
) -> list[Input]:
    """The photos that are readable, of `photos`; else of --photos or the run's validation set `flags.compare`, evenly spread.

    shape  H, W of the file's input; None: the input that `predict` makes of each photo
    Raises UserError where there are none, with what to do.
    """
    found, recipe, read = [], trained.recipe, Predictor(trained).reader()
    for photo in _photos(trained, flags) if photos is None else photos:
        try:
            seen = read(photo)
        except DataError:  # damaged
            continue
        if shape is None:
            found.append(Input(seen.pixels, seen.label.size if recipe.task == "maskrcnn" else seen.pixels.shape[:2]))
        else:
            rules = {"task": recipe.task, "input": asdict(recipe.input), "height": shape[0], "width": shape[1]}
            found.append(Input(*as_input(encoded(photo)[0], rules)[:2]))
    if not found:
        raise UserError(f"{flags.photos or trained.folder}: none of its photos can be read.")
    return found


def named_photos(folder: str, most: int) -> list[Path]:
    """Those of --photos, evenly spread."""
    photos = find_photos([Path(folder).expanduser()]).photos
    return [photos[place] for place in spread(len(photos), most)]


def _photos(trained: Trained, flags: ExportOptions) -> Iterator[Photo]:
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
    noted = facts.data.get("manifest")
    if isinstance(noted, str) and Path(noted).is_dir():
        return Manifest.load(Path(noted))
    place = data_from_here(facts)
    found = find_manifest(Path(place).expanduser()) if place else None
    if found is None:
        raise DataError("no data set is noted" if not place else f"{place}: not prepared here")
    return Manifest.load(found)

"""Photos to compare a form's answers on, as its graph takes them.

Letters: H, W pixels of the input
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.errors import DataError, PacelineError
from paceline.config.run import relative_data
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.inference.graph.graph_model import GraphInput
from paceline.inference.graph.onnx_reader import to_input
from paceline.inference.image_input import Photo, encode_photo
from paceline.inference.image_paths import find_photos
from paceline.inference.torch_predictor import TorchPredictor
from paceline.inference.trained_model import TrainedModel
from paceline.models.datamodule import select_evenly

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions


def load_sample_images(
    trained: TrainedModel, flags: ExportOptions, shape: tuple[int, int] | None = None, photos: Iterable[Photo] | None = None
) -> list[GraphInput]:
    """The photos that are readable, of `photos`; else of --photos or the run's validation set `flags.compare`, evenly spread.

    shape  H, W of the file's input; None: the input that `predict` makes of each photo
    Raises PacelineError where there are none, with what to do.
    """
    results, recipe, read = [], trained.recipe, TorchPredictor(trained).reader()
    for photo in _photos(trained, flags) if photos is None else photos:
        try:
            seen = read(photo)
        except DataError:  # damaged
            continue
        if shape is None:
            results.append(GraphInput(seen.pixels, seen.label.size if recipe.task == "maskrcnn" else seen.pixels.shape[:2]))
        else:
            rules = {"task": recipe.task, "input": asdict(recipe.input), "height": shape[0], "width": shape[1]}
            results.append(GraphInput(*to_input(encode_photo(photo)[0], rules)[:2]))
    if not results:
        raise PacelineError(f"{flags.photos or trained.folder}: none of its photos can be read.")
    return results


def select_named_images(folder: str, most: int) -> list[Path]:
    """Those of --photos, evenly spread."""
    photos = find_photos([Path(folder).expanduser()]).photos
    return [photos[location] for location in select_evenly(len(photos), most)]


def _photos(trained: TrainedModel, flags: ExportOptions) -> Iterator[Photo]:
    if flags.photos:
        yield from select_named_images(flags.photos, flags.compare)
        return
    try:
        index = open_split(_manifest(trained), "val")
    except PacelineError as problem:
        raise PacelineError(
            f"{trained.folder}: the photos that it was evaluated on are not here ({str(problem).splitlines()[0].rstrip('.')}). "
            "Compare answers on others with --photos DIR, or write a file that nobody has compared: --compare 0"
        ) from None
    yield from (index.read(int(location)) for location in select_evenly(len(index), flags.compare))


def _manifest(trained: TrainedModel) -> Manifest:
    """Of the data set that the run was trained on. Raises DataError where it is not here."""
    facts = trained.facts
    noted = facts.data.get("manifest")
    if isinstance(noted, str) and Path(noted).is_dir():
        return Manifest.load(Path(noted))
    location = relative_data(facts)
    result = find_manifest(Path(location).expanduser()) if location else None
    if result is None:
        raise DataError("no data set is noted" if not location else f"{location}: not prepared here")
    return Manifest.load(result)

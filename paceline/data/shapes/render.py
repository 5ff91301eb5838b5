"""The built-in data set "shapes": rendered here, so that every recipe has something to learn with nothing to download.

Two sets come from one generator (scenes.py):

    boxes    OUT/{train2017,val2017}/*.jpg and OUT/annotations/instances_{train2017,val2017}.json    (COCO's layout)
    classes  OUT/{train,val}/CLASS/*.jpg                                                             (a folder a class)

A set is rendered beside its place and moved there whole, so a half-written one is never taken for a data set.
Each picture depends on (seed, split, number) alone; the number of processes changes no byte. Another version
of NumPy or Pillow may draw a few pixels in ten thousand a little otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline._utils.atomic_write import new_folder_part
from paceline._utils.cache import cache_folder
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.platform import count_cpus
from paceline.data.shapes.outlines import CLASSES, outline_area, outline_box, run_lengths, trace_polygons
from paceline.data.shapes.scenes import SPLITS, DrawnImage, Kind, draw_picture
from paceline.data.workers.crew import WorkerCrew

# Part of the cache folder's name: raise it with every change that alters a picture or an annotation.
GENERATOR_VERSION = 2

# (train pictures, val pictures, side in pixels)
DEFAULTS: dict[Kind, tuple[int, int, int]] = {"boxes": (1600, 320, 256), "classes": (2000, 400, 128)}

# A process is worth its start (a quarter of a second) from this many pictures on.
PICTURES_A_PROCESS = 40

# The ids of validation pictures start above this, so that no id is in both splits.
VAL_IDS_FROM = 500_000

Progress = Callable[[int, int], None]  # (pictures done, pictures in all)


def render_shapes(
    kind: Kind,
    out: Path,
    *,
    seed: int = 0,
    train: int | None = None,
    val: int | None = None,
    side: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Render pictures with boxes, polygons and crowds in the layout and JSON of COCO 2017; or a class-folder set, where each
    picture's class is its largest shape, among smaller ones of other classes, and the eight classes take turns.

    train, val  number of pictures, None: DEFAULTS'; the two splits share no randomness
    side        about the height and width in pixels (of classes: both); the sizes of objects scale with it
    processes   how many render; None: one for each core. 1 renders in this process.
    progress    called in this thread as pictures are finished

    Raises DataError if `out` exists and is not an empty folder, OSError if it cannot be written.
    """
    train, val, side = (
        default if explicit is None else explicit for explicit, default in zip((train, val, side), DEFAULTS[kind])
    )
    _refuse_unless_free(out)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder_part(out) as part:
        folders = [f"{split}/{name}" for split in SPLITS for name in CLASSES]
        if kind == "boxes":
            folders = [*(f"{split}2017" for split in SPLITS), "annotations"]
        for folder in folders:
            (part / folder).mkdir(parents=True)
        # The splits' numbers, and those of their pictures.
        jobs = [(0, number) for number in range(train)] + [(1, number) for number in range(val)]
        size = max(1, min(processes or count_cpus(), len(jobs) // PICTURES_A_PROCESS))
        records: tuple[list[dict[str, Any]], ...] = ([], [])
        with WorkerCrew(partial(_write_picture, kind, part, seed, side), size, processes=size > 1) as crew:
            for done, ((split, _), record) in enumerate(zip(jobs, crew.map_ordered(jobs, ahead=4 * size)), start=1):
                if isinstance(record, OSError):
                    raise record
                records[split].append(record)
                if progress is not None:
                    progress(done, len(jobs))
        if kind == "boxes":
            for split, of_split in zip(SPLITS, records):
                _write_json(part / "annotations" / f"instances_{split}2017.json", of_split, seed)
        try:
            os.rename(part, out)  # replaces nothing but an empty folder
        except OSError:
            _refuse_unless_free(out)
            raise


def shapes_folder(kind: Kind, *, progress: Progress | None = None) -> Path:
    """The set of `kind` in the cache, at its default size and seed 0; rendered there by the first call.

    Processes may race: each renders a copy, the first to finish moves its own into place, the others throw theirs away.
    Raises PacelineError if the cache cannot be written.
    """
    train, val, side = DEFAULTS[kind]
    folder = cache_folder() / f"shapes-{kind}-v{GENERATOR_VERSION}-seed0-{train}-{val}-{side}px"
    if folder.is_dir():
        return folder
    try:
        render_shapes(kind, folder, progress=progress)
    except DataError:
        # Another process's copy is in place by now; it has the same bytes.
        if not folder.is_dir():
            raise
    except OSError as error:
        raise PacelineError(
            f"the built-in dataset cannot be written to the cache {folder.parent}: {error}.\nFree about 100 MB there, or "
            "set PACELINE_CACHE to a writable folder."
        ) from error
    return folder


def _refuse_unless_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: already exists and is not an empty folder.\nChoose another folder, or remove it.")


def _write_picture(kind: Kind, folder: Path, seed: int, side: int, split: int, number: int) -> dict[str, Any] | OSError:
    """Draw and write one picture -> what the JSON says of it, or why it cannot be written."""
    picture = draw_picture(kind, seed=seed, split=split, number=number, side=side)
    image_id, record = number + 1 + split * VAL_IDS_FROM, {}
    if kind == "boxes":
        path = f"{SPLITS[split]}2017/{image_id:012d}.jpg"
        height, width = picture.owners.shape
        image = {"id": image_id, "file_name": f"{image_id:012d}.jpg", "height": height, "width": width, "license": 1}
        record = {"image": image, "annotations": annotate(picture)}
    else:
        path = f"{SPLITS[split]}/{CLASSES[number % len(CLASSES)]}/{image_id:06d}.jpg"
    try:
        Image.fromarray(picture.pixels).save(folder / path, quality=90)
    except OSError as error:
        return error
    return record


def _write_json(file: Path, records: Sequence[dict[str, Any]], seed: int) -> None:
    """COCO's JSON of one split."""
    document = {
        "info": {"description": "paceline shapes", "version": str(GENERATOR_VERSION), "seed": seed},
        "licenses": [{"id": 1, "name": "made by paceline; no rights reserved", "url": ""}],
        "categories": [{"id": k, "name": name, "supercategory": "shape"} for k, name in enumerate(CLASSES, start=1)],
        "images": [record["image"] for record in records],
        "annotations": [
            {"id": 100 * record["image"]["id"] + k, "image_id": record["image"]["id"], **annotation}
            for record in records
            for k, annotation in enumerate(record["annotations"])
        ],
    }
    file.write_text(json.dumps(document, separators=(",", ":")))


def annotate(picture: DrawnImage) -> list[dict]:
    """The picture's annotations as in COCO's JSON, less ids. One for each shape, lowest first; the members of a crowd share one."""
    shapes, owners = picture.shapes, picture.owners
    annotations = []
    for owner, shape in enumerate(shapes, start=1):
        if shape.crowd:
            continue
        mask = owners == owner
        is_whole = np.count_nonzero(mask) == np.count_nonzero(shape.whole)
        polygons = list(shape.loops) if is_whole else trace_polygons(mask)
        # A whole outline may still pass the picture's border by a part of a pixel.
        polygons = [np.round(np.clip(polygon, 0, mask.shape[::-1]), 2) for polygon in polygons]
        x1, y1, x2, y2 = outline_box(polygons)
        segmentation = [polygon.ravel().tolist() for polygon in polygons]
        annotations.append(_annotation(shape.label, segmentation, (x1, y1, x2, y2), outline_area(polygons), 0))
    members = [owner for owner, shape in enumerate(shapes, start=1) if shape.crowd]
    if members:
        label, mask = shapes[members[0] - 1].label, np.isin(owners, members)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
        segmentation = {"counts": run_lengths(mask), "size": list(mask.shape)}
        annotations.append(_annotation(label, segmentation, box, float(np.count_nonzero(mask)), 1))
    return annotations


def _annotation(label: int, segmentation: list | dict, box: tuple[float, ...], area: float, crowd: int) -> dict:
    x1, y1, x2, y2 = box
    bbox = [round(x1, 2), round(y1, 2), round(x2 - x1, 2), round(y2 - y1, 2)]
    labeled = {"category_id": label + 1, "segmentation": segmentation, "bbox": bbox}
    return {**labeled, "area": round(area, 2), "iscrowd": crowd}

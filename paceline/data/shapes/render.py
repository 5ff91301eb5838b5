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
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from paceline._utils.atomic_write import new_folder_part
from paceline._utils.cache import cache_folder
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.platform import count_cpus
from paceline.data.shapes.outlines import CLASSES, outline_area, outline_box, run_lengths, trace_polygons
from paceline.data.shapes.scenes import SPLITS, DrawnImage, Kind, draw_picture

# Part of the cache folder's name: raise it with every change that alters a picture or an annotation.
GENERATOR_VERSION = 2

# (train pictures, val pictures, side in pixels)
DEFAULTS: dict[Kind, tuple[int, int, int]] = {"boxes": (1600, 320, 256), "classes": (2000, 400, 128)}

# A process is worth its start (a quarter of a second) from this many pictures on.
PICTURES_A_PROCESS = 40

# The ids of validation pictures start above this, so that no id is in both splits.
VAL_IDS_FROM = 500_000

# A child that may not write exits with this code plus the system's error number (1 to 133 on Linux).
_CANNOT_WRITE = 100

Progress = Callable[[int, int], None]  # (pictures done, pictures in all)


@dataclass(frozen=True)
class _Order:
    """What to render, and which share of it: every `shares`-th picture from `share` on, of both splits in a row."""

    kind: Kind
    folder: str
    seed: int
    train: int
    val: int
    side: int
    share: int = 0
    shares: int = 1


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
        shares = max(1, min(processes or count_cpus(), (train + val) // PICTURES_A_PROCESS))
        order = _Order(kind, str(part), seed, train, val, side, shares=shares)

        def report(done: int) -> None:
            if progress is not None:
                progress(done, train + val)

        (_draw_share if shares == 1 else _draw_in_children)(order, report)
        _gather_records(order)
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
            f"the built-in data set cannot be written to the cache {folder.parent}: {error}.\n"
            "Free some space there (100 MB are plenty), or set PACELINE_CACHE to a folder that can be written."
        ) from error
    return folder


def _refuse_unless_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is in the way: it exists and is not an empty folder.\nName another folder, or remove it.")


def _draw_share(order: _Order, report: Callable[[int], object]) -> None:
    """Draw and write one share's pictures, and its records (what the JSON says of them) as a file of their own."""
    jobs = [(0, number) for number in range(order.train)] + [(1, number) for number in range(order.val)]
    records = []
    for done, (split, number) in enumerate(jobs[order.share :: order.shares], start=1):
        picture = draw_picture(order.kind, seed=order.seed, split=split, number=number, side=order.side)
        image_id = number + 1 + split * VAL_IDS_FROM
        if order.kind == "boxes":
            name, folder = f"{image_id:012d}.jpg", f"{SPLITS[split]}2017"
            height, width = picture.owners.shape
            image = {"id": image_id, "file_name": name, "height": height, "width": width, "license": 1}
            records.append({"split": split, "image": image, "annotations": annotate(picture)})
        else:
            name, folder = f"{image_id:06d}.jpg", f"{SPLITS[split]}/{CLASSES[number % len(CLASSES)]}"
        Image.fromarray(picture.pixels).save(Path(order.folder, folder, name), quality=90)
        report(done)
    Path(order.folder, f"records-{order.share}.json").write_text(json.dumps(records))


def _draw_in_children(order: _Order, report: Callable[[int], object]) -> None:
    """Draw every share in a process of its own; each writes one byte into a shared pipe for each finished picture.

    The processes are started as plain programs: multiprocessing would import the caller's main module again in each,
    which runs a user's script twice where it has no `if __name__ == "__main__"`.
    """
    # The child finds the same paceline as this process, however that was found.
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from paceline.data.shapes.render import draw_as_child; draw_as_child()"
    )
    children: list[subprocess.Popen] = []
    read_end, write_end = os.pipe()
    try:
        with open(read_end, "rb", buffering=0) as ticks:
            try:
                for share in range(order.shares):
                    share_order = json.dumps(asdict(replace(order, share=share)))
                    command = [sys.executable, "-c", code, json.dumps([str(entry) for entry in sys.path]), share_order]
                    children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end))
            finally:
                os.close(write_end)
            done = 0
            while ticked := ticks.read(4096):
                done += len(ticked)
                report(done)
        for child in children:
            status = child.wait()
            if status > _CANNOT_WRITE:
                raise OSError(status - _CANNOT_WRITE, os.strerror(status - _CANNOT_WRITE), order.folder)
            if status != 0:
                raise RuntimeError(f"a process that renders the built-in data set ended with status {status}")
    finally:
        for child in children:
            child.kill()
            child.wait()


def draw_as_child() -> None:
    """The main function of one of `render_shapes`' processes; its order is in sys.argv[2]."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the parent too, which prints the message
    try:
        _draw_share(_Order(**json.loads(sys.argv[2])), lambda done: os.write(1, b"."))
    except OSError as error:
        sys.exit(_CANNOT_WRITE + (error.errno or 0))


def _gather_records(order: _Order) -> None:
    """Join the shares' records into COCO's JSON (nothing to join for class folders), and remove them."""
    records = []
    for share in range(order.shares):
        file = Path(order.folder, f"records-{share}.json")
        records += json.loads(file.read_text())
        file.unlink()
    if order.kind == "classes":
        return
    records.sort(key=lambda record: record["image"]["id"])
    for split, name in enumerate(SPLITS):
        chosen = [record for record in records if record["split"] == split]
        document = {
            "info": {"description": "paceline shapes", "version": str(GENERATOR_VERSION), "seed": order.seed},
            "licenses": [{"id": 1, "name": "made by paceline; no rights reserved", "url": ""}],
            "categories": [{"id": k, "name": name, "supercategory": "shape"} for k, name in enumerate(CLASSES, start=1)],
            "images": [record["image"] for record in chosen],
            "annotations": [
                {"id": 100 * record["image"]["id"] + k, "image_id": record["image"]["id"], **annotation}
                for record in chosen
                for k, annotation in enumerate(record["annotations"])
            ],
        }
        file = Path(order.folder, "annotations", f"instances_{name}2017.json")
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

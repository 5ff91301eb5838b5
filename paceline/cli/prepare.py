"""`paceline prepare imagenet|folder|coco|voc|yolo|shapes ...`: verify every file once, write manifest and index."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.cli.flags import parse
from paceline.cli.voice import say
from paceline.config.errors import UserError

if TYPE_CHECKING:
    from paceline.data.manifest import Manifest, Split

KINDS = """usage: paceline prepare KIND ...

  folder DIR     class folders: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg; or DIR/CLASS/*.jpg with --val-fraction
  imagenet DIR   the same, checked to be ImageNet-1k: 1000 wnid folders, 1,281,167 and 50,000 photos
  coco DIR       boxes and masks: DIR/annotations/instances_train2017.json with DIR/train2017, or --images and --annotations
  voc DIR        boxes: Pascal VOC's DIR/Annotations/*.xml with DIR/JPEGImages
  yolo DIR       boxes, and masks as polygons: DIR/data.yaml and label files
  shapes         the built-in data set, rendered into the cache

Each answers --help."""


OnUnreadable = Literal["refuse", "skip"]
OnMismatch = Literal["refuse", "warn"]
# One line each in the report; a list of ten says enough of what kind they are.
NAMED_IN_REPORT = 10


@dataclass(frozen=True)
class FolderFlags:
    """What to verify."""

    data: str = ""  # the folder that holds train/ and val/; the flag's name may be left out
    out: str = ""  # where manifest and index go; empty = into the folder itself, or the cache when it is read-only
    workers: int = 0  # threads that decode; 0 = one a core
    on_unreadable: OnUnreadable = "refuse"  # a file that does not decode: stop, or leave it out and count it
    val_fraction: float = 0.0  # share of each class that is set apart for validation, where there is no val/
    val_seed: int = 0  # another seed sets other photos apart
    val_group: str = ""  # regular expression: photos whose paths match with the same captured text stay together


@dataclass(frozen=True)
class BoxFlags:
    """What to read, and what to do about flaws."""

    data: str = ""  # the data set's folder; the flag's name may be left out
    out: str = ""  # where manifest and index go; empty = into the folder itself, or the cache when it is read-only
    workers: int = 0  # threads that decode; 0 = one a core
    val_fraction: float = 0.0  # share of the images that is set apart for validation, where the set has none
    val_seed: int = 0  # another seed sets other images apart
    val_group: str = ""  # regular expression: images whose paths match with the same captured text stay together
    on_missing: OnUnreadable = "refuse"  # an image that is not on disk: stop, or leave it out and count it
    on_unreadable: OnUnreadable = "refuse"  # an image that does not decode: stop, or leave it out and count it
    on_class_mismatch: OnMismatch = "refuse"  # objects in val of a class that train does not know: stop, or keep them


@dataclass(frozen=True)
class CocoFlags(BoxFlags):
    """What to read, and what to do about flaws. Name the folder, or the four files and folders."""

    images: str = ""  # folder of the training images, where the data set has a layout of its own
    annotations: str = ""  # COCO JSON of the training images
    val_images: str = ""  # folder of the validation images; empty = the training images'
    val_annotations: str = ""  # COCO JSON of the validation images


@dataclass(frozen=True)
class ShapesFlags:
    """What to render."""

    kind: Literal["classes", "boxes"] = "classes"  # class folders, or pictures with COCO annotations


def run(arguments: Sequence[str]) -> int:
    """Prepare one data set."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(KINDS)
        return 0 if arguments else 2
    kind, rest = arguments[0], arguments[1:]
    if kind == "shapes":
        return _shapes(rest)
    if kind in ("folder", "imagenet"):
        return _folder(kind, rest)
    if kind in ("coco", "voc", "yolo"):
        return _boxes(kind, rest)
    raise UserError(f"prepare {kind!r}: there is no such kind. Known: folder, imagenet, coco, voc, yolo, shapes.")


def _folder(kind: str, arguments: Sequence[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--data", *arguments]
    flags = parse(arguments, FolderFlags(), prog=f"prepare {kind}", description="Verify class folders and index them.")
    if not flags.data:
        raise UserError(f"name the folder that holds train/ and val/: paceline prepare {kind} --data DIR")
    from paceline.prepare.folder import prepare_folder
    from paceline.prepare.val_groups import ValSplit

    with _progress() as progress:
        manifest = prepare_folder(
            Path(flags.data),
            out=Path(flags.out) if flags.out else None,
            expect="imagenet" if kind == "imagenet" else "any",
            workers=flags.workers or None,
            on_unreadable=flags.on_unreadable,
            val=ValSplit(flags.val_fraction, flags.val_seed, flags.val_group),
            progress=progress,
        )
    for name, split in manifest.splits.items():
        say(f"{name}: {split.images:,} photos in {len(manifest.classes):,} classes{_odd_photos(split)}")
        _print_left_out(split)
    for note in manifest.notes:
        say(f"note: {note}")
    if rotated := sum(split.rotated for split in manifest.splits.values()):
        say(
            f"note: {rotated:,} photos carry an EXIF rotation: --input.exif apply trains on them upright, as resnet50-tiny does"
        )
    say(f"manifest: {manifest.folder / 'manifest.json'}")
    _check(manifest)
    return 0


def _boxes(kind: Literal["coco", "voc", "yolo"], arguments: Sequence[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--data", *arguments]
    default = CocoFlags() if kind == "coco" else BoxFlags()
    flags = parse(
        arguments, default, prog=f"prepare {kind}", description="Verify images with boxes or masks and index them."
    )
    coco = flags if isinstance(flags, CocoFlags) else CocoFlags()
    files = (coco.images, coco.annotations, coco.val_images, coco.val_annotations)
    if flags.data and any(files):
        raise UserError("name either the data set's folder or --images and --annotations, not both.")
    if not flags.data and not any(files):
        also = ", or --images DIR --annotations FILE" if kind == "coco" else ""
        raise UserError(f"name the data set's folder: paceline prepare {kind} --data DIR{also}")
    from paceline.prepare.box_folder import BoxRequest, prepare_boxes

    request = BoxRequest(
        kind,
        *files,
        val_fraction=flags.val_fraction,
        val_seed=flags.val_seed,
        val_group=flags.val_group,
        on_missing=flags.on_missing,
        on_unreadable=flags.on_unreadable,
        on_class_mismatch=flags.on_class_mismatch,
    )
    with _progress() as progress:
        manifest = prepare_boxes(
            Path(flags.data) if flags.data else None,
            request,
            out=Path(flags.out) if flags.out else None,
            workers=flags.workers or None,
            progress=progress,
        )
    print_boxes(manifest)
    _check(manifest)
    return 0


def _check(manifest: Manifest) -> None:
    """Write the check page, and say what it warns of."""
    from paceline.prepare.check_write import write_check_page

    path, page = write_check_page(manifest)
    for notice in page.notices:
        if not notice.noted:
            say(f"{'warning' if notice.colour == 'bad' else 'note'}: {notice.text}")
    say(f"check:    {path} ({page.verdict[1].lower()})")


def print_boxes(manifest: Manifest) -> None:
    """What was found in a data set of boxes, nothing left out."""
    for name, split in manifest.splits.items():
        counts = split.boxes
        if counts is None:
            continue
        say(
            f"{name}: {split.images:,} images{_odd_photos(split)}, {counts.objects:,} objects of "
            f"{sum(map(bool, split.per_class)):,} classes"
        )
        odd = {
            "crowd regions": counts.crowd,
            "images without objects": counts.empty_images,
            "boxes without area, which are not trained on": counts.degenerate,
            "boxes outside their image, which are not trained on": counts.outside,
            "boxes partly outside their image, cut for training": counts.partly_outside,
            "objects that repeat another one (same image, class and box)": counts.duplicates,
            "objects on images that are left out": counts.left_out_objects,
            "mask polygons of less than three points, left out": counts.left_out_polygons,
            "mask polygons with coordinates that are no finite numbers, left out": counts.polygons_not_finite,
            "image files that the annotations do not name": counts.unlisted_images,
        }
        for what, count in odd.items():
            if count:
                say(f"  {what}: {count:,}")
        _print_left_out(split)
    for note in manifest.notes:
        say(f"note: {note}")
    say(f"{len(manifest.classes):,} classes: {', '.join(manifest.classes)}")
    say(f"manifest: {manifest.folder / 'manifest.json'}")
    if not (manifest.folder == manifest.root_path or manifest.request is None or not manifest.request["images"]):
        say(f"train with:  --data {shlex.quote(str(manifest.folder))}")


def _odd_photos(split: Split) -> str:
    odd = {
        "unusable and left out": len(split.unreadable),
        "EXIF-rotated": split.rotated,
        "greyscale": split.greyscale,
        "CMYK": split.cmyk,
        "not JPEG": split.not_jpeg,
        "misnamed": split.misnamed,
        "ignored": split.ignored,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in odd.items() if count)
    return f" ({counts})" if counts else ""


def _print_left_out(split: Split) -> None:
    for broken in split.unreadable[:NAMED_IN_REPORT]:
        say(f"  left out: {broken.path}: {broken.reason}")
    if len(split.unreadable) > NAMED_IN_REPORT:
        say(f"  left out: {len(split.unreadable) - NAMED_IN_REPORT:,} more, all of them in the manifest")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar while files are verified; it is gone afterwards."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True
    ) as bar:
        job = bar.add_task("verifying", total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


def _shapes(arguments: Sequence[str]) -> int:
    flags = parse(arguments, ShapesFlags(), prog="prepare shapes", description="Render the built-in data set.")
    from paceline.prepare.shapes import shapes_folder

    say(shapes_folder(flags.kind))
    return 0

"""`paceline prepare KIND ...`: verify every photo once, write manifest and index. Containers' bytes stay where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paceline._utils.errors import PacelineError
from paceline.cli.flags import out_folder, parse, run_kind
from paceline.cli.printing import Printer
from paceline.config.constraints import Help

if TYPE_CHECKING:
    from paceline.data.index.manifest import Manifest

KINDS = """usage: paceline prepare KIND ...

  folder DIR     class folders: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg; or DIR/CLASS/*.jpg with --val-fraction
  imagenet DIR   the same, checked to be ImageNet-1k: 1,281,167 and 50,000 photos; or --train-tar FILE --val-tar FILE
  coco DIR       boxes and masks: DIR/annotations/instances_train2017.json with DIR/train2017; or --zips DIR; or the files
  voc DIR        boxes: Pascal VOC's DIR/Annotations/*.xml with DIR/JPEGImages
  yolo DIR       boxes, and masks as polygons: DIR/data.yaml and label files
  photos         files that are a photo each, above all a bucket's: --train 's3://BUCKET/train/*/*.jpg'
  tar, zip       photos in archives as they were downloaded: [--train] FILE... --val FILE... --out DIR; bytes stay there
  webdataset     tars of KEY.jpg with KEY.cls or .json (these six take paths, patterns, and URLs: s3://, gs://, https://)
  recordio       MXNet's .rec files
  tfrecord       TensorFlow's, with the features of the original ImageNet and COCO scripts
  shapes         the built-in data set, rendered into the cache

Each answers --help."""


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
COCO_ZIPS = ("train2017.zip", "val2017.zip", "annotations_trainval2017.zip")
OnUnreadable = Literal["refuse", "skip"]
OnMismatch = Literal["refuse", "warn"]


@dataclass(frozen=True)
class FolderFlags:
    """What to verify."""

    data: Annotated[str, Help("the folder that holds train/ and val/; the flag's name may be left out")] = ""
    out: Annotated[str, Help("folder of manifest and index; empty: the data set's, or the cache")] = ""
    workers: Annotated[int, Help("processes that decode; 0: one a core")] = 0
    on_unreadable: Annotated[OnUnreadable, Help("a file that does not decode: stop, or leave it out")] = "refuse"
    val_fraction: Annotated[float, Help("share of each class for validation, where there is no val/")] = 0.0
    val_seed: Annotated[int, Help("another seed sets other photos apart")] = 0
    val_group: Annotated[str, Help("regular expression: photos with the same captured text stay together")] = ""


@dataclass(frozen=True)
class ImagenetFlags(FolderFlags):
    """What to verify: class folders, or the official archives as they were downloaded."""

    train_tar: Annotated[str, Help("ILSVRC2012_img_train.tar, a tar of 1000 tars; nothing is unpacked")] = ""
    val_tar: Annotated[str, Help("ILSVRC2012_img_val.tar")] = ""
    devkit: Annotated[str, Help("ILSVRC2012_devkit_t12.tar.gz; empty: next to --val-tar")] = ""


@dataclass(frozen=True)
class BoxFlags:
    """What to read, and what to do about flaws."""

    data: Annotated[str, Help("the data set's folder; the flag's name may be left out")] = ""
    out: Annotated[str, Help("folder of manifest and index; empty: the data set's, or the cache")] = ""
    workers: Annotated[int, Help("processes that decode; 0: one a core")] = 0
    val_fraction: Annotated[float, Help("share of the images for validation, where the set has none")] = 0.0
    val_seed: Annotated[int, Help("another seed sets other images apart")] = 0
    val_group: Annotated[str, Help("regular expression: images with the same captured text stay together")] = ""
    on_missing: Annotated[OnUnreadable, Help("image that is not there or not listed: stop, or leave it out")] = "refuse"
    on_unreadable: Annotated[OnUnreadable, Help("image that does not decode: stop, or leave it out")] = "refuse"
    on_class_mismatch: Annotated[OnMismatch, Help("objects of a class that only val has: stop, or keep")] = "refuse"


@dataclass(frozen=True)
class CocoFlags(BoxFlags):
    """What to read, and what to do about flaws. Name the folder, or the four files and folders, or the zips as downloaded."""

    zips: Annotated[str, Help("folder of train2017.zip, val2017.zip and the annotations, kept as they are")] = ""
    images: Annotated[str, Help("folder of the training images, where the data set has a layout of its own")] = ""
    annotations: Annotated[str, Help("COCO JSON of the training images")] = ""
    val_images: Annotated[str, Help("folder of the validation images; empty: the training images'")] = ""
    val_annotations: Annotated[str, Help("COCO JSON of the validation images")] = ""
    expect: Annotated[Literal["any", "coco2017"], Help("coco2017: refuse what is not the whole of COCO 2017")] = "any"


Files = tuple[str, ...]


@dataclass(frozen=True)
class ContainerFlags:
    """What to index, and what to do about flaws."""

    train: Annotated[Files, Help("paths, 'shards-*.tar', 'shard-{000..127}.tar', or addresses")] = ()
    val: Annotated[Files, Help("the same of the validation photos")] = ()
    out: Annotated[str, Help("where manifest and index go; empty: a folder in the cache, which is printed")] = ""
    annotations: Annotated[str, Help("boxes: COCO JSON of the training photos, or the zip that holds it")] = ""
    val_annotations: Annotated[str, Help("boxes: the same of the validation photos")] = ""
    classes: Annotated[str, Help("file of class names, one a line or JSON; or how many there are")] = ""
    first_label: Annotated[int, Help("number of the first class in the files; -1: 1 in TFRecords, 0 in others")] = -1
    label_column: Annotated[int, Help("RecordIO with several numbers a label: the class's, from 0")] = -1
    devkit: Annotated[str, Help("ILSVRC2012_devkit_t12.tar.gz, which has the classes of the val tar")] = ""
    expect: Annotated[Literal["any", "imagenet", "coco2017"], Help("refuse what is not the whole of that set")] = "any"
    val_fraction: Annotated[float, Help("share of the photos for validation, where no --val is named")] = 0.0
    val_seed: Annotated[int, Help("another seed sets other photos apart")] = 0
    val_group: Annotated[str, Help("regular expression: photos with the same captured text stay together")] = ""
    on_truncated: Annotated[OnUnreadable, Help("a file that is cut off: stop, or use its whole records")] = "refuse"
    on_unreadable: Annotated[OnUnreadable, Help("photo that does not decode: stop, or leave it out")] = "refuse"
    on_missing: Annotated[OnUnreadable, Help("annotated photo that is not there: stop, or leave it out")] = "refuse"
    on_class_mismatch: Annotated[OnMismatch, Help("objects in val of a class that train does not know")] = "refuse"
    workers: Annotated[int, Help("processes that decode, threads that list; 0: one a core")] = 0


@dataclass(frozen=True)
class ShapesFlags:
    """What to render."""

    kind: Annotated[Literal["classes", "boxes"], Help("class folders, or pictures with COCO annotations")] = "classes"


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Prepare one data set."""
    kinds: dict[str, Callable[[Printer, Sequence[str]], int]] = {
        **{kind: partial(_folder, kind) for kind in ("folder", "imagenet")},
        **{kind: partial(_boxes, kind) for kind in ("coco", "voc", "yolo")},
        **{kind: partial(_containers, kind) for kind in ("photos", "tar", "zip", "webdataset", "recordio", "tfrecord")},
        "shapes": _shapes,
    }
    return run_kind(printer, arguments, KINDS, "prepare", kinds)


def _with_data(arguments: Sequence[str]) -> Sequence[str]:
    """The words with the flag of the data set's folder, whose name may be left out."""
    return ["--data", *arguments] if arguments and not arguments[0].startswith("-") else arguments


def _folder(kind: str, printer: Printer, arguments: Sequence[str]) -> int:
    default = ImagenetFlags() if kind == "imagenet" else FolderFlags()
    flags = parse(printer, _with_data(arguments), default, f"prepare {kind}", "Verify class folders and index them.")
    if isinstance(flags, ImagenetFlags) and (flags.train_tar or flags.val_tar):
        if flags.data or flags.val_fraction or not (flags.train_tar and flags.val_tar):
            raise PacelineError("--train-tar FILE and --val-tar FILE belong together, without --data and --val-fraction.")
        devkit = flags.devkit or str(Path(flags.val_tar).with_name(DEVKIT))  # beside the second tar where none is named
        if not Path(devkit).expanduser().is_file():
            raise PacelineError(
                f"{devkit}: not there. The classes of the validation photos are in {DEVKIT}, beside the tars' own "
                "download; name it with --devkit FILE."
            )
        named: dict[str, Any] = {
            "train": (flags.train_tar,),
            "val": (flags.val_tar,),
            "devkit": devkit,
            "expect": "imagenet",
        }
        return _index_containers(printer, "tar", ContainerFlags(**named, **_flaws(flags)))
    out = out_folder(flags.out)
    if not flags.data:
        raise PacelineError(f"name the folder that holds train/ and val/: paceline prepare {kind} --data DIR")
    if isinstance(flags, ImagenetFlags) and flags.devkit:
        _sort_val(printer, Path(flags.data), Path(flags.devkit).expanduser())
    from paceline.data.prepare.class_source import prepare_folder
    from paceline.data.prepare.val_split import ValSplit

    with progress_bar(printer) as progress:
        manifest = prepare_folder(
            Path(flags.data),
            out=out,
            expect="imagenet" if kind == "imagenet" else "any",
            workers=flags.workers or None,
            on_unreadable=flags.on_unreadable,
            val=ValSplit(flags.val_fraction, flags.val_seed, flags.val_group),
            progress=progress,
        )
    return _printed(printer, manifest)


def _flaws(flags: FolderFlags | BoxFlags) -> dict[str, Any]:
    """Where the index goes, who works, and what to do about flaws."""
    return {name: getattr(flags, name) for name in ("out", "workers", "on_unreadable")}


def _sort_val(printer: Printer, root: Path, devkit: Path) -> None:
    from paceline.data.formats.class_folders import VAL_FOLDERS
    from paceline.data.formats.devkit import sort_val, validation_labels

    labels = validation_labels(devkit)
    for folder in (root / name for name in VAL_FOLDERS if (root / name).is_dir()):
        if moved := sort_val(folder, labels):
            printer.say(f"{folder.name}: {moved:,} photos moved into class folders, by the development kit's labels")


def _boxes(kind: Literal["coco", "voc", "yolo"], printer: Printer, arguments: Sequence[str]) -> int:
    default = CocoFlags() if kind == "coco" else BoxFlags()
    about = "Verify images with boxes or masks and index them."
    flags = parse(printer, _with_data(arguments), default, f"prepare {kind}", about)
    coco = flags if isinstance(flags, CocoFlags) else CocoFlags()
    if coco.zips:
        if flags.data or flags.val_fraction or coco.images:
            raise PacelineError("--zips names all files of the data set; leave --data, --images and --val-fraction out.")
        paths = [Path(coco.zips).expanduser() / name for name in COCO_ZIPS]
        if lacking := [path for path in paths if not path.is_file()]:
            raise PacelineError(
                f"{lacking[0]}: not there. --zips names the folder of {', '.join(COCO_ZIPS)}, as downloaded."
            )
        train, val, boxes = map(str, paths)
        named: dict[str, Any] = {"train": (train,), "val": (val,), "annotations": boxes, "val_annotations": boxes}
        named |= {name: getattr(coco, name) for name in ("expect", "on_missing", "on_class_mismatch")}
        return _index_containers(printer, "zip", ContainerFlags(**named, **_flaws(coco)))
    out = out_folder(flags.out)
    files = (coco.images, coco.annotations, coco.val_images, coco.val_annotations)
    if flags.data and any(files):
        raise PacelineError("name either the data set's folder or --images and --annotations, not both.")
    if not flags.data and not any(files):
        also = ", or --images DIR --annotations FILE" if kind == "coco" else ""
        raise PacelineError(f"name the data set's folder: paceline prepare {kind} --data DIR{also}")
    from paceline.data.prepare.box_source import BoxRequest, prepare_boxes

    with progress_bar(printer) as progress:
        manifest = prepare_boxes(
            Path(flags.data) if flags.data else None,
            BoxRequest.of(flags, kind, *files),
            out=out,
            workers=flags.workers or None,
            progress=progress,
        )
    return _printed(printer, manifest)


def _containers(layout: str, printer: Printer, arguments: Sequence[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        if any(word.partition("=")[0] == "--train" for word in arguments):
            raise PacelineError(f"{arguments[0]}: name the training files once, either with --train or without it.")
        arguments = ["--train", *arguments]
    about = "Verify photos in containers and index them."
    flags = parse(printer, arguments, ContainerFlags(), f"prepare {layout}", about)
    if not flags.train and not flags.val:
        raise PacelineError(f"name the files: paceline prepare {layout} --train FILE... --val FILE... --out DIR")
    return _index_containers(printer, layout, flags)


def _index_containers(printer: Printer, layout: str, flags: ContainerFlags) -> int:
    from paceline.data.containers.source import ContainerRequest, prepare_containers

    wanted = asdict(flags)
    out, workers = out_folder(wanted.pop("out")), wanted.pop("workers")
    request = replace(ContainerRequest("tar"), **{**wanted, "layout": layout})
    with progress_bar(printer) as progress:
        manifest = prepare_containers(
            request,
            out=out,
            workers=workers or None,
            walked=lambda done, total: progress(done, total, "listing"),
            progress=progress,
        )
    return _printed(printer, manifest)


def _printed(printer: Printer, manifest: Manifest) -> int:
    from paceline.tools.report.prepare_notes import next_step, prepare_lines, prepare_record

    printer.facts = prepare_record(manifest)
    for line in [*prepare_lines(manifest), next_step(manifest)]:
        printer.say(line)
    return 0


@contextmanager
def progress_bar(printer: Printer) -> Iterator[Callable[..., None]]:
    """(done, total, what is being done) -> a bar that shows it; it is gone afterwards."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = printer.quiet or printer.lines is not None or not sys.stdout.isatty()  # a pipe gets an empty line
    with Progress("{task.description}", *columns, transient=True, disable=hidden) as bar:
        job = bar.add_task("", total=None)
        yield lambda done, total, what="verifying": bar.update(job, completed=done, total=total, description=what)


def _shapes(printer: Printer, arguments: Sequence[str]) -> int:
    flags = parse(printer, arguments, ShapesFlags(), "prepare shapes", "Render the built-in data set.")
    from paceline.data.shapes.render import shapes_folder

    printer.say(shapes_folder(flags.kind))
    return 0

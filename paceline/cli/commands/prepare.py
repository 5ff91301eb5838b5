"""`paceline prepare [KIND] ...`: verify every photo once, write manifest and index. Containers' bytes stay where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.names import list_matching
from paceline._utils.text import join_names, suggest_name
from paceline.cli.flags import parse, pop_flag_value, run_kind
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help, Whole
from paceline.data.containers.split_files import ARCHIVES
from paceline.data.storage.store import out_folder

if TYPE_CHECKING:
    from paceline.data.index.manifest import Manifest

KINDS = f"""usage: paceline prepare [KIND] DIR|FILE ...   (without KIND it is found by the files; KIND --help prints its flags)

  folder DIR     class folders: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg; or DIR/CLASS/*.jpg with --val-fraction
  imagenet DIR   the same, checked to be ImageNet-1k: 1,281,167 and 50,000 photos; or --train-tar FILE --val-tar FILE
  coco DIR       boxes and masks: DIR/annotations/instances_train2017.json with DIR/train2017; or --zip-dir DIR; or the files
  voc DIR        boxes: Pascal VOC's DIR/Annotations/*.xml with DIR/JPEGImages
  yolo DIR       boxes, and masks as polygons: DIR/data.yaml and label files
  photos         files that are a photo each, above all a bucket's: --train 's3://BUCKET/train/*/*.jpg'
  {", ".join(ARCHIVES):<13}  photos in downloaded archives, read in place: [--train] FILE... --val FILE... --output-dir DIR
  webdataset     tars of KEY.jpg with KEY.cls or .json (these, photos, and archives take paths, patterns, and URLs, s3://)
  recordio       MXNet's .rec files
  tfrecord       TensorFlow's, with the features of the original ImageNet and COCO scripts
  shapes         the built-in data set, rendered into the cache"""


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
OnUnreadable = Literal["error", "skip"]
OnMismatch = Literal["error", "warn"]


@dataclass(frozen=True)
class FolderFlags:
    """What to verify."""

    data: Annotated[str, Help("the folder that holds train/ and val/; the flag's name may be left out")] = ""
    output_dir: Annotated[str, Help("folder of manifest and index; empty: the data set's, or the cache")] = ""
    workers: Annotated[int, Help("processes that decode; 0: one a core")] = 0
    on_unreadable: Annotated[OnUnreadable, Help("a file that does not decode: stop, or leave it out")] = "error"
    val_fraction: Annotated[float, Help("share of each class for validation, where there is no val/")] = 0.0
    split_seed: Annotated[int, Help("another seed sets other photos apart")] = 0
    group_by: Annotated[str, Help("regular expression: photos with the same captured text stay together")] = ""


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
    output_dir: Annotated[str, Help("folder of manifest and index; empty: the data set's, or the cache")] = ""
    workers: Annotated[int, Help("processes that decode; 0: one a core")] = 0
    val_fraction: Annotated[float, Help("share of the images for validation, where the set has none")] = 0.0
    split_seed: Annotated[int, Help("another seed sets other images apart")] = 0
    group_by: Annotated[str, Help("regular expression: images with the same captured text stay together")] = ""
    on_missing: Annotated[OnUnreadable, Help("image that is not there or not listed: stop, or leave it out")] = "error"
    on_unreadable: Annotated[OnUnreadable, Help("image that does not decode: stop, or leave it out")] = "error"
    on_class_mismatch: Annotated[OnMismatch, Help("objects of a class that only val has: stop, or keep")] = "error"


@dataclass(frozen=True)
class CocoFlags(BoxFlags):
    """What to read, and what to do about flaws. Name the folder, or the four files and folders, or the zips as downloaded."""

    zip_dir: Annotated[str, Help("folder of train2017.zip, val2017.zip and the annotations, kept as they are")] = ""
    images_dir: Annotated[str, Help("folder of the training images, where the data set has a layout of its own")] = ""
    annotations: Annotated[str, Help("COCO JSON of the training images")] = ""
    val_images_dir: Annotated[str, Help("folder of the validation images; empty: the training images'")] = ""
    val_annotations: Annotated[str, Help("COCO JSON of the validation images")] = ""
    expect: Annotated[Literal["any", "coco2017"], Help("coco2017: refuse what is not the whole of COCO 2017")] = "any"


Files = tuple[str, ...]


@dataclass(frozen=True)
class ContainerFlags:
    """What to index, and what to do about flaws."""

    train: Annotated[Files, Help("paths, 'shards-*.tar', 'shard-{000..127}.tar', or addresses")] = ()
    val: Annotated[Files, Help("the same of the validation photos")] = ()
    output_dir: Annotated[str, Help("where manifest and index go; empty: a folder in the cache, which is printed")] = ""
    annotations: Annotated[str, Help("boxes: COCO JSON of the training photos, or the zip that holds it")] = ""
    val_annotations: Annotated[str, Help("boxes: the same of the validation photos")] = ""
    class_names_file: Annotated[str, Help("file of class names, one a line or JSON; empty: called by number")] = ""
    num_classes: Annotated[Whole, Help("number of classes, if not every one has photos; 0: those of the photos")] = 0
    label_offset: Annotated[int, Help("number of the first class in the files; -1: 1 in TFRecords, 0 in others")] = -1
    label_column: Annotated[int, Help("RecordIO with several numbers a label: the class's, from 0")] = -1
    devkit: Annotated[str, Help("ILSVRC2012_devkit_t12.tar.gz, which has the classes of the val tar")] = ""
    expect: Annotated[Literal["any", "imagenet", "coco2017"], Help("refuse what is not the whole of that set")] = "any"
    val_fraction: Annotated[float, Help("share of the photos for validation, where no --val is named")] = 0.0
    split_seed: Annotated[int, Help("another seed sets other photos apart")] = 0
    group_by: Annotated[str, Help("regular expression: photos with the same captured text stay together")] = ""
    on_truncated: Annotated[OnUnreadable, Help("a file that is cut off: stop, or use its whole records")] = "error"
    on_unreadable: Annotated[OnUnreadable, Help("photo that does not decode: stop, or leave it out")] = "error"
    on_missing: Annotated[OnUnreadable, Help("annotated photo that is not there: stop, or leave it out")] = "error"
    on_class_mismatch: Annotated[OnMismatch, Help("objects in val of a class that train does not know")] = "error"
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
        **{kind: partial(_containers, kind) for kind in ("photos", *ARCHIVES, "webdataset", "recordio", "tfrecord")},
        "shapes": _shapes,
    }
    named = not arguments or arguments[0] in (*kinds, *HELP)
    return run_kind(printer, arguments if named else _with_kind(printer, arguments, kinds), KINDS, "prepare", kinds)


def _with_kind(printer: Printer, arguments: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the words with the kind of their data in front, and print which kind that is and why."""
    from paceline.data.formats.label_tools import suggest_export
    from paceline.data.prepare.detect import find_kinds

    words = printer.taken(arguments, ())
    location, more = (words[0], words[1:]) if words and words[0][:1] != "-" else pop_flag_value(words, "--data", "DIR")
    if not location:
        raise PacelineError(f"prepare: a folder, a file, or a kind is required.\n{KINDS}")
    kinds = find_kinds(location)
    if len(kinds) > 1:
        lines = [f"  {sign}:  {format_command('prepare', kind, *data, *more)}" for kind, (sign, data) in kinds.items()]
        raise PacelineError("\n".join([f"{location}: {len(kinds)} kinds of data sets fit. Name the kind:", *lines]))
    for kind, (sign, data) in kinds.items():
        printer.line(f"{location}: kind {kind} (found {sign})")
        return [kind, *data, *more]
    if not Path(location).exists() and (near := suggest_name(location, names)):
        raise PacelineError(f"{location}: there is no such folder, and no such kind of data set. {near}")
    contents = f"contents: {join_names(path.name for path in list_matching(location))}"
    contents = contents if Path(location).exists() else "no folder, and no file of a known kind"
    advice = suggest_export(Path(location)) or f"Looked for these kinds. Name one if its files have other names.\n{KINDS}"
    raise PacelineError(f"{location}: no kind of data set fits ({contents}). {advice}")


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
            raise PacelineError(f"{devkit}: not found. It has the classes of the validation images. Use --devkit FILE.")
        tars = {"train": (flags.train_tar,), "val": (flags.val_tar,)}
        named: dict[str, Any] = {**tars, "devkit": devkit, "expect": "imagenet"}
        return _index_containers(printer, "tar", ContainerFlags(**named, **_flaws(flags)))
    out = out_folder(flags.output_dir)
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
            val=ValSplit(flags.val_fraction, flags.split_seed, flags.group_by),
            progress=progress,
        )
    return _printed(printer, manifest)


def _flaws(flags: FolderFlags | BoxFlags) -> dict[str, Any]:
    """Where the index goes, who works, and what to do about flaws."""
    return {name: getattr(flags, name) for name in ("output_dir", "workers", "on_unreadable")}


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
    if coco.zip_dir:
        from paceline.data.prepare.detect import COCO_ZIPS

        if flags.data or flags.val_fraction or coco.images_dir:
            raise PacelineError("--zip-dir names all files. Leave --data, --images-dir and --val-fraction out.")
        paths = [Path(coco.zip_dir).expanduser() / name for name in COCO_ZIPS]
        if lacking := [path for path in paths if not path.is_file()]:
            raise PacelineError(f"{lacking[0]}: not there. --zip-dir is the folder of {', '.join(COCO_ZIPS)}.")
        train, val, boxes = map(str, paths)
        named: dict[str, Any] = {"train": (train,), "val": (val,), "annotations": boxes, "val_annotations": boxes}
        named |= {name: getattr(coco, name) for name in ("expect", "on_missing", "on_class_mismatch")}
        return _index_containers(printer, "zip", ContainerFlags(**named, **_flaws(coco)))
    out = out_folder(flags.output_dir)
    files = (coco.images_dir, coco.annotations, coco.val_images_dir, coco.val_annotations)
    if flags.data and any(files):
        raise PacelineError("name either the data set's folder or --images-dir and --annotations, not both.")
    if not flags.data and not any(files):
        also = ", or --images-dir DIR --annotations FILE" if kind == "coco" else ""
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
        raise PacelineError(f"name the files: paceline prepare {layout} --train FILE... --val FILE... --output-dir DIR")
    return _index_containers(printer, layout, flags)


def _index_containers(printer: Printer, layout: str, flags: ContainerFlags) -> int:
    from paceline.data.containers.source import ContainerRequest, prepare_containers

    wanted = asdict(flags)
    out, workers = out_folder(wanted.pop("output_dir")), wanted.pop("workers")
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

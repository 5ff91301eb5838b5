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

KINDS = f"""usage: paceline prepare [KIND] DIR|FILE ...   (without KIND, the kind is detected; KIND --help prints its flags)

  folder DIR     class folders: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg; or DIR/CLASS/*.jpg with --val-fraction
  imagenet DIR   like folder, for all 1,281,167 + 50,000 images of ImageNet-1k; or --train-tar FILE --val-tar FILE
  coco DIR       boxes and masks: DIR/annotations/instances_train2017.json and DIR/train2017; or --zip-dir DIR; or files
  voc DIR        boxes: Pascal VOC, DIR/Annotations/*.xml and DIR/JPEGImages
  yolo DIR       boxes, and masks as polygons: DIR/data.yaml and label files
  photos         separate image files, usually in a bucket: --train 's3://BUCKET/train/*/*.jpg'
  {", ".join(ARCHIVES):<13}  images in archives, which are not unpacked: [--train] FILE... --val FILE... --output-dir DIR
  webdataset     tars of KEY.jpg with KEY.cls or .json (these, photos, and archives accept paths, patterns, and URLs, s3://)
  recordio       MXNet .rec files
  tfrecord       TensorFlow files, with the features of the original ImageNet and COCO scripts
  shapes         the built-in dataset, rendered into the cache"""


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
OnUnreadable = Literal["error", "skip"]
OnMismatch = Literal["error", "warn"]


@dataclass(frozen=True)
class FolderFlags:
    """What to verify."""

    data: Annotated[str, Help("folder with train/ and val/, or class folders; `--data` can be omitted")] = ""
    output_dir: Annotated[str, Help("folder for the manifest and index; empty: in the dataset or the cache")] = ""
    workers: Annotated[int, Help("decoding processes; 0: one per core")] = 0
    on_unreadable: Annotated[OnUnreadable, Help("image that cannot be decoded: stop with an error, or skip it")] = "error"
    val_fraction: Annotated[float, Help("fraction of each class for validation, if there is no val/")] = 0.0
    split_seed: Annotated[int, Help("random seed of the validation split")] = 0
    group_by: Annotated[str, Help("regular expression: images with the same captured text stay in one split")] = ""


@dataclass(frozen=True)
class ImagenetFlags(FolderFlags):
    """What to verify: class folders, or the official archives as they were downloaded."""

    train_tar: Annotated[str, Help("ILSVRC2012_img_train.tar, a tar of 1,000 tars, which is not unpacked")] = ""
    val_tar: Annotated[str, Help("ILSVRC2012_img_val.tar")] = ""
    devkit: Annotated[str, Help("ILSVRC2012_devkit_t12.tar.gz; empty: next to --val-tar")] = ""


@dataclass(frozen=True)
class BoxFlags:
    """What to read, and what to do about flaws."""

    data: Annotated[str, Help("folder of the dataset; `--data` can be omitted")] = ""
    output_dir: Annotated[str, Help("folder for the manifest and index; empty: in the dataset or the cache")] = ""
    workers: Annotated[int, Help("decoding processes; 0: one per core")] = 0
    val_fraction: Annotated[float, Help("fraction of the images for validation, if the dataset has none")] = 0.0
    split_seed: Annotated[int, Help("random seed of the validation split")] = 0
    group_by: Annotated[str, Help("regular expression: images with the same captured text stay in one split")] = ""
    on_missing: Annotated[OnUnreadable, Help("missing or unlisted image: stop with an error, or skip it")] = "error"
    on_unreadable: Annotated[OnUnreadable, Help("image that cannot be decoded: stop with an error, or skip it")] = "error"
    on_class_mismatch: Annotated[OnMismatch, Help("objects of a class that only val has: stop with an error, or warn")] = (
        "error"
    )


@dataclass(frozen=True)
class CocoFlags(BoxFlags):
    """What to read, and what to do about flaws. Name the folder, or the four files and folders, or the zips as downloaded."""

    zip_dir: Annotated[str, Help("folder of train2017.zip, val2017.zip, and the annotations, which are not unpacked")] = ""
    images_dir: Annotated[str, Help("folder of the training images, for a custom layout")] = ""
    annotations: Annotated[str, Help("COCO JSON file of the training images")] = ""
    val_images_dir: Annotated[str, Help("folder of the validation images; empty: as --images-dir")] = ""
    val_annotations: Annotated[str, Help("COCO JSON file of the validation images")] = ""
    expect: Annotated[Literal["any", "coco2017"], Help("coco2017: require all images of COCO 2017")] = "any"


Files = tuple[str, ...]


@dataclass(frozen=True)
class ContainerFlags:
    """What to index, and what to do about flaws."""

    train: Annotated[Files, Help("training files: paths, 'shards-*.tar', 'shard-{000..127}.tar', or URLs")] = ()
    val: Annotated[Files, Help("validation files, as for --train")] = ()
    output_dir: Annotated[str, Help("folder for the manifest and index; empty: a folder in the cache (printed)")] = ""
    annotations: Annotated[str, Help("COCO JSON file of the training images, or a zip with it")] = ""
    val_annotations: Annotated[str, Help("COCO JSON file of the validation images, or a zip with it")] = ""
    class_names_file: Annotated[str, Help("file of class names, one per line or JSON; empty: names are numbers")] = ""
    num_classes: Annotated[Whole, Help("number of classes, if some have no images; 0: classes of the images")] = 0
    label_offset: Annotated[int, Help("number of the first class in the files; -1: 1 in TFRecords, 0 in others")] = -1
    label_column: Annotated[int, Help("index of the class in RecordIO labels with multiple numbers, from 0")] = -1
    devkit: Annotated[str, Help("ILSVRC2012_devkit_t12.tar.gz, which has the classes of the val tar")] = ""
    expect: Annotated[Literal["any", "imagenet", "coco2017"], Help("imagenet, coco2017: require all images of it")] = "any"
    val_fraction: Annotated[float, Help("fraction of the images for validation, without --val")] = 0.0
    split_seed: Annotated[int, Help("random seed of the validation split")] = 0
    group_by: Annotated[str, Help("regular expression: images with the same captured text stay in one split")] = ""
    on_truncated: Annotated[OnUnreadable, Help("truncated file: stop with an error, or use its complete records")] = "error"
    on_unreadable: Annotated[OnUnreadable, Help("image that cannot be decoded: stop with an error, or skip it")] = "error"
    on_missing: Annotated[OnUnreadable, Help("annotated image that is missing: stop with an error, or skip it")] = "error"
    on_class_mismatch: Annotated[OnMismatch, Help("objects of a class that only val has: stop with an error, or warn")] = (
        "error"
    )
    workers: Annotated[int, Help("decoding processes and listing threads; 0: one per core")] = 0


@dataclass(frozen=True)
class ShapesFlags:
    """What to render."""

    kind: Annotated[Literal["classes", "boxes"], Help("class folders, or images with COCO annotations")] = "classes"


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
        raise PacelineError("\n".join([f"{location}: {len(kinds)} kinds of datasets fit. Use one of these:", *lines]))
    for kind, (sign, data) in kinds.items():
        printer.line(f"{location}: kind {kind} (detected by {sign})")
        return [kind, *data, *more]
    if not Path(location).exists() and (near := suggest_name(location, names)):
        raise PacelineError(f"{location}: not a folder or a kind of dataset. {near}")
    contents = f"contents: {join_names(path.name for path in list_matching(location))}"
    contents = contents if Path(location).exists() else "not a folder or a file of a known kind"
    advice = suggest_export(Path(location)) or f"If the files have other names, add the kind.\n{KINDS}"
    raise PacelineError(f"{location}: no kind of dataset fits ({contents}). {advice}")


def _with_data(arguments: Sequence[str]) -> Sequence[str]:
    """The words with the flag of the data set's folder, whose name may be left out."""
    return ["--data", *arguments] if arguments and not arguments[0].startswith("-") else arguments


def _folder(kind: str, printer: Printer, arguments: Sequence[str]) -> int:
    default = ImagenetFlags() if kind == "imagenet" else FolderFlags()
    flags = parse(printer, _with_data(arguments), default, f"prepare {kind}", "Verify class folders and index them.")
    if isinstance(flags, ImagenetFlags) and (flags.train_tar or flags.val_tar):
        if flags.data or flags.val_fraction or not (flags.train_tar and flags.val_tar):
            raise PacelineError("--train-tar FILE and --val-tar FILE: use both, without --data and --val-fraction.")
        devkit = flags.devkit or str(Path(flags.val_tar).with_name(DEVKIT))  # beside the second tar where none is named
        if not Path(devkit).expanduser().is_file():
            raise PacelineError(f"{devkit}: not found. It has the classes of the validation images. Use --devkit FILE.")
        tars = {"train": (flags.train_tar,), "val": (flags.val_tar,)}
        named: dict[str, Any] = {**tars, "devkit": devkit, "expect": "imagenet"}
        return _index_containers(printer, "tar", ContainerFlags(**named, **_flaws(flags)))
    out = out_folder(flags.output_dir)
    if not flags.data:
        raise PacelineError(f"the folder with train/ and val/ is required: paceline prepare {kind} --data DIR")
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
            printer.say(f"{folder.name}: {moved:,} images moved into class folders, by the labels of the development kit")


def _boxes(kind: Literal["coco", "voc", "yolo"], printer: Printer, arguments: Sequence[str]) -> int:
    default = CocoFlags() if kind == "coco" else BoxFlags()
    about = "Verify images with boxes or masks and index them."
    flags = parse(printer, _with_data(arguments), default, f"prepare {kind}", about)
    coco = flags if isinstance(flags, CocoFlags) else CocoFlags()
    if coco.zip_dir:
        from paceline.data.prepare.detect import COCO_ZIPS

        if flags.data or flags.val_fraction or coco.images_dir:
            raise PacelineError("--zip-dir: not supported with --data, --images-dir, and --val-fraction. Remove them.")
        paths = [Path(coco.zip_dir).expanduser() / name for name in COCO_ZIPS]
        if lacking := [path for path in paths if not path.is_file()]:
            raise PacelineError(f"{lacking[0]}: not found. --zip-dir must contain {', '.join(COCO_ZIPS)}.")
        train, val, boxes = map(str, paths)
        named: dict[str, Any] = {"train": (train,), "val": (val,), "annotations": boxes, "val_annotations": boxes}
        named |= {name: getattr(coco, name) for name in ("expect", "on_missing", "on_class_mismatch")}
        return _index_containers(printer, "zip", ContainerFlags(**named, **_flaws(coco)))
    out = out_folder(flags.output_dir)
    files = (coco.images_dir, coco.annotations, coco.val_images_dir, coco.val_annotations)
    if flags.data and any(files):
        raise PacelineError("pass either the folder of the dataset, or --images-dir and --annotations, not both.")
    if not flags.data and not any(files):
        also = ", or --images-dir DIR --annotations FILE" if kind == "coco" else ""
        raise PacelineError(f"the folder of the dataset is required: paceline prepare {kind} --data DIR{also}")
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
            raise PacelineError(f"{arguments[0]}: pass the training files only once, with or without --train.")
        arguments = ["--train", *arguments]
    about = "Verify images in containers and index them."
    flags = parse(printer, arguments, ContainerFlags(), f"prepare {layout}", about)
    if not flags.train and not flags.val:
        raise PacelineError(f"files are required: paceline prepare {layout} --train FILE... --val FILE... --output-dir DIR")
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
    flags = parse(printer, arguments, ShapesFlags(), "prepare shapes", "Render the built-in dataset.")
    from paceline.data.shapes.render import shapes_folder

    printer.say(shapes_folder(flags.kind))
    return 0

"""`paceline prepare photos|tar|zip|webdataset|recordio|tfrecord --train FILE... --val FILE... --out DIR`: index only, bytes stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from paceline.command.flags import parse
from paceline.command.shared_flags import out_folder
from paceline.config.errors import UserError

if TYPE_CHECKING:
    from paceline.store.manifest import Manifest


class Progress(Protocol):
    """Shows how far something is."""

    def __call__(self, done: int, total: int, what: str = ...) -> None: ...


Bar = Callable[[], AbstractContextManager[Progress]]


Files = tuple[str, ...]
OnFlaw = Literal["refuse", "skip"]


@dataclass(frozen=True)
class ContainerFlags:
    """What to index, and what to do about flaws."""

    train: Files = ()  # may be left out; paths, 'shards-*.tar', 'shard-{000..127}.tar', or addresses (s3://, gs://, https://)
    val: Files = ()  # the same of the validation photos
    out: str = ""  # where manifest and index go; empty = a folder in the cache, which is printed
    annotations: str = ""  # boxes: COCO JSON of the training photos, or the zip that holds it
    val_annotations: str = ""  # boxes: the same of the validation photos
    classes: str = ""  # a file of class names, one a line or a JSON list; or how many classes there are
    first_label: int = -1  # number of the first class in the files; -1 = 1 in TFRecords, 0 in others
    label_column: int = -1  # RecordIO with several numbers as label, no boxes: which of them is the class, from 0
    devkit: str = ""  # ILSVRC2012_devkit_t12.tar.gz, which knows the classes of ImageNet's validation tar
    expect: Literal["any", "imagenet", "coco2017"] = "any"  # refuse whatever is not the whole of that set
    val_fraction: float = 0.0  # share of the photos that is set apart for validation, where no --val is named
    val_seed: int = 0  # another seed sets other photos apart
    val_group: str = ""  # regular expression: photos whose names match with the same captured text stay together
    on_truncated: OnFlaw = "refuse"  # a file that is cut off: stop, or use its whole records
    on_unreadable: OnFlaw = "refuse"  # a photo that does not decode: stop, or leave it out and count it
    on_missing: OnFlaw = "refuse"  # an annotated photo that is not there: stop, or leave it out and count it
    on_class_mismatch: Literal["refuse", "warn"] = "refuse"  # objects in val of a class that train does not know
    workers: int = 0  # threads that list and decode; 0 = one a core


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
COCO_ZIPS = ("train2017.zip", "val2017.zip", "annotations_trainval2017.zip")
LAYOUTS = ("photos", "tar", "zip", "webdataset", "recordio", "tfrecord")


def prepare(layout: str, arguments: Sequence[str], bar: Bar) -> Manifest:
    """Carry out one command line. Raises UserError for flags that do not fit, DataError for containers that do not."""
    if arguments and not arguments[0].startswith("-"):
        if any(word.partition("=")[0] == "--train" for word in arguments):
            raise UserError(f"{arguments[0]}: name the training files once, either with --train or without it.")
        arguments = ["--train", *arguments]
    flags = parse(
        arguments, ContainerFlags(), prog=f"prepare {layout}", description="Verify photos in containers and index them."
    )
    if not flags.train and not flags.val:
        raise UserError(f"name the files: paceline prepare {layout} --train FILE... --val FILE... --out DIR")
    return index_containers(layout, flags, bar)


def imagenet_tars(flags: ContainerFlags, bar: Bar) -> Manifest:
    """ImageNet's two tars as they were downloaded; the devkit lies beside the second where none is named."""
    devkit = flags.devkit or str(Path(flags.val[0]).with_name(DEVKIT))
    if not Path(devkit).expanduser().is_file():
        raise UserError(
            f"{devkit}: not there. The classes of the validation photos are in {DEVKIT}, which comes from where the tars come "
            "from; name it with --devkit FILE."
        )
    return index_containers("tar", replace(flags, devkit=devkit, expect="imagenet"), bar)


def coco_zips(folder: str, flags: ContainerFlags, bar: Bar) -> Manifest:
    """COCO 2017's zips in a folder, as they were downloaded."""
    files = [Path(folder).expanduser() / name for name in COCO_ZIPS]
    if lacking := [path for path in files if not path.is_file()]:
        raise UserError(f"{lacking[0]}: not there. --zips names the folder of {', '.join(COCO_ZIPS)}, as downloaded.")
    train, val, annotations = map(str, files)
    return index_containers(
        "zip", replace(flags, train=(train,), val=(val,), annotations=annotations, val_annotations=annotations), bar
    )


def index_containers(layout: str, flags: ContainerFlags, bar: Bar) -> Manifest:
    """Index what `flags` name. Raises DataError for every flaw."""
    from paceline.datasets.containers.source import ContainerRequest, prepare_containers

    wanted = asdict(flags)
    out, workers = out_folder(wanted.pop("out")), wanted.pop("workers")
    request = replace(ContainerRequest("tar"), **{**wanted, "layout": layout})
    with bar() as progress:
        return prepare_containers(
            request,
            out=out,
            workers=workers or None,
            walked=lambda done, total: progress(done, total, "listing"),
            progress=progress,
        )

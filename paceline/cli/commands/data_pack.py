"""`paceline data pack DIR --format webdataset|recordio|tfrecord --output-dir DIR [--resize-shorter-side N --jpeg-quality Q]`: a data
set into few large files.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.text import format_count
from paceline.cli.commands.prepare import progress_bar
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.data.storage.store import out_folder


@dataclass(frozen=True)
class PackFlags:
    """What to pack. Without --resize-shorter-side and --jpeg-quality every photo's bytes stay what they are."""

    folder: Annotated[str, tyro.conf.Positional, Help("a data set: prepared, or class folders, COCO, VOC, YOLO")] = ""
    format: Annotated[str, Help("webdataset: tars of KEY.jpg and label; recordio: MXNet's .rec; tfrecord")] = "webdataset"
    output_dir: Annotated[str, Help("new or empty folder; the same command again goes on with what it began")] = ""
    resize_shorter_side: Annotated[int, Help("make photos with a longer shorter side smaller (pixels); 0: keep sizes")] = 0
    jpeg_quality: Annotated[int, Help("quality of JPEGs that are written anew: 1 to 100; 0: 90, or as they are")] = 0
    order: Annotated[str, Help("kept: as the data set has its records; shuffled: drawn by --seed")] = "kept"
    seed: Annotated[int, Help("another seed shuffles otherwise")] = 0
    num_shards: Annotated[int, Help("files of the training split; the others' have as many records each")] = 0
    shard_size: Annotated[str, Help("size of a file, e.g. 500MB; empty: 1GiB, recordio: one file a split")] = ""
    workers: Annotated[int, Help("threads that read and encode; 0: one a core, more for stores on a network")] = 0


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Pack and prepare a data set, and print its splits and notes."""
    about = "Pack a data set into WebDataset's tars, MXNet's RecordIO or TFRecord."
    flags = parse(printer, arguments, PackFlags(), "data pack", about)
    out = out_folder(flags.output_dir)
    if not flags.folder or out is None:
        raise PacelineError(
            "name a data set and a folder: paceline data pack DIR --format webdataset|recordio|tfrecord --output-dir DIR"
        )
    if flags.order not in ("kept", "shuffled"):
        raise PacelineError(f"--order {flags.order}: kept or shuffled.")
    from paceline.data.pack.pack import pack
    from paceline.data.pack.plan import PackRequest, check_request, parse_bytes
    from paceline.data.prepare.auto_prepare import prepare_source
    from paceline.tools.report.prepare_notes import prepare_record

    names = ("format", "order", "seed", "resize_shorter_side", "jpeg_quality", "num_shards")
    named: dict[str, Any] = {name: getattr(flags, name) for name in names}
    request = PackRequest(**named, shard_bytes=parse_bytes(flags.shard_size, "--shard-size"))
    check_request(request)
    manifest = prepare_source(flags.folder, printer)
    with progress_bar(printer) as progress:
        packed, notes = pack(manifest, request, out, workers=flags.workers, progress=progress)
    printer.facts = prepare_record(packed)
    for name, split in packed.splits.items():
        files = split.arrays["file_sizes"][1]
        objects = "" if split.boxes is None else f", {format_count(split.boxes.objects, 'object')}"
        printer.say(
            f"{name}: {format_count(split.images, 'photo')}{objects}, {split.bytes:,} bytes, in {format_count(files, 'file')}"
        )
    for note in notes:
        printer.say(f"note: {note}")
    printer.say(f"content {packed.content_hash}")
    printer.say(f"train with:  --data {shlex.quote(str(packed.folder))}")
    return 0

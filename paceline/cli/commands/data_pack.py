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

    folder: Annotated[str, tyro.conf.Positional, Help("dataset: prepared, class folders, COCO, VOC, or YOLO")] = ""
    format: Annotated[str, Help("webdataset (tars), recordio (MXNet's .rec), or tfrecord")] = "webdataset"
    output_dir: Annotated[str, Help("new or empty folder; to continue an interrupted command, run it again")] = ""
    resize_shorter_side: Annotated[int, Help("maximum shorter side, by resizing larger images (pixels); 0: keep")] = 0
    jpeg_quality: Annotated[int, Help("JPEG quality, 1 to 100; 0: 90 for resized images, others unchanged")] = 0
    order: Annotated[str, Help("kept: order of the dataset; shuffled: random order by --seed")] = "kept"
    seed: Annotated[int, Help("random seed of --order shuffled")] = 0
    num_shards: Annotated[int, Help("number of files of the training split; other splits: as many records per file")] = 0
    shard_size: Annotated[str, Help("maximum file size, e.g. 500MB; empty: 1GiB, or one file per split for recordio")] = ""
    workers: Annotated[int, Help("reading and encoding threads; 0: one per core, more for remote data")] = 0


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Pack and prepare a data set, and print its splits and notes."""
    about = "Pack a dataset into WebDataset tars, MXNet RecordIO, or TFRecord."
    flags = parse(printer, arguments, PackFlags(), "data pack", about)
    out = out_folder(flags.output_dir)
    if not flags.folder or out is None:
        raise PacelineError(
            "a dataset and a folder are required: paceline data pack DIR --format webdataset|recordio|tfrecord --output-dir DIR"
        )
    if flags.order not in ("kept", "shuffled"):
        raise PacelineError(f"--order {flags.order}: must be kept or shuffled.")
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
            f"{name}: {format_count(split.images, 'image')}{objects}, {split.bytes:,} bytes, in {format_count(files, 'file')}"
        )
    for note in notes:
        printer.say(f"note: {note}")
    printer.say(f"content {packed.content_hash}")
    printer.say(f"train with:  --data {shlex.quote(str(packed.folder))}")
    return 0

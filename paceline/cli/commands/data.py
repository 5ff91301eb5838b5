"""`paceline data info DIR`: what a prepared data set holds, split by split; `clear`: removes the copies of --stage; "
"`lint`. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.hashing import sha256
from paceline._utils.text import escape_line, format_count, join_names
from paceline.cli.flags import parse
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest, repeat_command
from paceline.data.index.staleness import find_stale_file, remote_addresses
from paceline.data.storage.staged_copy import clear_copies

USAGE = """usage: paceline data info DIR [--json]
       paceline data clear DIR
       paceline data lint DIR [--runs RUN ...] [--page FILE] [--json]

  info DIR    of each split of a prepared data set: records, classes, bytes, how its records lie, labels_sha256
  lint DIR    look for what spoils a result: copies across splits, labels that contradict each other or a run, odd boxes
  clear DIR   remove the copies that `paceline train --stage DIR` made there, and nothing else"""


@dataclass(frozen=True)
class DataFlags:
    """Which data set."""

    folder: Annotated[str, tyro.conf.Positional, Help("folder of a manifest.json, or the data set's own")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


@dataclass(frozen=True)
class DataClearFlags:
    """Which copies."""

    folder: Annotated[str, tyro.conf.Positional, Help("the folder that --stage had")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what the manifest and index say; they are compared with the files first."""
    if not arguments or arguments[0] in HELP:
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "clear":
        return run_clear(printer, arguments[1:])
    if arguments[0] == "lint":
        from paceline.cli.commands.data_lint import run as lint

        return lint(printer, arguments[1:])
    if arguments[0] != "info":
        raise PacelineError(f"data {arguments[0]!r}: there is no such command. Known: info, lint, clear.")
    flags = parse(printer, arguments[1:], DataFlags(), "data info", "What a prepared data set holds.")
    if not flags.folder:
        raise PacelineError("name a prepared data set: paceline data info DIR")
    path = find_manifest(Path(flags.folder).expanduser())
    if path is None:
        raise PacelineError(
            f"{flags.folder}: no manifest of paceline for it. Prepare it first: paceline prepare --help lists the kinds."
        )
    manifest = Manifest.load(path)
    if (stale := find_stale_file(manifest, network=False)) is not None:
        raise PacelineError(f"{flags.folder}: out of date: {stale}. Prepare it again:\n  {repeat_command(manifest)}")
    facts = describe(manifest)
    if flags.json:
        print(json.dumps(facts, indent=1))
        return 0
    for name, split in facts["splits"].items():
        printer.say(
            f"{name}: {format_count(split['records'], 'record')} of {format_count(split['classes'], 'class')}, "
            f"{split['bytes']:,} bytes"
        )
        printer.say(f"  lie as {split['kind']} in {format_count(split['files'], 'file')}, {split['first_file']} first")
        printer.say(f"  labels_sha256 {split['labels_sha256']}")
    if locations := remote_addresses(manifest):
        printer.say(f"photos lie at {join_names(map(escape_line, locations))}, which was not asked")
    printer.say(f"content {facts['content_hash']}")
    printer.say(f"manifest: {path}")
    return 0


def run_clear(printer: Printer, arguments: Sequence[str]) -> int:
    """Remove what --stage copied into a folder; exit code 1 where something of others' keeps a folder there."""
    flags = parse(printer, arguments, DataClearFlags(), "data clear", "Remove the copies that --stage made.")
    folder = Path(flags.folder).expanduser()
    if not flags.folder or not folder.is_dir():
        raise PacelineError(f"{flags.folder or 'data clear'}: name the folder that --stage had: paceline data clear DIR")
    sets, size, left = clear_copies(folder)
    printer.say(f"{folder}: {sets} {'copy' if sets == 1 else 'copies'} removed, {size:,} bytes")
    for path in left:
        printer.say(f"{path}: stays, for files in it that --stage did not write")
    return 1 if left else 0


def describe(manifest: Manifest) -> dict[str, Any]:
    """What `--json` prints. Raises DataError where the index is damaged."""
    splits = {}
    for name, split in manifest.splits.items():
        index = open_split(manifest, name)
        locations = index.records.places
        # The digest is over classes 0..K-1 as little-endian int32 in record order; of boxes, over those of their objects.
        labels = index.labels if split.boxes is None else index.extra["classes"] - 1
        splits[name] = {
            "records": len(index),
            "classes": len(manifest.classes),
            "bytes": int(index.lengths.sum()),
            "labels_sha256": sha256(np.ascontiguousarray(labels, "<i4").tobytes()),
            "kind": split.records,
            "files": len(locations.file_sizes),
            "first_file": index.records.path(0) if len(index) else "",
        }
        if split.boxes is not None:
            splits[name]["objects"] = split.boxes.objects
    return {
        "kind": manifest.kind,
        "splits": splits,
        "class_names": list(manifest.class_names or manifest.classes),
        "content_hash": manifest.content_hash,
        "manifest": str(manifest.folder),
    }

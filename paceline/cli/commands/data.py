"""`paceline data info DIR`: what a prepared data set holds, split by split; `clear`: copies of --stage go; `lint`. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from paceline._utils.errors import UserError
from paceline._utils.hashing import sha256
from paceline._utils.text import counted, one_line, some
from paceline.cli.flags import parse
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest, prepare_again
from paceline.data.index.staleness import addresses, check_fresh
from paceline.data.storage.staged_folder import clear

USAGE = """usage: paceline data info DIR [--json]
       paceline data clear DIR
       paceline data lint DIR [--runs RUN ...] [--page FILE] [--json]

  info DIR    of each split of a prepared data set: records, classes, bytes, how its records lie, labels_sha256
  lint DIR    look for what spoils a result: copies across splits, labels that contradict each other or a run, odd boxes
  clear DIR   remove the copies that `paceline train --stage DIR` made there, and nothing else"""


@dataclass(frozen=True)
class Flags:
    """Which data set."""

    folder: Annotated[str, tyro.conf.Positional, Help("folder of a manifest.json, or the data set's own")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


@dataclass(frozen=True)
class ClearFlags:
    """Which copies."""

    folder: Annotated[str, tyro.conf.Positional, Help("the folder that --stage had")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what the manifest and index say; they are compared with the files first."""
    if not arguments or arguments[0] in HELP:
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "clear":
        return clear_copies(printer, arguments[1:])
    if arguments[0] == "lint":
        from paceline.cli.commands.data_lint import run as lint

        return lint(printer, arguments[1:])
    if arguments[0] != "info":
        raise UserError(f"data {arguments[0]!r}: there is no such command. Known: info, lint, clear.")
    flags = parse(printer, arguments[1:], Flags(), "data info", "What a prepared data set holds.")
    if not flags.folder:
        raise UserError("name a prepared data set: paceline data info DIR")
    place = find_manifest(Path(flags.folder).expanduser())
    if place is None:
        raise UserError(
            f"{flags.folder}: no manifest of paceline for it. Prepare it first: paceline prepare --help lists the kinds."
        )
    manifest = Manifest.load(place)
    if (stale := check_fresh(manifest, network=False)) is not None:
        raise UserError(f"{flags.folder}: out of date: {stale}. Prepare it again:\n  {prepare_again(manifest)}")
    facts = describe(manifest)
    if flags.json:
        print(json.dumps(facts, indent=1))
        return 0
    for name, split in facts["splits"].items():
        printer.say(
            f"{name}: {counted(split['records'], 'record')} of {counted(split['classes'], 'class')}, {split['bytes']:,} bytes"
        )
        printer.say(f"  lie as {split['kind']} in {counted(split['files'], 'file')}, {split['first_file']} first")
        printer.say(f"  labels_sha256 {split['labels_sha256']}")
    if places := addresses(manifest):
        printer.say(f"photos lie at {some(map(one_line, places))}, which was not asked")
    printer.say(f"content {facts['content_hash']}")
    printer.say(f"manifest: {place}")
    return 0


def clear_copies(printer: Printer, arguments: Sequence[str]) -> int:
    """Remove what --stage copied into a folder; exit code 1 where something of others' keeps a folder there."""
    flags = parse(printer, arguments, ClearFlags(), "data clear", "Remove the copies that --stage made.")
    folder = Path(flags.folder).expanduser()
    if not flags.folder or not folder.is_dir():
        raise UserError(f"{flags.folder or 'data clear'}: name the folder that --stage had: paceline data clear DIR")
    sets, size, left = clear(folder)
    printer.say(f"{folder}: {sets} {'copy' if sets == 1 else 'copies'} removed, {size:,} bytes")
    for place in left:
        printer.say(f"{place}: stays, for files in it that --stage did not write")
    return 1 if left else 0


def describe(manifest: Manifest) -> dict[str, Any]:
    """What `--json` prints. Raises DataError where the index is damaged."""
    splits = {}
    for name, split in manifest.splits.items():
        index = open_split(manifest, name)
        places = index.records.places
        # The digest is over classes 0..K-1 as little-endian int32 in record order; of boxes, over those of their objects.
        labels = index.labels if split.boxes is None else index.extra["classes"] - 1
        splits[name] = {
            "records": len(index),
            "classes": len(manifest.classes),
            "bytes": int(index.lengths.sum()),
            "labels_sha256": sha256(np.ascontiguousarray(labels, "<i4").tobytes()),
            "kind": split.records,
            "files": len(places.file_sizes),
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

"""`paceline data info DIR`: what a prepared data set holds, split by split; `lint`: what in it would spoil a result (exit code 1);
`pack`: few large files of it (data_pack.py); `clear`: removes the copies of --copy-data-to. No torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.hashing import sha256
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import read_entry
from paceline._utils.text import escape_line, format_count, join_names
from paceline.cli.commands.data_pack import run as run_pack
from paceline.cli.flags import parse, run_kind
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.run import run_folder
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, find_manifest, repeat_command
from paceline.data.index.staleness import find_stale_file, remote_addresses
from paceline.data.storage.staged_copy import clear_copies

if TYPE_CHECKING:
    from paceline.data.checks.lint import LintIssue
    from paceline.data.index.index import Index
    from paceline.tools.report.check.page_parts import CheckExamples

USAGE = """usage: paceline data info DIR [--json]
       paceline data clear DIR
       paceline data lint DIR [--predictions RUN ...] [--html FILE] [--json]
       paceline data pack DIR --format FORMAT --output-dir DIR

  info DIR    describe each split of a prepared dataset: records, classes, bytes, storage format, labels_sha256
  lint DIR    find problems: duplicates across splits, contradicting or doubtful labels, suspicious boxes
  pack DIR    write a dataset as WebDataset tars, RecordIO, or TFRecord, with original or resized images
  clear DIR   remove only the copies that `paceline train --copy-data-to DIR` made in this folder"""

TILES, SIDE = 24, 300  # pictures of a finding on the page, pixels of their longer side
MAX_BYTES = 1 << 30  # of a predictions file
Words = tuple[str, ...]


@dataclass(frozen=True)
class DataFlags:
    """Which data set."""

    folder: Annotated[str, tyro.conf.Positional, Help("folder of a manifest.json or of the dataset")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


@dataclass(frozen=True)
class DataClearFlags:
    """Which copies."""

    folder: Annotated[str, tyro.conf.Positional, Help("folder that was passed to --copy-data-to")] = ""


@dataclass(frozen=True)
class DataLintFlags:
    """What to look at."""

    folder: Annotated[str, tyro.conf.Positional, Help("dataset")] = ""
    predictions: Annotated[Words, Help("runs or files of eval --output on these images, to find wrong labels")] = ()
    html: Annotated[str, Help("HTML file to write all issues to, with images")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Carry out one of the four."""
    return run_kind(
        printer, arguments, USAGE, "data", {"info": run_info, "lint": run_lint, "pack": run_pack, "clear": run_clear}
    )


def run_info(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what the manifest and index say; they are compared with the files first."""
    flags = parse(printer, arguments, DataFlags(), "data info", "Describe a prepared dataset.")
    if not flags.folder:
        raise PacelineError("a prepared dataset is required: paceline data info DIR")
    path = find_manifest(Path(flags.folder).expanduser())
    if path is None:
        raise PacelineError(f"{flags.folder}: is not prepared. Prepare it first (`paceline prepare --help`).")
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
        printer.say(f"  stored as {split['kind']} in {format_count(split['files'], 'file')}, {split['first_file']} first")
        printer.say(f"  labels_sha256 {split['labels_sha256']}")
    if locations := remote_addresses(manifest):
        printer.say(f"images are stored at {join_names(map(escape_line, locations))} (not contacted)")
    printer.say(f"content {facts['content_hash']}")
    printer.say(f"manifest: {path}")
    return 0


def run_clear(printer: Printer, arguments: Sequence[str]) -> int:
    """Remove what --copy-data-to copied into a folder; exit code 1 where something of others' keeps a folder there."""
    flags = parse(printer, arguments, DataClearFlags(), "data clear", "Remove the copies that --copy-data-to made.")
    folder = Path(flags.folder).expanduser()
    if not flags.folder or not folder.is_dir():
        raise PacelineError(f"{flags.folder or 'DIR'}: must be the folder of --copy-data-to: paceline data clear DIR")
    sets, size, left = clear_copies(folder)
    printer.say(f"{folder}: {sets} {'copy' if sets == 1 else 'copies'} removed, {size:,} bytes")
    for path in left:
        printer.say(f"{path}: kept, because it has files that --copy-data-to did not write")
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


def run_lint(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the findings -> 1 where one is bad, else 0."""
    flags = parse(printer, arguments, DataLintFlags(), "data lint", "Find problems in a dataset.")
    if not flags.folder:
        raise PacelineError("a dataset is required: paceline data lint DIR")
    check_user_file(flags.html, "--html")
    from paceline.data.checks.lint import format_issues, lint
    from paceline.data.checks.suspicious_boxes import KINDS, Notice, open_displayed_splits
    from paceline.tools.report.check.page import make_check_page
    from paceline.tools.report.check.page_parts import LintSummary

    answers = {name: _answers(name) for name in flags.predictions}
    manifest = _opened(Path(flags.folder).expanduser(), SILENT if flags.json else printer)
    splits, classes = open_displayed_splits(manifest), manifest.class_names or manifest.classes
    findings = lint(splits, classes, answers, folders=manifest.classes)
    bad = any(one.colour == "bad" for one in findings)
    if flags.html:
        notices = [
            Notice("bad", f"{_large(one.title)}: {len(one.found):,}. {_large(one.why)}.")
            for one in findings
            if one.colour == "bad"
        ]
        # The page has its own section of odd boxes.
        finds = [_pictured(one, splits, manifest) for one in findings if one.key not in {kind.key for kind in KINDS}]
        page = make_check_page(manifest, splits, LintSummary(notices, [find for find in finds if find.tiles]))
        write_user_file(flags.html, page.html.encode("utf-8", "replace"), "--html")
    if flags.json:
        photos = {name: len(index) for name, index in splits.items()}
        print(json.dumps({"photos": photos, "bad": bad, "findings": [one.record() for one in findings]}, indent=1))
        return int(bad)
    printer.say(
        f"{manifest.called}: "
        + ", ".join(f"{format_count(len(index), 'image')} of {name}" for name, index in splits.items())
    )
    for line in format_issues(findings):
        printer.say(line)
    printer.say(
        "no issues found" if not findings else f"page: {flags.html}" if flags.html else "with images: --html lint.html"
    )
    return int(bad)


def _opened(root: Path, reporter: Reporter) -> Manifest:
    from paceline.data.prepare.auto_prepare import is_annotated, prepare_if_needed

    if not root.is_dir():
        raise PacelineError(f"{root}: folder not found.")
    path = find_manifest(root)
    kind = Manifest.load(path).kind if path else "boxes" if is_annotated(Path(os.path.realpath(root))) else "class-folder"
    return Manifest.load(prepare_if_needed(root, kind=kind, reporter=reporter))


def _answers(name: str) -> Mapping[str, Any]:
    """The newest predictions of a run's folder, or those that `eval --output` wrote."""
    path = run_folder(Path(name).expanduser())
    files = [path] if path.is_file() else sorted((path / "predictions").glob("step-*.json"))
    if not files:
        raise PacelineError(f"--predictions {name}: not a run with predictions/step-*.json or a file of `eval --output`.")
    try:
        result = json.loads(read_entry(files[-1], MAX_BYTES))
        if result["kind"] not in ("classification", "boxes", "instances"):
            raise ValueError(f"unexpected kind {result['kind']!r}")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"--predictions {name}: {files[-1].name} is not readable: {problem}.") from None
    return result


def _pictured(one: LintIssue, splits: Mapping[str, Index], manifest: Manifest) -> CheckExamples:
    from paceline.tools.report.check.page_parts import CheckExamples, make_tile

    names = manifest.classes if manifest.kind == "boxes" else ()
    tiles = []
    for result in one.found[:TILES]:
        if result.place:
            index, row = splits[result.place[0]], result.place[1]
            tiles.append(make_tile(index, row, names, side=SIDE, focus=result.objects, caption=result.note))
    return CheckExamples(_large(one.title), f"{len(one.found):,}: {one.why}", tiles)


def _large(text: str) -> str:
    return text[0].upper() + text[1:]

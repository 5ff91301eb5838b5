"""`paceline data lint DIR [--runs RUN...] [--page FILE] [--json]`: exit code 1 where something in the set would spoil a result."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import read_entry
from paceline._utils.text import format_count
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.run import run_folder
from paceline.data.checks.lint import LintIssue, format_issues, lint
from paceline.data.checks.notices import Notice, open_displayed_splits
from paceline.data.checks.suspicious_boxes import KINDS
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.data.prepare.auto_prepare import is_annotated, prepare_if_needed
from paceline.tools.report.check.page import make_check_page
from paceline.tools.report.check.page_parts import CheckExamples, LintSummary, make_tile

TILES, SIDE = 24, 300  # pictures of a finding on the page, pixels of their longer side
MAX_BYTES = 1 << 30  # of a predictions file


Words = tuple[str, ...]


@dataclass(frozen=True)
class DataLintFlags:
    """What to look at."""

    folder: Annotated[str, tyro.conf.Positional, Help("the data set")] = ""
    runs: Annotated[Words, Help("runs or files of eval --out, scored on its photos, that contradict labels")] = ()
    page: Annotated[str, Help("also write a page with pictures of every finding to this file")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the findings -> 1 where one is bad, else 0."""
    flags = parse(printer, arguments, DataLintFlags(), "data lint", "Look for what in a data set spoils results.")
    if not flags.folder:
        raise PacelineError("name a data set: paceline data lint DIR")
    check_user_file(flags.page, "--page")
    answers = {name: _answers(name) for name in flags.runs}
    manifest = _opened(Path(flags.folder).expanduser(), SILENT if flags.json else printer)
    splits, classes = open_displayed_splits(manifest), manifest.class_names or manifest.classes
    findings = lint(splits, classes, answers, folders=manifest.classes)
    bad = any(one.colour == "bad" for one in findings)
    if flags.page:
        notices = [
            Notice("bad", f"{_large(one.title)}: {len(one.found):,}. {_large(one.why)}.")
            for one in findings
            if one.colour == "bad"
        ]
        # The page has its own section of odd boxes.
        finds = [_pictured(one, splits, manifest) for one in findings if one.key not in {kind.key for kind in KINDS}]
        page = make_check_page(manifest, splits, LintSummary(notices, [find for find in finds if find.tiles]))
        write_user_file(flags.page, page.html.encode("utf-8", "replace"), "--page")
    if flags.json:
        photos = {name: len(index) for name, index in splits.items()}
        print(json.dumps({"photos": photos, "bad": bad, "findings": [one.record() for one in findings]}, indent=1))
        return int(bad)
    printer.say(
        f"{manifest.called}: "
        + ", ".join(f"{format_count(len(index), 'photo')} of {name}" for name, index in splits.items())
    )
    for line in format_issues(findings):
        printer.say(line)
    printer.say(
        "nothing found" if not findings else f"page: {flags.page}" if flags.page else "pictures of them: --page lint.html"
    )
    return int(bad)


def _opened(root: Path, reporter: Reporter) -> Manifest:
    if not root.is_dir():
        raise PacelineError(f"{root}: there is no such folder.")
    path = find_manifest(root)
    kind = Manifest.load(path).kind if path else "boxes" if is_annotated(Path(os.path.realpath(root))) else "class-folder"
    return Manifest.load(prepare_if_needed(root, kind=kind, reporter=reporter))


def _answers(name: str) -> Mapping[str, Any]:
    """The newest predictions of a run's folder, or those that `eval --out` wrote."""
    path = run_folder(Path(name).expanduser())
    files = [path] if path.is_file() else sorted((path / "predictions").glob("step-*.json"))
    if not files:
        raise PacelineError(
            f"--runs {name}: neither a run with predictions/step-*.json nor a file that `eval --out` wrote."
        )
    try:
        result = json.loads(read_entry(files[-1], MAX_BYTES))
        if result["kind"] not in ("classification", "boxes", "instances"):
            raise ValueError(f"its kind is {result['kind']!r}")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"--runs {name}: {files[-1].name} cannot be read: {problem}.") from None
    return result


def _pictured(one: LintIssue, splits: Mapping[str, Index], manifest: Manifest) -> CheckExamples:
    names = manifest.classes if manifest.kind == "boxes" else ()
    tiles = []
    for result in one.found[:TILES]:
        if result.place:
            index, row = splits[result.place[0]], result.place[1]
            tiles.append(make_tile(index, row, names, side=SIDE, focus=result.objects, caption=result.note))
    return CheckExamples(_large(one.title), f"{len(one.found):,}: {one.why}", tiles)


def _large(text: str) -> str:
    return text[0].upper() + text[1:]

"""`paceline download NAME DIR`: a data set from its publisher, checked, unpacked and prepared: ready to train on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.reporter import Reporter
from paceline.cli.commands import prepare as prepare_verb
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.data.download.data_sets import DATA_SETS, DataSet, describe_mismatch, download, format_missing_archives

ABOUT = "Download a dataset from its publisher, and verify, unpack, and prepare it. Run the command again to resume."
ROWS = "\n".join(f"  {name:<9} {chosen.about}" for name, chosen in DATA_SETS.items())
USAGE = f"usage: paceline download NAME DIR [--source URL_OR_DIR] [--keep-archives] [--no-unpack]\n{ROWS}"


@dataclass(frozen=True)
class DownloadFlags:
    """Which data set, where from and to, and what stays."""

    name: Annotated[str, tyro.conf.Positional, Help("dataset to download")] = ""
    dir: Annotated[str, tyro.conf.Positional, Help("folder to unpack it into")] = ""
    source: Annotated[str, Help("URL of a mirror, or a folder with the archives")] = ""
    keep_archives: Annotated[bool, Help("keep the archives after unpacking")] = False
    unpack: Annotated[bool, Help("unpack the archives; off: train from the archives")] = True


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Bring one data set."""
    flags = parse(printer, arguments, DownloadFlags(), "download", f"{ABOUT}\n\n{ROWS}")
    if not flags.name or not flags.dir:
        raise PacelineError(f"a dataset and a folder are required.\n{USAGE}")
    folder = Path(flags.dir).expanduser()
    if flags.name not in DATA_SETS:
        raise PacelineError(f"download {flags.name!r}: dataset not found.\n{USAGE}")
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(f"{folder}: is a file, not a folder. Choose another folder.")
    try:
        return _carry_out(printer, flags.name, folder, flags)
    except KeyboardInterrupt:
        printer.say(f"stopped; to resume:  paceline download {shlex.join(arguments)}")
        raise


def _carry_out(printer: Printer, name: str, folder: Path, flags: DownloadFlags) -> int:
    chosen = DATA_SETS[name]
    with printer.live_progress() as reporter:
        if chosen.account:
            _by_account(printer, chosen, name, folder, flags, reporter)
            return 0
        download(chosen, folder, source=flags.source, keep=flags.keep_archives, unpacked=flags.unpack, reporter=reporter)
    if not flags.unpack:
        if chosen.prepare[0] == "coco":
            location = _quoted(folder)
            printer.say(f"to train from the archives:  paceline prepare coco --zip-dir {location} --output-dir {location}")
        return 0
    root = folder / chosen.inside
    command = [chosen.prepare[0], str(root), *chosen.prepare[1:]]
    printer.say(f"paceline prepare {shlex.join(command)}")
    code = prepare_verb.run(printer, command)
    if not code:
        printer.say(f"to train:  {_training(chosen.recipe, root)}")
    return code


def _by_account(
    printer: Printer, chosen: DataSet, name: str, folder: Path, flags: DownloadFlags, reporter: Reporter
) -> None:
    """What an account gives out: fetched from a copy where one is named, checked, never unpacked.

    Raises PacelineError, with what to fetch and where to put it, where a file is missing or another one.
    """
    if flags.source:
        download(chosen, folder, source=flags.source, keep=True, unpacked=False, reporter=reporter)
    problems = (
        {archive.name: describe_mismatch(archive, folder, reporter) for archive in chosen.archives}
        if not flags.source
        else {}
    )
    if any(problems.values()):
        raise PacelineError(format_missing_archives(chosen, name, folder, problems))
    train, val, devkit = (_quoted(folder / archive.name) for archive in chosen.archives)
    printer.say("all files are complete; to train from them without unpacking:")
    printer.say(
        f"paceline prepare imagenet --train-tar {train} --val-tar {val} --devkit {devkit} --output-dir {_quoted(folder)}"
    )
    printer.say(_training(chosen.recipe, folder))


def _training(recipe: str, folder: Path) -> str:
    """The command that trains a recipe on `folder`, from the weights that are its own."""
    from paceline.config.recipes import RECIPES

    pretrained = RECIPES[recipe]().pretrained
    return f"paceline train {recipe} --data {_quoted(folder)}{f' --weights {pretrained}' if pretrained else ''}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

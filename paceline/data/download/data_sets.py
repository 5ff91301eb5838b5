"""The data sets that `paceline download` knows, and how one comes into a folder: fetched, checked, unpacked.

data_sets.json has a row for each file: official addresses, bytes, digest. COCO publishes no digests. Those there are what TensorFlow
Datasets recorded from the official address (tensorflow_datasets/url_checksums/coco.txt) and what torchvision checks
(prototype/datasets/_builtin/coco.py): the two agree. The zips' own CRCs are checked when they are unpacked, and `prepare` counts and
decodes every photo. COCO's two addresses are one bucket; by TLS it is the second.
ImageNet: bytes as in tensorflow_datasets/url_checksums/imagenet2012.txt, MD5 as in torchvision/datasets/imagenet.py (ARCHIVE_META);
the devkit's bytes are published nowhere. VOC: bytes and SHA-256 as in url_checksums/voc.txt, addresses and MD5 as in
torchvision/datasets/voc.py.

One archive after the other, so that without --keep-archives the room of each is free for the next. The same command, given
again, resumes: archives that are unpacked are not fetched again, those that are here are checked and not fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import escape_line
from paceline.config.constraints import read_menu
from paceline.data.download.fetch import ExpectedFile, FileMismatch, fetch, local_path, require_free_space
from paceline.data.download.http import DownloadRefused
from paceline.data.download.unpack import is_unfinished, unpack


@dataclass(frozen=True)
class Archive:
    """One file of a data set."""

    path: str  # under the publisher's address; a mirror may have it there or by its name alone
    size: int | None  # bytes; None where nobody publishes it
    sha256: str = ""
    md5: str = ""
    bases: tuple[str, ...] = ()  # addresses; none where an account is needed
    gives: tuple[tuple[str, int], ...] = ()  # what it unpacks to: a folder and its files, or a file and 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def urls(self) -> list[str]:
        """The official addresses."""
        return [f"{base}/{self.path}" for base in self.bases]

    @property
    def expected(self) -> ExpectedFile:
        """What is published of it."""
        return ExpectedFile(self.size, self.sha256 or None, md5=self.md5 or None)

    def check(self, path: Path, reporter: Reporter) -> None:
        """Raises Mismatch where `path` is another file than the official one, DataError where it cannot be read."""
        self.expected.check(path, progress=lambda done: reporter.progress(f"checking {self.name}", done, self.size or 0))


@dataclass(frozen=True)
class DataSet:
    """One row of the menu."""

    about: str  # one line
    archives: tuple[Archive, ...]
    prepare: tuple[str, ...] = ()  # words of `paceline prepare` before and after the folder
    inside: str = ""  # where in the folder the data set lies once it is unpacked
    recipe: str = ""  # one that trains on it
    account: str = ""  # where the files are given out, where that takes an account


DATA_SETS = read_menu(Path(__file__).with_suffix(".json"), DataSet)


def download(
    chosen: DataSet,
    folder: Path,
    *,
    source: str = "",
    keep: bool = False,
    unpacked: bool = True,
    reporter: Reporter = SILENT,
) -> None:
    """All of a data set's archives into `folder`, unpacked there.

    source    a mirror's address or a folder, in place of the official addresses
    keep      archives that were fetched stay beside what they held; those that were there before stay anyway
    unpacked  whether they are unpacked at all
    Raises DataError in a line for what no address gives, for a file that is another one, and for want of room.
    """
    wanted = [archive for archive in chosen.archives if not (unpacked and is_unpacked(archive, folder))]
    for archive in chosen.archives:
        if archive not in wanted:
            reporter.line(f"{archive.name}: already unpacked")
    _require_room(wanted, folder, source, keep, unpacked)
    for archive in wanted:
        path, ours = _obtain(archive, folder, source, keep or not unpacked, reporter)
        if not unpacked:
            continue
        count = unpack(path, folder, reporter)
        reporter.line(f"{archive.name}: {count:,} files unpacked; their sizes and checksums match the archive")
        if ours and not keep:
            path.unlink()
        elif not ours and path.parent == folder and not keep:
            reporter.line(f"{archive.name}: kept, because the file already existed")


def is_unpacked(archive: Archive, folder: Path) -> bool:
    """Whether all that the archive gives is in `folder`. Names and counts only: `prepare` opens every photo."""
    if not archive.gives or is_unfinished(archive.name, folder):
        return False
    for name, count in archive.gives:
        path = folder / name
        if not (path.is_dir() if count else path.is_file()):
            return False
        if count and sum(1 for _ in os.scandir(path)) < count:
            return False
    return True


def describe_mismatch(archive: Archive, folder: Path, reporter: Reporter) -> str:
    """Why the archive in `folder` is not the official one; empty where it is."""
    path = folder / archive.name
    if not path.exists():
        return "missing"
    try:
        archive.check(path, reporter)
    except FileMismatch as problem:
        return str(problem).removeprefix(f"{path}: ")
    return ""


def _obtain(archive: Archive, folder: Path, source: str, keep: bool, reporter: Reporter) -> tuple[Path, bool]:
    """-> the checked archive, and whether this call put it there."""
    target = folder / archive.name
    there = os.path.lexists(target)
    urls = _places(source, archive) if source else archive.urls
    if not there and not keep and (local := _local(urls)) is not None:
        # Read where it lies: a copy would only be deleted again.
        try:
            archive.check(local, reporter)
        except FileMismatch as other:
            raise DataError(f"{other} Set --source to another location.") from None
        reporter.line(f"{archive.name}: read from {escape_line(str(local))}")
        return local, False
    fetch(urls, target, archive.expected, reporter=reporter)
    return target, not there


def _places(source: str, archive: Archive) -> list[str]:
    """A mirror has a file by its name, or where its publisher has it."""
    base = source.rstrip("/")
    return list(dict.fromkeys(f"{base}/{path}" for path in (archive.name, archive.path)))


def _local(urls: Sequence[str]) -> Path | None:
    for url in urls:
        with suppress(DownloadRefused):  # `fetch` names what is wrong with it
            if (path := local_path(url)) is not None and path.is_file():
                return path
    return None


def _require_room(wanted: Sequence[Archive], folder: Path, source: str, keep: bool, unpacked: bool) -> None:
    """Raises DataError where the disk cannot hold the most that is there at one time.

    Photos hardly shrink in an archive, so what one unpacks to is at least its own bytes; `unpack` checks the real number.
    """
    now = most = 0
    for archive in wanted:
        size = archive.size or 0
        here = folder / archive.name
        read_in_place = bool(source) and not keep and unpacked and _local(_places(source, archive)) is not None
        begun = here.with_name(f"{here.name}.part")
        came = begun.stat().st_blocks * 512 if begun.is_file() else 0
        arrives = 0 if here.exists() or read_in_place else max(0, size - came)
        most = max(most, now + arrives + (size if unpacked else 0))
        now += (size if unpacked else 0) + (arrives if keep or not unpacked else -came if arrives else 0)
    if most:
        require_free_space(folder, most, "the dataset")


def format_missing_archives(chosen: DataSet, name: str, folder: Path, problems: dict[str, str]) -> str:
    """Which files somebody has to fetch by hand, where an account is needed, and where to put them."""
    lines = [
        f"{name}: the publisher requires an account and accepted terms: {chosen.account}",
        f"Put these files into {folder} and run the same command again, or set --source URL_OR_DIR to a copy:",
    ]
    for archive in chosen.archives:
        size = f"{archive.size:,} bytes, " if archive.size else ""
        problem = problems.get(archive.name, "")
        lines.append(f"  {archive.name}  {size}MD5 {archive.md5}  {problem or 'already exists, checksum verified'}")
    return "\n".join(lines)

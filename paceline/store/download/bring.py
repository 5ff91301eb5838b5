"""A data set of the menu into a folder: what is there is checked, what is missing is fetched, archives are unpacked.

One archive after the other, so that without --keep-archives the room of each is free for the next. The same command, given
again, goes on: archives that are unpacked are not fetched again, those that are here are checked and not fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.printable import one_line
from paceline.store.download.fetch import fetch
from paceline.store.download.sources import Archive, DataSet
from paceline.store.download.unpack import is_unfinished, unpack
from paceline.store.download.wanted import NotWanted, Wanted, require_room

Say = Callable[[str], None]
# What is done, and how far: (words, bytes done, bytes in all).
Progress = Callable[[str, int, int], None]


def bring(
    chosen: DataSet,
    folder: Path,
    *,
    source: str = "",
    keep: bool = False,
    unpacked: bool = True,
    say: Say,
    progress: Progress = lambda what, done, total: None,
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
            say(f"{archive.name}: unpacked already")
    _require_room(wanted, folder, source, keep, unpacked)
    for archive in wanted:
        path, ours = _obtain(archive, folder, source, keep or not unpacked, say, progress)
        if not unpacked:
            continue
        count = unpack(path, folder, progress=_named(f"unpacking {archive.name}", progress))
        say(f"{archive.name}: {count:,} files unpacked, sizes and sums as the archive has them")
        if ours and not keep:
            path.unlink()
        elif not ours and path.parent == folder and not keep:
            say(f"{archive.name}: stays, it was there before")


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


def verified(archive: Archive, folder: Path, progress: Progress) -> str:
    """Empty where the archive lies in `folder` and is the official one; else what is the matter with it."""
    path = folder / archive.name
    if not path.exists():
        return "missing"
    check = Wanted(archive.size, archive.sha256 or None, md5=archive.md5 or None)
    try:
        check.check(path, tick=lambda done: progress(f"checking {archive.name}", done, archive.size or 0))
    except NotWanted as problem:
        return str(problem).removeprefix(f"{path}: ")
    return ""


def _obtain(archive: Archive, folder: Path, source: str, keep: bool, say: Say, progress: Progress) -> tuple[Path, bool]:
    """-> the checked archive, and whether this call put it there."""
    target = folder / archive.name
    there = os.path.lexists(target)
    urls = _places(source, archive) if source else archive.urls
    known = {"size": archive.size, "sha256": archive.sha256 or None, "md5": archive.md5 or None}
    if not there and not keep and (local := _local(urls)) is not None:
        # Read where it lies: a copy would only be deleted again.
        try:
            Wanted(**known).check(
                local, tick=lambda done: progress(f"checking {archive.name}", done, archive.size or 0)
            )
        except NotWanted as other:
            raise DataError(f"{other} Name another place with --from.") from None
        say(f"{archive.name}: read from {one_line(str(local))}")
        return local, False
    fetch(urls, target, **known, say=say, progress=_named(archive.name, progress))
    return target, not there


def _places(source: str, archive: Archive) -> list[str]:
    """A mirror has a file by its name, or where its publisher has it."""
    base = source.rstrip("/")
    return list(dict.fromkeys(f"{base}/{path}" for path in (archive.name, archive.path)))


def _local(urls: Sequence[str]) -> Path | None:
    from paceline.store.download.fetch import local_path

    for url in urls:
        path = local_path(url)
        if path is not None and path.is_file():
            return path
    return None


def _named(what: str, progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)


def _require_room(wanted: Sequence[Archive], folder: Path, source: str, keep: bool, unpacked: bool) -> None:
    """Raises DataError where the disk cannot hold the most that is there at one time.

    Photos hardly shrink in an archive, so what one unpacks to is at least its own bytes; `unpack` looks at the real number.
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
        require_room(folder, most, "all of it")


def missing_text(chosen: DataSet, name: str, folder: Path, problems: dict[str, str]) -> str:
    """What somebody has to fetch by hand, where an account is needed, and where to put it."""
    lines = [
        f"{name}: its files are given out to people with an account, after its terms are accepted: {chosen.account}",
        f"Put these into {folder} and give the same command again, or name a copy with --from URL_OR_DIR:",
    ]
    for archive in chosen.archives:
        size = f"{archive.size:,} bytes, " if archive.size else ""
        problem = problems.get(archive.name, "")
        lines.append(f"  {archive.name}  {size}MD5 {archive.md5}  {problem or 'is there, as published'}")
    return "\n".join(lines)


def refuse_other_place(folder: Path) -> None:
    """Raises DataError where `folder` is a file."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(f"{folder}: this is a file, a folder is needed. Choose another place.")

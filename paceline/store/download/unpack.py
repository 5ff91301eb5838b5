"""Unpack a zip or tar that a stranger may have made: all of it under its folder, or none of it.

Files are written to FOLDER/.NAME.TOKEN.part, checked (names, sizes, CRCs), and moved to their places when the last one is on
the disk. Refused are names that leave the folder, links, devices, encrypted or otherwise compressed members, two members of
one name, archives that are cut off, and those that unpack to far more than they are (bombs).
"""

from __future__ import annotations

import filecmp
import gzip
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.plain_file import open_plain
from paceline.config.printable import short
from paceline.config.whole import folder_part, folder_parts
from paceline.store.download.members import Member, tar_members, zip_members
from paceline.store.download.wanted import require_room

SLICE = 1 << 20
# What Python's readers raise for bytes that make no sense.
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,
)
Progress = Callable[[int, int], None]


def is_unfinished(archive: str, folder: Path) -> bool:
    """Whether an archive of this name is being unpacked there, or was when its process was killed."""
    return bool(folder_parts(folder / archive))


def unpack(archive: Path, folder: Path, *, progress: Progress = lambda done, total: None) -> int:
    """Unpack `archive` into `folder` -> how many files it holds.

    progress  called with (bytes written, bytes in all; of a tar: of the archive)
    What an earlier attempt left is dropped. A file that is there already with the same bytes stays; with others, nothing is
    moved. Raises DataError for every flaw of the archive, naming the member; then nothing of it is in `folder`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_part(folder / archive.name) as part:
            count = _write_members(archive, part, folder, progress)
            os.sync()  # a power cut must not leave empty files under final names
            _refuse_conflicts(archive, part, folder)
            _move(part, folder)
    except OSError as error:
        raise DataError(
            f"{folder}: {archive.name} cannot be unpacked here ({error.strerror or error}). "
            "Make room, or choose another folder; the same command begins to unpack again."
        ) from None
    return count


def _write_members(archive: Path, part: Path, folder: Path, progress: Progress) -> int:
    descriptor = open_plain(archive)
    with open(descriptor, "rb") as file:
        try:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            total, members = (zip_members if zipped else tar_members)(file, archive)
            require_room(folder, total, f"what {archive.name} holds")
            return _write_all(archive, members, part, total, progress)
        except DAMAGED as error:
            raise DataError(f"{archive}: damaged or cut off ({short(str(error), 200)}). Bring it again.") from None


def _write_all(archive: Path, members: Iterator[Member], part: Path, total: int, progress: Progress) -> int:
    seen: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = {()}
    count = done = 0
    for member in members:
        inside = member.parts if member.is_folder else member.parts[:-1]
        for depth in range(1, len(inside) + 1):
            if inside[:depth] not in folders:
                if inside[:depth] in seen:
                    raise DataError(f"{archive}: {short(member.name)} is a file and a folder. Nothing is unpacked.")
                (part / Path(*inside[:depth])).mkdir()
                folders.add(inside[:depth])
        if member.is_folder:
            continue
        if member.parts in seen or member.parts in folders:
            raise DataError(f"{archive}: {short(member.name)} is in it twice. Nothing is unpacked.")
        seen.add(member.parts)
        written = 0
        with member.open() as source, open(part / Path(*member.parts), "xb") as target:
            while data := source.read(SLICE):
                written += len(data)
                if written > member.size:
                    break
                target.write(data)
        if written != member.size:
            raise DataError(
                f"{archive}: {short(member.name)} has other than the {member.size:,} bytes that the archive says. "
                "Nothing is unpacked; bring it again."
            )
        count, done = count + 1, done + written
        progress(done, total)
    if not count:
        raise DataError(f"{archive}: there is no file in it.")
    return count


def _refuse_conflicts(archive: Path, part: Path, folder: Path) -> None:
    """Raises DataError where a file would take the place of another one."""
    for place, names, files in os.walk(part):
        target = folder / Path(place).relative_to(part)
        for name in files:
            if os.path.lexists(target / name) and not _same(Path(place) / name, target / name):
                raise DataError(
                    f"{target / name}: there already, and another file than {archive.name} holds. Move it away, or choose "
                    "an empty folder."
                )
        for name in names:
            if os.path.lexists(target / name) and ((target / name).is_symlink() or not (target / name).is_dir()):
                raise DataError(
                    f"{target / name}: there already, and no folder. Move it away, or choose an empty folder."
                )
        names[:] = [name for name in names if os.path.lexists(target / name)]  # the others move as they are


def _same(new: Path, old: Path) -> bool:
    return old.is_file() and not old.is_symlink() and filecmp.cmp(new, old, shallow=False)


def _move(part: Path, folder: Path) -> None:
    for entry in sorted(part.iterdir()):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _move(entry, target)
        else:
            os.replace(entry, target)

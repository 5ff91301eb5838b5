"""The folder of a staged data set: its marker, its ledger, its locks, and how it is cleared.

    DIR/paceline-KEY/staged.json    the marker: the source; a folder without it is none of ours
                     ledger         a line a file that is whole, or a part of one; appended and never rewritten
                     near/, far/    the files: by the names that the index has, or by a hash of their URL or absolute path
                     parts/         files that are not whole yet
Locks: `.copying` is held by the one process that writes, `.in-use` shared by all that read; what is in use is not cleared.
"""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.journal import lock, read_lines
from paceline._utils.platform import get_user_id
from paceline._utils.safe_read import read_plain

MARKER, LEDGER, PARTS, COPYING, IN_USE = "staged.json", "ledger", "parts", ".copying", ".in-use"
OURS = {MARKER, LEDGER, COPYING, IN_USE}
FOLDERS = re.compile(r"paceline-[0-9a-f]{16}")
# A marker, and a line of a ledger, are shorter; what is longer is not ours.
MAX_MARKER, LONGEST_LINE = 1 << 16, 1 << 14
# So often a folder is made anew that others clear at the same time.
TRIES = 100


def open_folder(folder: Path, about: dict[str, str]) -> int:
    """Make a copy's folder, or take up the one that is there; -> the lock that says that it is in use, until it is closed.

    about  for people, into the marker
    Raises OSError, and PacelineError where the folder is somebody else's.
    """
    for turn in range(TRIES):
        try:
            return _opened(folder, about)
        except FileNotFoundError:  # it is just being cleared
            if turn == TRIES - 1:
                raise
    raise AssertionError("the last turn returns or raises")


def _opened(folder: Path, about: dict[str, str]) -> int:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    # In a folder that everybody may write to, somebody else could have put a link, or a folder of his own, in its place.
    if status.st_uid != get_user_id() or not folder.is_dir() or folder.is_symlink():
        raise PacelineError(f"--stage: {folder} is somebody else's, or no folder. Name another folder.")
    in_use = lock(folder / IN_USE, shared=True, waits=lambda: None)
    try:
        if not (folder / MARKER).exists():
            atomic_write(folder / MARKER, json.dumps({"paceline_staged": 1, **about}, indent=1) + "\n", sync=True)
        (folder / PARTS).mkdir(exist_ok=True)
    except OSError:
        os.close(in_use)
        raise
    return in_use


def read_ledger(path: Path) -> tuple[dict[bytes, tuple[int, int, str]], dict[bytes, tuple[str, str, set[int]]]]:
    """-> files that are whole: name -> (bytes, time, source's state); files that are begun: name -> (token, source's state,
    first bytes of the parts that are there). Lines that are not ours, and a torn last one, count for nothing."""
    finished: dict[bytes, tuple[int, int, str]] = {}
    begun: dict[bytes, tuple[str, str, set[int]]] = {}
    for words in map(bytes.split, read_lines(path, LONGEST_LINE)):
        if len(words) != 5:
            continue
        if words[0] == b"file" and words[1].isdigit() and words[2].isdigit():
            name = unquote_to_bytes(words[4])
            finished[name] = int(words[1]), int(words[2]), unquote_to_bytes(words[3]).decode(errors="replace")
            begun.pop(name, None)
        elif words[0] == b"part" and re.fullmatch(rb"[0-9a-f]{16}", words[1]) and words[3].isdigit():
            name, token = unquote_to_bytes(words[4]), words[1].decode()
            if begun.get(name, ("",))[0] != token:
                begun[name] = token, unquote_to_bytes(words[2]).decode(errors="replace"), set()
            begun[name][2].add(int(words[3]))
    return finished, begun


def file_line(name: bytes, size: int, mtime: int, state: str) -> bytes:
    """The ledger's line of a file that is whole.

    mtime  nanoseconds, of the copy: another one means that somebody wrote to it
    state  the source's, where that counts; else "-"
    """
    return b"file %d %d %b %b\n" % (size, mtime, _quoted(state.encode()), _quoted(name))


def part_line(name: bytes, token: str, state: str, first: int) -> bytes:
    """The ledger's line of a part that is there, from byte `first` on; token: the file below parts/ that it is in."""
    return b"part %b %b %d %b\n" % (token.encode(), _quoted(state.encode()), first, _quoted(name))


def _quoted(data: bytes) -> bytes:
    return quote_from_bytes(data).encode()


def clear_copies(stage: Path) -> tuple[int, int, list[Path]]:
    """Remove every copy below `stage`; -> (data sets, bytes, folders that others' files keep there).

    Only what the ledgers name is removed. Raises PacelineError where one is in use, or cannot be removed.
    """
    sets, size, left = 0, 0, []
    for folder in list_copies(stage):
        try:
            held = lock(folder / IN_USE)
        except BlockingIOError:
            raise PacelineError(
                f"{folder}: a run reads from this copy. Wait for its end, then give the same command."
            ) from None
        except OSError as error:
            raise write_error(folder, error) from None
        try:
            finished, _ = read_ledger(folder / LEDGER)
            names = [folder / os.fsdecode(name) for name in finished]
            names += [entry for entry in (folder / PARTS).glob("*") if entry.is_file()]
            here = folder.resolve()  # neither a ledger's name nor a link leads out of it
            size += sum(_remove(name) for name in names if name.parent.resolve().is_relative_to(here))
            for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                with suppress(OSError):
                    inner.rmdir()
            if {entry.name for entry in folder.iterdir()} <= OURS:
                for name in OURS:
                    _remove(folder / name)
                folder.rmdir()
            else:
                left.append(folder)
                _remove(folder / LEDGER)
            sets += 1
        except OSError as error:
            raise write_error(folder, error) from None
        finally:
            os.close(held)
    return sets, size, left


def list_copies(stage: Path) -> list[Path]:
    """The folders below `stage` that staging made, for this user: another one's could lead out by links."""
    results = []
    for folder in sorted(stage.iterdir()):
        own = FOLDERS.fullmatch(folder.name) and os.lstat(folder).st_uid == get_user_id()
        if own and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError, ValueError):
                marker = json.loads(read_plain(folder / MARKER, MAX_MARKER))
                if isinstance(marker, dict) and marker.get("paceline_staged") == 1:
                    results.append(folder)
    return results


def _remove(path: Path) -> int:
    """Remove a file; -> its bytes, 0 where there is none."""
    try:
        size = os.lstat(path).st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def write_error(path: Path, error: OSError) -> PacelineError:
    """The error where a copy cannot be written, with the next step."""
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    return PacelineError(f"--stage: {path}: cannot be written ({why}). Name another folder, or train without --stage.")

"""The container files of one split: found by name or pattern, walked in parallel, those that are cut off told of.

--train photos.tar shards-*.tar 'shard-{000..127}.tar' s3://bucket/shards/*.tar https://host/val.tar
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO, TypeVar

from paceline.config.errors import DataError
from paceline.machine.detect import cpu_cores
from paceline.store.containers.reading import Truncated
from paceline.store.object_store import store_of
from paceline.store.stores import Status, Store, StoreTrouble, scheme_of

Entry = TypeVar("Entry")

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
# ImageNet has 1.3 million photos; more files than this are a slip of the keyboard.
MOST_FILES = 3_000_000


@dataclass(frozen=True)
class ContainerFiles:
    """One split's files, in the order that was asked for; those of one pattern by name."""

    split: str  # "train" or "val"
    names: list[bytes]  # absolute paths, or URLs
    store: Store
    statuses: list[Status]
    listed: bool = False  # a list beside them speaks of their photos, by the paths that these have
    skip_truncated: bool = False
    workers: int | None = None
    notes: list[str] = field(default_factory=list)  # for people; grows while files are walked
    progress: Callable[[int, int], None] | None = None  # called with (files walked, files in all)

    def walk(self, reader: Callable[[BinaryIO, int, str], Iterator[Entry]]) -> list[list[Entry]]:
        """What `reader` (file, its size, its name -> entries) finds in each file, several files at once.

        Raises DataError where a file cannot be read or is none of that kind, and where one is cut off unless that was allowed.
        """

        def one(number: int) -> list[Entry]:
            name, found = os.fsdecode(self.names[number]), []
            try:
                with self.store.open(self.names[number]) as file:
                    for entry in reader(file, self.statuses[number].size, name):
                        found.append(entry)
            except Truncated as cut:
                if not self.skip_truncated:
                    raise
                self.notes.append(
                    f"{name}: cut off at byte {cut.offset:,}; its {cut.records:,} whole records are used, what follows is lost"
                )
            except OSError as error:
                again = (
                    "Give the same command again."
                    if isinstance(error, StoreTrouble)
                    else "Check the file and its disk."
                )
                raise DataError(f"{name}: cannot be read ({error.strerror or error}). {again}") from None
            return found

        with ThreadPoolExecutor(self.workers or cpu_cores(), thread_name_prefix="walk") as pool:
            found = []
            for number, entries in enumerate(pool.map(one, range(len(self.names))), 1):
                found.append(entries)
                if self.progress is not None:
                    self.progress(number, len(self.names))
        return found


def find_files(split: str, sources: Sequence[str], **how: object) -> ContainerFiles:
    """The files that a command names.

    sources  paths, URLs, with *, ? and [...], and with {000..127} for numbers
    Raises DataError where one is not there, is a folder, or is of another kind of store than the first.
    """
    wanted = list(chain.from_iterable([one] if _exists(one) else _numbered(one) for one in sources))
    store = store_of(wanted[0])
    flag = f"--{split}"
    names: list[bytes] = []
    for source in wanted:
        if scheme_of(source) != scheme_of(wanted[0]):
            raise DataError(f"{flag} {source}: not the same kind of place as {wanted[0]}. Prepare them apart.")
        path = lasting(source)
        try:
            found = store.find(path) if glob.has_magic(path) and not _exists(path) else [os.fsencode(path)]
        except OSError as error:
            raise DataError(
                f"{flag} {source}: cannot be listed ({error.strerror or error}). Check the address."
            ) from None
        if not found:
            raise DataError(f"{flag} {source}: matches no file. Check the path.")
        names += found
    if len(names) > MOST_FILES:
        raise DataError(f"{flag}: {len(names):,} files; {MOST_FILES:,} are read at most.")
    return ContainerFiles(split, names, store, _statuses(flag, names, store), **how)  # type: ignore[arg-type]


def lasting(source: str) -> str:
    """The same file from whatever folder it is named: an absolute path whose folders are no links, or the URL."""
    if scheme_of(source):
        return source
    path = os.path.abspath(os.path.expanduser(source))
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _exists(source: str) -> bool:
    return not scheme_of(source) and os.path.exists(os.path.expanduser(source))


def _numbered(source: str) -> Iterator[str]:
    """'a-{000..002}' -> a-000, a-001, a-002; any other text as it is."""
    match = _RANGE.search(source)
    if match is None:
        yield source
        return
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MOST_FILES:
        raise DataError(f"{source}: {{{match[1]}..{match[2]}}} counts to nothing. Write {{FIRST..LAST}}.")
    for number in range(first, last + 1):
        yield from _numbered(f"{source[: match.start()]}{number:0{len(match[1])}d}{source[match.end() :]}")


def _statuses(flag: str, names: Sequence[bytes], store: Store) -> list[Status]:
    def one(name: bytes) -> Status:
        shown = os.fsdecode(name)
        try:
            if not scheme_of(name) and os.path.isdir(name):
                raise DataError(f"{flag} {shown}: this is a folder; name the files in it, for instance {shown}/*.")
            return store.status(name)
        except FileNotFoundError:
            raise DataError(f"{flag} {shown}: no such file. Check the path.") from None
        except OSError as error:
            raise DataError(f"{flag} {shown}: cannot be read ({error.strerror or error}). Check the address.") from None

    with ThreadPoolExecutor(max(cpu_cores(), min(16, store.at_once)), thread_name_prefix="status") as pool:
        return list(pool.map(one, names))

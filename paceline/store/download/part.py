"""A file while it arrives: NAME.part with holes, and NAME.part.journal with what has arrived.

The journal's first line says what is arriving (bytes, the server's mark of the version, the address); each line after it is
the number of a block that is on the disk whole. A torn last line has no line break and counts as not written. Blocks are
noted after their bytes are on the disk, so what the journal names survives a power cut too.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.config.errors import DataError

BLOCK = 1 << 20  # bytes; what a kill can lose of each connection
FORMAT = 1
# A million blocks of 1 MiB are 1 TB, and 7 MB of numbers.
MOST_JOURNAL_BYTES = 16 << 20


@dataclass(frozen=True)
class Version:
    """Which file a server has under an address."""

    url: str
    size: int  # bytes
    mark: str  # its strong ETag or date, "" where it gives none


class Part:
    """The part file of one destination; the process that holds it is the only one that writes it."""

    def __init__(self, destination: Path) -> None:
        """Raises DataError where the folder cannot be written to, or another process is downloading the same file."""
        self.destination = destination
        self.path = destination.with_name(f"{destination.name}.part")
        self.journal = destination.with_name(f"{destination.name}.part.journal")
        if not os.path.lexists(self.journal) and self.path.is_file() and self.path.stat().st_size:
            raise DataError(
                f"{self.path}: not begun by paceline (a browser may have), so it is not written to. Move it away, or choose another "
                "folder."
            )
        self._made = [folder for folder in destination.parents if not folder.exists()]  # innermost first
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            # NOFOLLOW: a link that somebody left under this name would have us write elsewhere.
            self._journal = os.open(
                self.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise cannot_write(self.destination, error) from None
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except BlockingIOError:
            os.close(self._journal)
            raise DataError(
                f"{destination}: another process is downloading it just now. Wait for it, or end it."
            ) from None
        except OSError as error:
            os.close(self._journal)
            raise cannot_write(self.destination, error) from None

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave what arrived for the next attempt; where that is nothing, leave nothing."""
        if self._file < 0:
            return
        if not self.arrived():
            self.path.unlink(missing_ok=True)
            self.journal.unlink(missing_ok=True)
            with suppress(OSError):  # somebody has put something there
                for folder in self._made:
                    folder.rmdir()
        self._close()

    def begin(self, version: Version, *, same_content: bool) -> set[int]:
        """-> the blocks of this version that are there from before; where it is another version's, they are dropped.

        same_content  a digest will tell at the end, so another address may go on with what this one began
        """
        lines = self._lines()
        old = _version(lines[0]) if lines else None
        same = version == old
        if old is not None and same_content and old.url != version.url:
            same = old.size == version.size
        if same and os.fstat(self._file).st_size == version.size:
            return _blocks(lines, version.size)
        self.drop()
        os.ftruncate(self._file, version.size)
        record = {"paceline_download": FORMAT, "url": version.url, "size": version.size, "mark": version.mark}
        os.write(self._journal, json.dumps(record).encode() + b"\n")
        return set()

    def note(self, blocks: Collection[int]) -> None:
        """Remember that these blocks are there whole. Raises OSError."""
        if blocks:
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
            os.write(self._journal, b"".join(b"%d\n" % block for block in sorted(blocks)))

    def drop(self) -> None:
        """Forget all that arrived."""
        os.ftruncate(self._journal, 0)
        os.ftruncate(self._file, 0)

    def arrived(self) -> int:
        """Bytes that the journal knows of."""
        lines = self._lines()
        version = _version(lines[0]) if lines else None
        if version is None:
            return 0
        return sum(min(BLOCK, version.size - block * BLOCK) for block in _blocks(lines, version.size))

    def writer(self) -> int:
        """A descriptor of one's own for the part file; the caller closes it."""
        return os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def finish(self) -> None:
        """Give the file its name: at once, and when all of it is on the disk. Raises OSError."""
        os.fsync(self._file)
        os.replace(self.path, self.destination)
        self.journal.unlink()
        self._close()
        folder = os.open(self.destination.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _lines(self) -> list[bytes]:
        text = os.pread(self._journal, MOST_JOURNAL_BYTES, 0)
        return text[: text.rfind(b"\n") + 1].splitlines()

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._journal)
        self._file = self._journal = -1


def _blocks(lines: list[bytes], size: int) -> set[int]:
    numbers = {int(line) for line in lines[1:] if line.isdigit() and len(line) < 12}
    return {block for block in numbers if block * BLOCK < size}


def _version(line: bytes) -> Version | None:
    try:
        record: Any = json.loads(line)
        if record["paceline_download"] != FORMAT:
            return None
        return Version(str(record["url"]), int(record["size"]), str(record["mark"]))
    except (ValueError, KeyError, TypeError):
        return None


def cannot_write(destination: Path, error: OSError) -> DataError:
    """Why a file cannot be written where it should go, and what then."""
    return DataError(
        f"{destination}: cannot be written ({error.strerror or error}). Choose another folder, or make room."
    )

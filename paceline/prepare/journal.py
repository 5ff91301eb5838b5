"""What a prepare that was killed had verified already: one line a file, appended and never rewritten.

    v2 SIZE MTIME HEIGHT WIDTH FLAGS DIGEST NAME     integers, and the name (relative to the root) percent-encoded
A line counts only with its newline, so one that a kill tore is dropped. A process appends whole batches with one write,
so that two that prepare the same data at once do no harm to each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from paceline.config.plain_file import open_plain
from paceline.prepare.verify import Facts

FILE_NAME = "prepare.journal"
# Raise it when verify() becomes stricter: what older code let pass is then looked at again.
VERSION = b"v2"
# Six integers and a path, each of whose bytes may be written as three.
MOST_LINE = 1 << 14


def read_journal(path: Path) -> Iterator[tuple[bytes, Facts]]:
    """(name, facts) of every whole line; nothing where there is no journal. Of a name twice the later one counts."""
    if not path.exists():
        return
    with os.fdopen(open_plain(path), "rb") as file:
        # A longer line than any of ours is read in pieces, none of which counts.
        for line in iter(lambda: file.readline(MOST_LINE), b""):
            words = line.split()
            if line.endswith(b"\n") and len(words) == 8 and words[0] == VERSION and all(map(bytes.isdigit, words[1:7])):
                yield unquote_to_bytes(words[7]), Facts(*map(int, words[1:7]))


def is_ours(path: Path) -> bool:
    """Whether `path` is a journal, or nothing is there. Raises OSError where it cannot be opened, or is a link."""
    if not os.path.lexists(path):
        return True
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        first = next((line for line in iter(lambda: file.readline(MOST_LINE), b"") if line.strip()), b"")
    return re.match(rb"v\d+ |v?\d*\Z", first) is not None  # a kill may have torn the only line


class Journal:
    """Open for appending, from any number of threads. Raises OSError (disk full, not writable)."""

    def __init__(self, path: Path) -> None:
        # A link or a pipe of this name in somebody's folder must not lead elsewhere, nor keep us waiting.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags, 0o666)
        # After a torn line, begin on a new one. Empty lines are skipped.
        os.write(self._descriptor, b"\n")

    def append(self, batch: Iterable[tuple[bytes, Facts]]) -> None:
        """Add files that were verified; they survive the death of this process from here on."""
        lines = b"".join(
            VERSION + b" %d %d %d %d %d %d " % facts + quote_from_bytes(name).encode() + b"\n" for name, facts in batch
        )
        while lines:  # a nearly full disk takes a part, and the next write says so
            lines = lines[os.write(self._descriptor, lines) :]

    def close(self) -> None:
        os.close(self._descriptor)

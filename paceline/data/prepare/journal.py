"""What a prepare that was killed had verified already: one line a file, appended and never rewritten.

    v3 CRC SIZE MTIME HEIGHT WIDTH FLAGS DIGEST NAME     integers, and the name (relative to the root) percent-encoded
CRC is that of what follows it. A line that a kill tore, or that anything changed, does not count: its photo is verified again.
A process appends whole batches with one write, so that two that prepare the same data at once do no harm to each other.

It lies in this user's cache folder and not beside the photos: a folder from somebody else could bring one that says of any file
that it was verified. Where the cache cannot be written there is none, and a killed prepare begins anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from paceline._utils.cache import cache_folder
from paceline._utils.errors import PacelineError
from paceline._utils.journal import Journal, read_lines
from paceline.data.index.manifest import cached_manifest_folder
from paceline.data.prepare.verify_image import ImageInfo

# Raise it when verify() becomes stricter: what older code let pass is then looked at again.
VERSION = b"v3"
# Seven integers and a path, each of whose bytes may be written as three.
MAX_LINE = 1 << 14


def open_prepare_journal(path: Path) -> Path | None:
    """The journal of the data set whose manifest goes to the folder `path`; None where no cache folder is known."""
    try:
        return cache_folder() / "prepare" / f"{cached_manifest_folder(path).name}.journal"
    except PacelineError:
        return None


def read_journal(path: Path | None) -> Iterator[tuple[bytes, ImageInfo]]:
    """(name, facts) of every whole line; nothing where there is no journal of this user's. Of a name twice the later one counts."""
    if path is None:
        return
    with suppress(OSError):
        for line in read_lines(path, MAX_LINE, own=True):  # a cache folder may be shared
            version, _, rest = line.partition(b" ")
            crc, _, rest = rest.partition(b" ")
            words = rest.split()
            if version == VERSION and crc == b"%08x" % zlib.crc32(rest + b"\n") and len(words) == 7:
                yield unquote_to_bytes(words[6]), ImageInfo(*map(int, words[:6]))


class PrepareJournal:
    """Appended to from any number of threads. What cannot be written is not remembered, which costs time alone."""

    def __init__(self, path: Path | None) -> None:
        self._journal: Journal | None = None
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._journal = Journal(path, shared=True, most=None, mode=0o600)

    def append(self, batch: Iterable[tuple[bytes, ImageInfo]]) -> None:
        """Add files that were verified; they survive the death of this process from here on."""
        if self._journal is not None:
            with suppress(OSError):
                self._journal.append(b"".join(_line(name, facts) for name, facts in batch))


def _line(name: bytes, facts: ImageInfo) -> bytes:
    """With its newline, so that the CRC covers that too."""
    rest = b"%d %d %d %d %d %d " % facts + quote_from_bytes(name).encode() + b"\n"
    return VERSION + b" %08x " % zlib.crc32(rest) + rest

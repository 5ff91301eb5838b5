"""A bounded table of open file descriptors, for containers (tar, RecordIO, TFRecord) that hold many records each.

Reading is by position (os.pread), so any number of threads may share a descriptor; the table only has to make sure
that none is closed while a thread still reads from it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.config.plain_file import open_plain


@dataclass
class _Open:
    descriptor: int
    readers: int


class OpenFiles:
    """Keeps the `most` files that were used last open. Thread-safe.

    More than `most` are open only while more than `most` threads read different files at once.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._table: OrderedDict[bytes, _Open] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    @contextmanager
    def descriptor(self, path: bytes) -> Iterator[int]:
        """A descriptor of `path`, open for reading until the block ends. Raises OSError where it cannot be opened."""
        with self._lock:
            entry = self._table.get(path)
            if entry is None:
                entry = self._table[path] = _Open(open_plain(path), 0)
            entry.readers += 1
            self._table.move_to_end(path)
            self._drop_idle()
        try:
            yield entry.descriptor
        finally:
            with self._lock:
                entry.readers -= 1
                self._drop_idle()

    def close(self) -> None:
        """Close every file that no thread is reading."""
        with self._lock:
            self._drop_idle(keep=0)

    def _drop_idle(self, keep: int | None = None) -> None:
        surplus = len(self._table) - (self._most if keep is None else keep)
        if surplus <= 0:
            return
        idle = [path for path, entry in self._table.items() if entry.readers == 0][:surplus]
        for path in idle:
            os.close(self._table.pop(path).descriptor)

"""A file in a store as a stream: read in blocks, the next ones under way while one is used."""

from __future__ import annotations

import errno
import io
from concurrent.futures import Future
from typing import Any, BinaryIO

from paceline.store.stores import Range, Store
from paceline.store.transfer import Background

# Long enough that a request's delay is nothing beside its bytes.
BLOCK_BYTES = 4 << 20
# Requests of one stream that are under way at once. A single one rarely fills a line.
BLOCKS_AHEAD = 3


def read_ahead(store: Store, name: bytes, size: int) -> BinaryIO:
    """A file of `size` bytes from its first byte on, seekable, for one thread; the store is asked from several."""
    return io.BufferedReader(_Blocks(store, name, size), 1 << 16)


class _Blocks(io.RawIOBase):
    """Holds the block in use and those fetched ahead. Nothing is fetched ahead before a second block follows a first one:
    whoever looks at a header, or at a table at the end, pays for one block."""

    def __init__(self, store: Store, name: bytes, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._at = 0
        self._last = -1
        self._coming: dict[int, Future[bytes]] = {}
        self._threads = Background(1 + BLOCKS_AHEAD, "read-ahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, into: Any, /) -> int:
        """At most to the end of the block. Raises OSError as `Store.read`, and where the file ends too early."""
        number, first = divmod(self._at, BLOCK_BYTES)
        if self._at >= self._size:
            return 0
        data = memoryview(self._block(number))[first : first + len(into)]
        into[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """What is under way is forgotten."""
        if not self.closed:
            for block in self._coming.values():
                block.cancel()
            self._coming.clear()
            self._threads.close()
        super().close()

    def _block(self, number: int) -> bytes:
        ahead = BLOCKS_AHEAD if number in (self._last, self._last + 1) and number else 0
        last = (self._size - 1) // BLOCK_BYTES
        wanted = range(number, min(number + ahead, last) + 1)
        for gone in [old for old in self._coming if old not in wanted]:
            self._coming.pop(gone).cancel()
        for block in wanted:
            if block not in self._coming:
                self._coming[block] = self._threads.submit(self._fetch, block)
        self._last = number
        return self._coming[number].result()

    def _fetch(self, block: int) -> bytes:
        start = block * BLOCK_BYTES
        length = min(BLOCK_BYTES, self._size - start)
        data = self._store.read(Range(self._name, start, length))
        if len(data) != length:
            raise OSError(errno.EIO, f"it ends after {start + len(data):,} bytes, not {self._size:,}", self._name)
        return data

"""A large file that is zeros but for a few parts, and takes no room."""

from __future__ import annotations

import io
from collections.abc import Mapping


class HoledFile(io.RawIOBase):
    """`parts` by their first byte; zeros between them and up to `size`."""

    def __init__(self, parts: Mapping[int, bytes], size: int) -> None:
        self.parts, self.size, self.at = parts, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Only from the start."""
        self.at = offset
        return offset

    def read(self, length: int = -1) -> bytes:
        """Up to `length` bytes; as a raw file may, fewer than there are."""
        for begin, part in self.parts.items():
            if begin <= self.at < begin + len(part):
                data = part[self.at - begin : self.at - begin + length]
                break
        else:
            ahead = [begin for begin in self.parts if begin > self.at]
            data = bytes(max(0, min(length, min(ahead, default=self.size) - self.at)))
        self.at += len(data)
        return data

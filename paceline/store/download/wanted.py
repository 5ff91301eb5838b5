"""Whether a file is the one that was wanted: its bytes and digests, as its publisher or those who use it say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.plain_file import open_plain_sized

SLICE = 1 << 20


class NotWanted(DataError):
    """Another file than the one that was asked for; the message names it and says in what it differs."""


@dataclass(frozen=True)
class Wanted:
    """What is known of a file beforehand; None where it is not. Digests are hexadecimal."""

    size: int | None = None  # bytes
    sha256: str | None = None
    sha256_prefix: str | None = None  # as in the names of torchvision's weights
    md5: str | None = None
    sha1: str | None = None  # of GluonCV's weights

    @property
    def told_by_digest(self) -> bool:
        """Whether any other content would be noticed."""
        return any((self.sha256, self.sha256_prefix, self.md5, self.sha1))

    @property
    def words(self) -> str:
        """What is compared, for a line."""
        known = (
            ("SHA-256", self.sha256),
            ("beginning of SHA-256", self.sha256_prefix),
            ("MD5", self.md5),
            ("SHA-1", self.sha1),
        )
        digest = next((name for name, value in known if value), "")
        return " and ".join(word for word in ("size" if self.size is not None else "", digest) if word)

    def check(self, path: Path, *, tick: Callable[[int], None] = lambda done: None) -> None:
        """Read the file once. Raises NotWanted where it differs, DataError where it cannot be read.

        tick  called with the bytes read so far
        """
        try:
            descriptor, found = open_plain_sized(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        with open(descriptor, "rb", buffering=0) as file:
            if self.size is not None and found != self.size:
                raise NotWanted(f"{path}: it has {found:,} bytes, {self.size:,} are wanted.")
            if not self.told_by_digest:
                return
            sums = {
                "SHA-256": hashlib.sha256() if self.sha256 or self.sha256_prefix else None,
                "MD5": hashlib.md5(usedforsecurity=False) if self.md5 else None,
                "SHA-1": hashlib.sha1(usedforsecurity=False) if self.sha1 else None,
            }
            done, buffer = 0, memoryview(bytearray(SLICE))
            try:
                while count := file.readinto(buffer):
                    for digest in sums.values():
                        if digest is not None:
                            digest.update(buffer[:count])
                    done += count
                    tick(done)
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        wanted = {"SHA-256": self.sha256 or self.sha256_prefix, "MD5": self.md5, "SHA-1": self.sha1}
        for name, digest in sums.items():
            want = (wanted[name] or "").lower()
            if digest is not None and not (got := digest.hexdigest()).startswith(want):
                raise NotWanted(f"{path}: its {name} is {got[: len(want)]}, {want} is wanted.")
        if self.sha256 and self.sha256_prefix and not self.sha256.lower().startswith(self.sha256_prefix.lower()):
            raise ValueError("sha256 and sha256_prefix contradict each other")


def free_bytes(folder: Path) -> int:
    """What may still be written where `folder` is, or will be: bytes for a user without privileges."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def require_room(folder: Path, needed: int, what: str) -> None:
    """Raises DataError where fewer than `needed` bytes are free in the file system of `folder`."""
    free = free_bytes(folder)
    if needed > free:
        raise DataError(
            f"{folder}: {what} takes {in_words(needed)}, and {in_words(free)} are free there. "
            "Make room, or choose a folder on another disk."
        )


def in_words(number: int) -> str:
    """Bytes with three digits: 19.3 GB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= scale:
            value = number / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{number:,} bytes"

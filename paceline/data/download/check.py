"""Whether a file is the expected one: its bytes and digests, as its publisher or those who use it have them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import DataError
from paceline._utils.formatting import format_bytes
from paceline._utils.safe_read import open_plain_sized
from paceline._utils.threads import free_bytes

SLICE = 1 << 20


class FileMismatch(DataError):
    """Another file than the expected one; the message names it and says in what it differs."""


@dataclass(frozen=True)
class ExpectedFile:
    """What is known of a file beforehand; None where it is not. Digests are hexadecimal."""

    size: int | None = None  # bytes
    sha256: str | None = None
    sha256_prefix: str | None = None  # as in the names of torchvision's weights
    md5: str | None = None
    sha1: str | None = None  # of GluonCV's weights

    @property
    def has_digest(self) -> bool:
        """Whether any other content would be noticed."""
        return any(self._digests.values())

    @property
    def words(self) -> str:
        """What is compared, for a line."""
        digest = next((name for name, value in self._digests.items() if value), "")
        digest = f"beginning of {digest}" if digest == "SHA-256" and not self.sha256 else digest
        return " and ".join(word for word in ("size" if self.size is not None else "", digest) if word)

    @property
    def _digests(self) -> dict[str, str | None]:
        return {"SHA-256": self.sha256 or self.sha256_prefix, "MD5": self.md5, "SHA-1": self.sha1}

    def check(self, path: Path, *, progress: Callable[[int], None] = lambda done: None) -> None:
        """Read the file once. Raises Mismatch where it differs, DataError where it cannot be read.

        progress  called with the bytes read so far
        """
        if self.sha256 and self.sha256_prefix and not self.sha256.lower().startswith(self.sha256_prefix.lower()):
            raise ValueError("sha256 and sha256_prefix contradict each other")
        try:
            descriptor, result = open_plain_sized(path)
            with open(descriptor, "rb", buffering=0) as file:
                if self.size is not None and result != self.size:
                    raise FileMismatch(f"{path}: it has {result:,} bytes, {self.size:,} are wanted.")
                wanted = {name: value.lower() for name, value in self._digests.items() if value}
                digests = {name: hashlib.new(name.replace("-", ""), usedforsecurity=False) for name in wanted}
                done, buffer = 0, memoryview(bytearray(SLICE))
                while digests and (count := file.readinto(buffer)):
                    for digest in digests.values():
                        digest.update(buffer[:count])
                    done += count
                    progress(done)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
        for name, digest in digests.items():
            if not (got := digest.hexdigest()).startswith(want := wanted[name]):
                raise FileMismatch(f"{path}: its {name} is {got[: len(want)]}, {want} is wanted.")


def require_free_space(folder: Path, needed: int, what: str) -> None:
    """Raises DataError where fewer than `needed` bytes are free in the file system of `folder`."""
    free = free_bytes(folder)
    if needed > free:
        raise DataError(
            f"{folder}: {what} takes {format_bytes(needed)}, and {format_bytes(free)} are free there. "
            "Make room, or choose a folder on another disk."
        )

"""OUT/pack.jsonl: what is packed here and which files of it are finished, so that a pack that was killed goes on.

The first line says what was asked for, of which data, and how it is cut into files; then comes a line for each finished file, with
the checksums of all that belongs to it. Each line has a checksum of its own; a torn last one is cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline._utils.errors import DataError
from paceline._utils.journal import LineWriter, lock
from paceline._utils.safe_read import has_valid_checksum, open_plain, open_plain_sized, parse_json, with_checksum
from paceline.data.pack.plan import ShardPlan

FILE_NAME = "pack.jsonl"
LOCK = ".pack.lock"
FORMAT = 1
_CHUNK = 1 << 20
_PLAIN = re.compile(r"[A-Za-z0-9_-]+\.(tar|rec|idx|lst|tfrecord)")


class PackRecord:
    """The record of one folder, open for appending."""

    def __init__(self, out: Path) -> None:
        """Raises DataError where the folder holds something else, PacelineError where it cannot be written to."""
        self.out = out
        path = out / FILE_NAME
        if not path.exists():
            others = sorted(entry.name for entry in out.iterdir() if entry.name != LOCK)
            if others:
                raise DataError(
                    f"{out}: holds {others[0]!r} and {len(others) - 1:,} others, and no pack that was begun. Choose an empty or a "
                    "new folder with --out."
                )
        elif not _begins_as_ours(path):
            raise DataError(f"{path}: not the record of a pack, so it is not written to. Choose another folder with --out.")
        self._lines = LineWriter(path)
        results = [_line(path, number, line) for number, line in enumerate(self._lines.lines(), 1)]
        self.begun: dict[str, Any] | None = results[0] if results else None
        self.finished = {str(line["file"]): line for line in results[1:]}

    def begin(self, identity: str, shards: list[ShardPlan], facts: dict[str, Any]) -> None:
        """Write down what is going to be packed."""
        self.begun = {"pack": FORMAT, "identity": identity, **facts, "shards": [asdict(shard) for shard in shards]}
        self._append(self.begun)

    def shards(self, identity: str, counts: dict[str, int]) -> list[ShardPlan]:
        """The files as they were planned when the pack was begun.

        counts  split -> its records
        Raises DataError where another one was begun here, or the plan is none.
        """
        assert self.begun is not None
        if self.begun.get("pack") != FORMAT or self.begun.get("identity") != identity:
            begun = {key: self.begun.get(key) for key in ("from", "request")}
            raise DataError(
                f"{self.out}: another pack was begun here, of other data or with other flags ({json.dumps(begun)[:300]}). Give that "
                "command again, or choose another folder with --out."
            )
        try:
            shards = [ShardPlan(**entry) for entry in self.begun["shards"]]
            whole = all(_PLAIN.fullmatch(shard.file) for shard in shards)
            for split, count in counts.items():
                own = [shard for shard in shards if shard.split == split]
                edges = [0, *(shard.last for shard in own)]
                whole &= edges == [*(shard.first for shard in own), count] and edges == sorted(edges)
        except (TypeError, KeyError, ValueError):
            whole, shards = False, []
        if not whole:
            raise DataError(f"{self.out / FILE_NAME}: damaged. Delete {self.out} and pack again.")
        return shards

    def finish(self, shard: ShardPlan, parts: dict[str, dict[str, Any]]) -> None:
        """All files of a shard are in place. parts: file name -> its bytes and SHA-256."""
        line = {"file": shard.file, "parts": parts}
        self._append(line)
        self.finished[shard.file] = line

    def is_whole(self, shard: ShardPlan) -> bool:
        """Whether a shard was finished, and its files are what was written. Reads all of them."""
        parts = self.finished.get(shard.file, {}).get("parts", {})
        return bool(parts) and all(
            _PLAIN.fullmatch(name) and _sum(self.out / name, facts) == facts for name, facts in parts.items()
        )

    def _append(self, facts: dict[str, Any]) -> None:
        self._lines.append(json.dumps(with_checksum(facts)), durable=True)


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Makes the folder and holds it. Raises DataError where another process does, or it cannot be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = lock(out / LOCK, no_locks=lambda: None)  # then nothing keeps a second process out
        try:
            yield
        finally:
            os.close(descriptor)
    except BlockingIOError:
        raise DataError(f"{out}: another process packs into this folder. Wait, or choose another --out.") from None
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}). Make room or choose another folder; finished files are kept, "
            "the same command goes on."
        ) from None


def _begins_as_ours(path: Path) -> bool:
    """Whether a file begins as `PackRecord.begin` does, or with as much of it as a kill left; a link is none of ours."""
    beginning = b'{"pack": '
    try:
        descriptor, _ = open_plain_sized(path, links=False)
        with os.fdopen(descriptor, "rb") as file:
            return beginning.startswith(file.read(len(beginning)))
    except OSError:
        return False


def _line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        facts = parse_json(text)
        if isinstance(facts, dict) and has_valid_checksum(facts) and (number == 1 or "file" in facts):
            return facts
    except ValueError:
        pass
    raise DataError(f"{path}: line {number} is damaged. Delete {path.parent} and pack again.")


def _sum(path: Path, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Bytes and SHA-256 of a file; None where it is gone or of another size."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != wanted.get("bytes"):
            return None
        digest = hashlib.sha256()
        while data := file.read(_CHUNK):
            digest.update(data)
    return {"bytes": size, "sha256": digest.hexdigest()}

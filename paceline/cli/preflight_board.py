"""The files through which the nodes of a preflight talk to each other: a folder that all see, before any network is trusted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.plain_file import read_entry
from paceline.config.whole import write_whole

POLL_SECONDS = 0.05
MOST_BYTES = 16 << 20


class Board:
    """The files of this start; those of an earlier one are as if they were not there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.start = read_entry(folder / "start", MOST_BYTES).decode().strip()

    def leave(self, name: str, facts: Mapping[str, Any]) -> None:
        write_whole(self.folder / f"{name}.json", json.dumps({"start": self.start, **facts}))

    def find(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(read_entry(self.folder / f"{name}.json", MOST_BYTES))
        except (OSError, ValueError):
            return None
        return found if found.get("start") == self.start else None

    def gather(self, kind: str, numbers: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        """kind-N of these nodes, as many as come within the time."""
        found: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + seconds
        while len(found) < len(numbers) and time.monotonic() < until:
            for number in numbers:
                if number not in found and (facts := self.find(f"{kind}-{number}")) is not None:
                    found[number] = facts
            time.sleep(POLL_SECONDS)
        return found

    def wait(self, names: Sequence[str], seconds: float) -> tuple[str, dict[str, Any]]:
        """The first of these that is there; ("", {}) after the time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name in names:
                if (facts := self.find(name)) is not None:
                    return name, facts
            time.sleep(POLL_SECONDS)
        return "", {}

"""What an examination finds, one thing a line, and how bad it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# problem: a run fails, or is slow for it. note: worth knowing. ok: as it should be.
Level = Literal["ok", "note", "problem"]
# A run of a full-size recipe keeps three checkpoints of about 0.3 GB and its logs.
LOW_DISK_GIB = 5


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    level: Level
    about: str
    text: str


def problems(findings: Iterable[Finding]) -> int:
    """How many findings stop a run, or slow it down."""
    return sum(finding.level == "problem" for finding in findings)

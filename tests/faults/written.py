"""The table of played faults as a page of Markdown."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fault import Fault
from played import Played

# A message is cut here.
MAX_LETTERS = 150


def write_table(file: Path, rows: Sequence[Fault], played: dict[Fault, Played], seconds: float) -> None:
    """Counts by family and outcome, then every row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*_head(rows, played, seconds), *_families(rows, played), *_rows(rows, played), ""]))


def _head(rows: Sequence[Fault], played: dict[Fault, Played], seconds: float) -> list[str]:
    good = sum(played[fault].good for fault in rows)
    same = sum(played[fault].same for fault in rows)
    return [
        "# Faults",
        "",
        f"{good:,} of {len(rows):,} ended as expected; {same:,} runs equal an undisturbed one byte by byte in the end: weights,",
        "predictions, events and MLPerf log but for their clocks, and nothing left behind.",
        "",
        f"Python {platform.python_version()}, torch {version('torch')}, {os.cpu_count()} cores ({platform.machine()}), "
        f"{seconds:.0f} s.",
        "",
    ]


def _families(rows: Sequence[Fault], played: dict[Fault, Played]) -> list[str]:
    outcomes = sorted({played[fault].seen for fault in rows})
    lines = [f"| family | {' | '.join(outcomes)} | byte-identical |", f"| --- |{' --- |' * (len(outcomes) + 1)}"]
    for family in dict.fromkeys(fault.family for fault in rows):
        own = [fault for fault in rows if fault.family == family]
        seen = Counter(played[fault].seen for fault in own)
        same = sum(played[fault].same for fault in own)
        lines.append(f"| {family} | {' | '.join(str(seen[name]) for name in outcomes)} | {same} of {len(own)} |")
    return [*lines, ""]


def _rows(rows: Sequence[Fault], played: dict[Fault, Played]) -> list[str]:
    lines = ["| fault | recipe, ranks | expected | seen | exit codes | what it says |", f"|{' --- |' * 6}"]
    for fault in rows:
        found = played[fault]
        codes = "; ".join(" ".join(map(str, codes)) for codes in found.codes)
        seen = found.seen if found.good else f"**{found.seen}: {'; '.join(found.problems)[:MAX_LETTERS]}**"
        cells = (f"{fault.family}: {fault.name}", f"{fault.workload}, {fault.ranks}", fault.expected, seen, codes)
        lines.append(" | ".join(("", *cells, _message(found.named), "")).strip())
    return lines


def _message(text: str) -> str:
    """One line for a cell: without this machine's folders, and not too long; cut between words, since half a flag is none."""
    text = re.sub(r"/[^ ]*/(fault|unbroken|begun)/(disk/)?", "", text).replace("|", "\\|")
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS].rpartition(' ')[0]} ..."

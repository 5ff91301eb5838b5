"""Write results/from/README.md's table: every known line of the originals, what the oracle computes of it, and what ours comes to.

PYTHONPATH=.:tests/migrate python scripts/migration_results.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from corpus import CORPUS
from lines import Line
from originals import SYSTEMS
from unseen import UNSEEN

from paceline.cli.commands.translate import translation_record

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "results" / "from" / "README.md"
FACTS = (
    "global_batch_size",
    "steps_per_epoch",
    "steps",
    "lr",
    "warmup_steps",
    "decay_steps",
    "weight_decay",
    "weights",
    "target",
)
HEAD = (
    f"| line | devices | {' | '.join(name.replace('_', ' ') for name in FACTS)} | ours |\n|{' --- |' * (len(FACTS) + 3)}\n"
)


def cell(value: Any) -> str:
    """A number in at most six digits."""
    if isinstance(value, tuple | list):
        return " ".join(map(cell, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def row(line: Line) -> str:
    """One line of the table; `ours`: equal, or what differs."""
    os.chdir(ROOT / "tests" / "migrate" / "configs" / line.folder)
    found = translation_record(line.command)
    words = " ".join(line.command.split())
    named = f"`{words if len(words) < 90 else words[:40] + ' ... ' + words[-45:]}`".replace("|", "/")
    if not line.ranks:
        return f"| {named} | | {'| ' * len(FACTS)}| `{found['command']}` |\n"
    more = {"environment": True} if line.environment else {}
    oracle = vars(SYSTEMS[line.system](line.given, line.ranks, **more))
    there = [row["what"] for row in found["differs"] if row["what"].partition(":")[0] in oracle]
    return (
        f"| {named} | {line.ranks} | {' | '.join(cell(oracle[name]) for name in FACTS)} | {'; '.join(there) or 'equal'} |\n"
    )


text = PLACE.read_text().partition("## Published lines")[0]
text += (
    f"## Published lines\n\n{HEAD}{''.join(map(row, CORPUS))}\n## The twenty unseen\n\n{HEAD}{''.join(map(row, UNSEEN))}"
)
PLACE.write_text(text)

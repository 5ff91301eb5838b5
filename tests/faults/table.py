"""The table of faults: every row with its expected outcome, and what it is judged by (fault.py). Rows are drawn from seeds."""

from __future__ import annotations

from collections import Counter

from damaged import checkpoints, disagreements, logs, misuse, run_files, strangers
from fault import Fault
from interruptions import kills, rows_of_kills
from stops import freezes, outputs, stops
from surroundings import disks, machines, photos

TABLE: tuple[Fault, ...] = tuple(
    fault
    for rows in (
        kills,
        rows_of_kills,
        stops,
        freezes,
        outputs,
        disks,
        photos,
        machines,
        checkpoints,
        run_files,
        logs,
        misuse,
        disagreements,
        strangers,
    )
    for fault in rows()
)
NAMES = Counter(fault.row for fault in TABLE)
assert max(NAMES.values()) == 1, f"two rows have one name: {NAMES.most_common(1)}"

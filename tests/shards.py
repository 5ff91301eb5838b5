"""Split the tests into shards of about equal time.

tests/seconds.tsv has the measured seconds of each file by day and by night. `python tests/shards.py TIMES [--night]` replaces one
of its columns by what `pytest --times TIMES` has measured.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

TABLE = Path(__file__).parent / "seconds.tsv"
UNKNOWN = 5.0  # seconds of a file that the table does not have
MIN = 2.0  # cheaper files are not in the table
LARGE = 300.0  # files that take longer are divided among shards by test


def seconds_of(*, night: bool) -> dict[str, float]:
    """File, as in test ids -> measured seconds."""
    with TABLE.open() as file:
        return {row["file"]: float(row["night" if night else "day"]) for row in csv.DictReader(file, delimiter="\t")}


def shards(tests: Sequence[str], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """Test id -> number of its shard, from 1: the most expensive unit that is left goes to the shard that has least."""
    sizes = Counter(test.split("::")[0] for test in tests)
    units: dict[str, float] = {}
    for test in tests:
        file = test.split("::")[0]
        spent = seconds.get(file, UNKNOWN)
        units[test if spent > LARGE else file] = spent / sizes[file] if spent > LARGE else spent
    spent, found = [0.0] * count, {}
    for unit in sorted(units, key=lambda unit: (-units[unit], unit)):
        least = spent.index(min(spent))
        spent[least] += units[unit]
        found[unit] = least + 1
    return {test: found.get(test) or found[test.split("::")[0]] for test in tests}


def read_times(file: Path) -> Counter[str]:
    """File -> seconds of its tests, from the lines (test, outcome, seconds, CPU seconds) of `pytest --times`."""
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        test, _, seconds, _ = line.split("\t")
        found[test.split("::")[0]] += float(seconds)
    return found


def main() -> None:
    """Replace one column of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--night", action="store_true")
    asked = parser.parse_args()
    kept, new = seconds_of(night=not asked.night), read_times(asked.times)
    day, night = (kept, new) if asked.night else (new, kept)
    with TABLE.open("w") as file:
        file.write("file\tday\tnight\n")
        for name in sorted({*day, *night}):
            if max(pair := (day.get(name, 0.0), night.get(name, 0.0))) >= MIN:
                file.write(f"{name}\t{pair[0]:.0f}\t{pair[1]:.0f}\n")


if __name__ == "__main__":
    main()

"""Split the tests into shards of about equal time.

tests/seconds.tsv has the measured seconds of each long test by night, and of the other tests of each file by day and by night.
`python tests/shards.py TIMES [--night]` replaces one of its columns by what `pytest --times TIMES` has measured.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parent / "seconds.tsv"
UNKNOWN = 5.0  # seconds of a file that the table does not have
MIN = 2.0  # cheaper files are not in the table
LARGE = 300.0  # files whose tests take longer are divided among shards by test
LONG = 45.0  # a test that takes longer by night has a row of its own


@cache
def seconds_of(*, night: bool) -> dict[str, float]:
    """File or long test, as in test ids -> measured seconds; those of a file are without its long tests."""
    with TABLE.open() as file:
        rows = [(row["file"], float(row["night" if night else "day"])) for row in csv.DictReader(file, delimiter="\t")]
    return {name: seconds for name, seconds in rows if seconds or "::" not in name}


def shards(tests: Sequence[str], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """Test id -> number of its shard, from 1: the most expensive unit that is left goes to the shard that has least."""
    others = [test for test in tests if test not in seconds]
    sizes = Counter(test.split("::")[0] for test in others)
    units = {test: seconds[test] for test in tests if test in seconds}
    for test in others:
        file = test.split("::")[0]
        spent = seconds.get(file, UNKNOWN)
        units[test if spent > LARGE else file] = spent / sizes[file] if spent > LARGE else spent
    spent, found = [0.0] * count, {}
    for unit in sorted(units, key=lambda unit: (-units[unit], unit)):
        least = spent.index(min(spent))
        spent[least] += units[unit]
        found[unit] = least + 1
    return {test: found.get(test) or found[test.split("::")[0]] for test in tests}


def read_times(file: Path, *, night: bool) -> Counter[str]:
    """What seconds_of gives, from the lines (test, outcome, seconds, CPU seconds) of `pytest --times`."""
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        test, _, seconds, _ = line.split("\t")
        found[test if night and float(seconds) > LONG else test.split("::")[0]] += float(seconds)
    return found


def main() -> None:
    """Replace one column of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--night", action="store_true")
    asked = parser.parse_args()
    kept, new = seconds_of(night=not asked.night), read_times(asked.times, night=asked.night)
    day, night = (kept, new) if asked.night else (new, kept)
    with TABLE.open("w") as file:
        file.write("file\tday\tnight\n")
        for name in sorted({*day, *night}):
            if max(pair := (day.get(name, 0.0), night.get(name, 0.0))) >= MIN:
                file.write(f"{name}\t{pair[0]:.0f}\t{pair[1]:.0f}\n")


if __name__ == "__main__":
    main()

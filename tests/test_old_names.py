"""Names that recipes and commands had before their last renaming stand nowhere in the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLD = re.compile(
    r"\b(resnet50|ssd|fasterrcnn|maskrcnn)-(tiny|custom)\b"
    r"|\bpaceline (show|from(?! the)|pack|qualify|image|weights (get|check)|list (rows|workloads)|mlperf analyse)\b(?!\.)"
)
# This file; what maps the old names to the new ones; recordings.
ALLOWED = ("tests/test_old_names.py", "scripts/equal_bits.py", "tests/training/test_recorded_runs.py", "tests/recorded/")


def old_names(text: str) -> list[str]:
    """The old names in a text."""
    return [match[0] for match in OLD.finditer(text)]


def test_no_old_name_of_a_recipe_or_a_command_is_left():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(ALLOWED)]
    found = {}
    for name in names:
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):  # pictures, archives; removed and not yet committed
            continue
        if results := old_names(text):
            found[name] = results[:3]
    assert not found


def test_an_old_name_is_found_and_a_longer_one_is_another():
    assert old_names("paceline show ssd-tiny --data x; paceline weights get resnet50") == [
        "paceline show",
        "ssd-tiny",
        "paceline weights get",
    ]
    assert not old_names("paceline plan ssd-demo; paceline showcase; from paceline import train; my-ssd-tinyish")


def test_the_preposition_from_is_no_command():
    footers = [path.read_text() for path in (ROOT / "paceline" / "tools" / "report").rglob("*.jinja")]
    assert footers and not [text for text in footers if "paceline translate" in text]
    assert not old_names("Written by paceline from the files of this run.")

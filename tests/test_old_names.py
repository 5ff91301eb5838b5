"""The tree has no old names of recipes, commands, flags, or the Python API."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLD = re.compile(
    r"\b(resnet50|ssd|fasterrcnn|maskrcnn)-(tiny|custom)\b"
    r"|\bpaceline (show|from(?! the)|pack|qualify|image|weights (get|check)|list (rows|workloads)|mlperf analyse)\b(?!\.)"
    r"|(?<![\w/.-])--(?:no-)?(?:time-budget|fit-schedule|limit-(?:train|val)|val-(?:half|seed|group)|fold-group|eval-ranks|mirror|sink"
    r"|through|link-gbit|score-above|mask-above|first-(?:label|class)|zips|install-peers|peers-in|workload|trials|pictures|max-objects"
    r"|system-of|largest-mib|slurm\.lead|colours)(?![\w.-])"
    # Python: classes, methods, arguments of paceline.train and paceline.load, and SHOWN_ABOVE of results.py.
    r"|\b(PhotoPredictor|AlikeError|SHOWN_ABOVE|[Pp]redictor\.stream|paceline\.inference\.Video)\b"
    r"|\bchanges=\{|\b(paceline|inference)\.load\([^\n]*\b(say|trust)="
)
# This file; what maps the old names to the new ones; recordings.
ALLOWED = ("tests/test_old_names.py", "scripts/equal_bits.py", "tests/recorded/", "tests/oracle/recorded")


def old_names(text: str) -> list[str]:
    """The old names in a text."""
    return [match[0] for match in OLD.finditer(text)]


def test_no_old_name_of_a_recipe_a_command_or_a_flag_is_left():
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
    assert old_names("--fit-schedule, --no-pictures") == ["--fit-schedule", "--no-pictures"]
    assert not old_names("--dedicated-eval-ranks 1 --my-sink a --sinks b docs/--mirror")
    assert not old_names("paceline plan ssd-demo; paceline showcase; from paceline import train; my-ssd-tinyish")


def test_old_names_of_the_python_api_are_found_and_the_new_ones_are_none():
    old = 'paceline.train("x", changes={"optim.lr": 1}); paceline.load("a.pt2", trust=True); predictor.stream([]); PhotoPredictor'
    assert len(old_names(old)) == 4
    assert not old_names('paceline.train("x", overrides={}); paceline.load("a.pt2", allow_code_execution=True); Predictor')


def test_the_preposition_from_is_no_command():
    footers = [path.read_text() for path in (ROOT / "paceline" / "tools" / "report").rglob("*.jinja")]
    assert footers and not [text for text in footers if "paceline translate" in text]
    assert not old_names("Written by paceline from the files of this run.")

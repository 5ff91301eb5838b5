"""The long form: every hostile case as a whole command in a process of its own, with what it took; prints the table of outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import Family, Outcome, through_the_command_line
from hostile_coco import COCO
from hostile_images import IMAGES
from hostile_labels import VOC, YOLO
from hostile_training import BOXES, MASKS
from hostile_weights import WEIGHTS

FAMILIES = (WEIGHTS, COCO, IMAGES, YOLO, VOC, BOXES, MASKS)
# The largest harmless photo of the tables is read and decoded twice over. torch is in the process that is forked.
MOST_MEBIBYTES = 900
# A few of each family in the suite: one of every so many.
EVERY = 60


def outcomes(family: Family, names: list[str], folder: Path) -> dict[str, Outcome]:
    found = {}
    for number, name in enumerate(names):
        place = folder / f"{number}"
        place.mkdir()
        found[name] = through_the_command_line(family, name, place / "set")
    return found


def check(family: Family, found: dict[str, Outcome]) -> None:
    wrong = {
        name: outcome
        for name, outcome in found.items()
        if outcome.kind != ("refused" if family.cases[name][1] else "taken") or outcome.mebibytes > MOST_MEBIBYTES
    }
    assert not wrong, f"{family.name}: {wrong}"


@pytest.mark.parametrize("family", FAMILIES[:5], ids=lambda family: family.name)
def test_some_of_a_family_through_the_command_line(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(family, outcomes(family, list(family.cases)[::EVERY], tmp_path))


@pytest.mark.nightly("hundreds of commands")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_all_of_a_family_through_the_command_line(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = outcomes(family, list(family.cases), tmp_path)
    print(table(family, found))
    check(family, found)
    assert not list(tmp_path.rglob("PWNED"))


def table(family: Family, found: dict[str, Outcome]) -> str:
    """One row, and the names by outcome."""
    kinds = sorted({outcome.kind for outcome in found.values()})
    counts = ", ".join(f"{sum(outcome.kind == kind for outcome in found.values())} {kind}" for kind in kinds)
    most = max(found.values(), key=lambda outcome: outcome.mebibytes).mebibytes
    slowest = max(found, key=lambda name: found[name].seconds)
    row = f"| {family.name} | {len(found)} | {counts} | {most:.0f} | {found[slowest].seconds:.1f} ({slowest}) |"
    lists = [f"{kind}: {'; '.join(name for name in found if found[name].kind == kind)}" for kind in kinds]
    return "\n".join(["", row, "", f"**{family.name}**", *lists])

"""The long form: every hostile case as a whole command in a process of its own, with what it took; prints the table of outcomes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
MAX_MEBIBYTES = 900
# A few of each family in the suite: one of every so many.
EVERY = 60


@pytest.fixture(scope="module")
def fresh(process_locks) -> Iterator[ProcessPoolExecutor]:
    """A process that forks those of the cases. This one may have threads (of hotcoco, of OpenMP) for which a fork would wait."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as made:
        yield made


def outcomes(family_name: str, names: list[str], folder: Path) -> dict[str, Outcome]:
    import torch  # noqa: F401  (so that it is not loaded for each case)

    os.chdir(folder)
    family = next(family for family in FAMILIES if family.name == family_name)
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
        if outcome.kind != ("refused" if family.cases[name][1] else "taken") or outcome.mebibytes > MAX_MEBIBYTES
    }
    assert not wrong, f"{family.name}: {wrong}"


@pytest.mark.parametrize("family", FAMILIES[:5], ids=lambda family: family.name)
def test_some_of_a_family_through_the_command_line(family: Family, tmp_path: Path, fresh: ProcessPoolExecutor) -> None:
    check(family, fresh.submit(outcomes, family.name, list(family.cases)[::EVERY], tmp_path).result())


@pytest.mark.nightly("hundreds of commands")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_all_of_a_family_through_the_command_line(family: Family, tmp_path: Path, fresh: ProcessPoolExecutor) -> None:
    found = fresh.submit(outcomes, family.name, list(family.cases), tmp_path).result()
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

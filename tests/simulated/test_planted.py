"""Errors that the simulated CUDA device must catch: each is planted once, and the same work without it passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import device
import pytest

LATE = {"SIMULATED_COPIES": "late"}
REPLAY = pytest.param("replay", {}, 2, marks=pytest.mark.nightly("tests/gpu compares replays by night too"))


@pytest.mark.parametrize("kinds, settings, errors", [("capture landing", LATE, 15), REPLAY])
def test_every_error_is_caught(on_device, kinds: str, settings: dict[str, str], errors: int) -> None:
    done, _ = on_device("tests/simulated/planted.py", *kinds.split(), SIMULATED_VALUES="1", **settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == errors and found == {key: [True, False] for key in found}


@pytest.mark.nightly("8 s a seed, and `late` catches what chance may miss")
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_what_is_right_passes_in_any_order(on_device, seed: str) -> None:
    settings = {"SIMULATED_COPIES": "random", "SIMULATED_SEED": seed}
    done, _ = on_device("tests/simulated/planted.py", "landing", SIMULATED_VALUES="1", **settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not any(without for _, without in found.values()) and any(caught for caught, _ in found.values())


def two_ranks(on_device: Any, folder: Path, plant: str) -> tuple[Any, list[list[str]]]:
    words = device.torchrun(2, "tests/simulated/two_ranks.py", plant)
    settings = {"SIMULATED_COLLECTIVES": str(folder / "collectives"), "SIMULATED_PATIENCE": "4", "SIMULATED_DEVICES": "2"}
    done, _ = on_device(*words, SIMULATED_VALUES="1", **settings)
    return done, [one.read_text().splitlines() for one in sorted(folder.glob("collectives.*"))]


@pytest.mark.nightly("two processes, 15 s each")
@pytest.mark.parametrize("plant", ["nothing", "another order", "one skipped"])
def test_ranks_that_do_not_agree_are_caught(on_device, tmp_path: Path, plant: str) -> None:
    done, (one, other) = two_ranks(on_device, tmp_path, plant)
    if plant == "nothing":
        assert done.returncode == 0 and one == other, done.stderr
    else:
        assert done.returncode and "has waited 4 s for the others" in done.stderr
        assert one != other

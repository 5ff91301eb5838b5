"""The MLPerf log against what really happens: no training image is touched between init_start and run_start, on any rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.training.logging.mllog import PREFIX

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


def logged_ms(run: Path, key: str) -> int:
    """When mllog.txt says that `key` happened."""
    records = [json.loads(line.removeprefix(PREFIX)) for line in (run / "mllog.txt").read_text().splitlines()]
    (record,) = [record for record in records if record["key"] == key]
    return record["time_ms"]


def touches(run: Path, rank: int) -> list[tuple[int, bool]]:
    """(milliseconds since 1970, whether the log had its run_start) of each time that a rank opened a training photo."""
    lines = Path(f"{run}.touched{rank}").read_text().split()
    return [(int(time_ms), started == "1") for time_ms, started in (line.split(",") for line in lines)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_images_are_first_touched_after_run_start(trainer, tmp_path, ranks):
    run = tmp_path / "run"
    trainer.environ["PACELINE_CACHE"] = str(tmp_path / "cache")  # so that the run has to prepare its data set itself
    try:
        trainer.finished(run, "--max-steps 3", ranks=ranks, recipe="watched")
    finally:
        trainer.environ["PACELINE_CACHE"] = str(trainer.folder / "cache")
    init_start, init_stop, run_start = (logged_ms(run, key) for key in ("init_start", "init_stop", "run_start"))
    assert init_start < init_stop <= run_start
    for rank in range(ranks):
        found = touches(run, rank)
        early = [time_ms for time_ms, started in found if not started]
        assert len(found) - len(early) >= 3 * 12 // ranks
        # Preparing a data set is no part of a timed run: it is over when the log begins. One rank of a node does it.
        assert all(time_ms <= init_start for time_ms in early)
        assert bool(early) == (rank == 0)


def test_the_time_in_which_a_run_is_built_lies_between_init_start_and_init_stop(trainer, tmp_path):
    run = tmp_path / "run"
    trainer.finished(run, "--max-steps 1", recipe="built_slowly")
    assert logged_ms(run, "init_stop") - logged_ms(run, "init_start") >= 300

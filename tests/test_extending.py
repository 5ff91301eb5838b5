"""The code on the pages of docs/how-to/extend does what the page says."""

from __future__ import annotations

import math
import re
import sqlite3
from pathlib import Path

import pytest

from paceline._utils.errors import PacelineError
from paceline.config.run import RunOptions
from paceline.distributed.comm import launcher
from paceline.training.logging.callbacks import RunInfo
from paceline.training.logging.console import Console
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import TrainEvent, read_events
from paceline.training.logging.trackers import tracker_makers

PAGES = Path(__file__).parents[1] / "docs/how-to/extend"


def blocks(page: str) -> list[str]:
    """The Python that a page shows, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), flags=re.M | re.S)


def test_a_launcher_is_a_function_and_a_row(monkeypatch):
    monkeypatch.setattr(launcher, "LAUNCHERS", dict(launcher.LAUNCHERS))
    names = dict(vars(launcher))
    for block in blocks("launcher.md"):
        exec(block, names)
    environ = names["environ"]
    with pytest.raises(PacelineError, match="ACME_HEAD not set, but ACME_RANK"):
        launcher.read_launch({**environ, "ACME_HEAD": ""})
    with pytest.raises(PacelineError, match="ACME_RANK and ACME_SIZE: rank 8 of 8"):
        launcher.read_launch({**environ, "ACME_RANK": "8"})
    with pytest.raises(PacelineError, match=r"ACME_RANK and ACME_SIZE have rank 5 of 8 \(acme\)"):
        launcher.read_launch({**environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})


def test_a_kernel_is_an_operator_with_a_fake_form_and_a_twin():
    names: dict = {}
    for block in blocks("kernel.md"):
        exec(block, names)


def test_a_tracker_is_a_sink_of_the_events(tmp_path):
    """The page's file is named as --logger names it, and told of a run that goes on from step 2."""
    (tmp_path / "curves.py").write_text(blocks("logger.md")[0])
    nothing = dict(
        target="",
        eval_steps=(),
        train_images=8,
        val_images=4,
        mllog={},
        weights=(),
        cache_cleared=False,
        accuracy=dict,
        submission=dict(benchmark="ssd", org="", division="closed", status="onprem", platform=""),
    )
    facts = RunInfo(total_steps=4, global_batch_size=2, steps_per_epoch=4, **nothing)
    sinks = tracker_makers(RunOptions(logger=(f"{tmp_path}/curves.py:Curves",), tensorboard=False))
    for resumed_at, steps in ((None, (2, 3)), (2, (3, 4))):
        told = EventLogger(tmp_path, facts, Console(quiet=True), sinks=sinks, resumed_at=resumed_at)
        told.start(resumed_at or 0, 0.0)
        for step in steps:
            loss = math.nan if step == 4 else (resumed_at or 0) + step / 2
            event = TrainEvent(losses={"loss": loss}, lr=0.1, images_per_second=2.0, data_wait=0.0, samples=4)
            told.train(step, 1.5, event, eta_seconds=1.0)
        told.close()
    table = sqlite3.connect(tmp_path / "curves.db")
    rows = table.execute("SELECT step, value FROM curves WHERE kind = 'train' AND name = 'loss' ORDER BY step").fetchall()
    table.close()
    assert rows == [(2, 1.0), (3, 3.5), (4, None)]  # SQLite's NULL is NaN
    assert len(read_events(tmp_path / "events.jsonl")) == 3

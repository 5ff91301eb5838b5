"""The code on the pages of docs/extending does what the page says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.config.errors import UserError
from paceline.dist import launcher
from paceline.log import recorder
from paceline.log.console import Console

PAGES = Path(__file__).parents[1] / "docs" / "extending"


def blocks(page: str) -> list[str]:
    """The Python that a page shows, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), flags=re.M | re.S)


def test_a_launcher_is_a_function_and_a_row(monkeypatch):
    monkeypatch.setattr(launcher, "LAUNCHERS", dict(launcher.LAUNCHERS))
    names = dict(vars(launcher))
    for block in blocks("launcher.md"):
        exec(block, names)
    environ = names["environ"]
    with pytest.raises(UserError, match="ACME_HEAD missing although ACME_RANK"):
        launcher.read_launch({**environ, "ACME_HEAD": ""})
    with pytest.raises(UserError, match="ACME_RANK and ACME_SIZE: rank 8 of 8 is impossible"):
        launcher.read_launch({**environ, "ACME_RANK": "8"})
    with pytest.raises(UserError, match=r"ACME_RANK and ACME_SIZE say rank 5 of 8 \(acme\)"):
        launcher.read_launch({**environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})


def test_a_kernel_is_an_operator_with_a_fake_form_and_a_twin():
    names: dict = {}
    for block in blocks("kernel.md"):
        exec(block, names)


def test_a_tracker_is_a_sink_of_the_events(tmp_path, monkeypatch):
    told = []
    run = SimpleNamespace(
        log=lambda numbers, step: told.append((numbers, step)), finish=lambda: told.append("finished")
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **named: told.append(named) or run))
    monkeypatch.setattr(recorder, "SINKS", [])
    names: dict = {}
    for block in blocks("tracker.md"):
        exec(block, names)
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"seed": 7}}))
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
    facts = recorder.Facts(total_steps=4, global_batch=2, steps_per_epoch=4, **nothing)
    tells = recorder.Recorder(tmp_path, facts, Console(quiet=True), resumed_at=None)
    tells.start(0, 0.0)
    tells.train(2, 1.5, eta_seconds=1.0, loss=0.5, lr=0.1, images_per_second=2.0, data_wait=0.0, samples=4)
    tells.close()
    numbers = {"train/loss": 0.5, "train/lr": 0.1, "train/images_per_second": 2.0, "train/data_wait": 0.0}
    assert told == [
        {"id": tmp_path.name, "resume": "allow", "config": {"seed": 7}, "dir": tmp_path},
        (numbers, 2),
        "finished",
    ]

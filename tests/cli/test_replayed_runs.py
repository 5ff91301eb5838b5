"""Whole `paceline train` runs whose steps are replayed: evaluations between them, a resume, several kinds of batches."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from by_night import ONE_MORE
from run_files import tensor_files
from shared_runs import MASKRCNN, SSD
from tape import Recorder
from tiny_runs import TINY, Said, command, without_report

import paceline.training.loop
from paceline.models.ops import dispatch
from paceline.training.logging.events import MEASURED
from paceline.training.optim.step_scalars import StepScalars
from paceline.training.step import TrainStep

LOOP = paceline.training.loop
FLAGS = {"classify-demo": shlex.join(["--system", "cpu", *TINY]), "ssd-demo": SSD, "maskrcnn-demo": MASKRCNN}
SIZES = ("gradient_norm", "update_ratio", "gradient_norms", "update_ratios")  # not measured in a replayed step
DATA = {"classify-demo": "resnet_run", "ssd-demo": "ssd_run", "maskrcnn-demo": "maskrcnn_run"}


def trained(recipe: str, data: Path, out: Path, capsys: pytest.CaptureFixture, *more: object) -> Said:
    words = shlex.split(f"{FLAGS[recipe]} --system.intra-op-threads 1 --system.num-workers 1 --eval-every 8 --log-every 1")
    said = command(capsys, "train", recipe, "--data", data, "--output-dir", out, *words, *more)
    assert said.code == 0, said.err
    return said


def left(run: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The last checkpoint's tensors, and what train and eval events say that no clock says and that a replayed step has too."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["event"] in ("train", "eval")]
    return tensor_files(run), [
        {key: value for key, value in event.items() if key not in (*MEASURED, *SIZES, "crc")} for event in told
    ]


@pytest.mark.parametrize(
    ("recipe", "steps"),
    [
        pytest.param("classify-demo", 10, marks=ONE_MORE),
        pytest.param("ssd-demo", 20, marks=ONE_MORE),
        pytest.param("maskrcnn-demo", 20, marks=ONE_MORE),
    ],
)
def test_a_run_of_replayed_steps_leaves_what_the_run_leaves(recipe, steps, tmp_path, capsys, monkeypatch, request):
    data, tapes = request.getfixturevalue(DATA[recipe]).data, []
    steps_of_runs: list[TrainStep] = []
    without_report(monkeypatch)

    def eager(state: Any, plan: Any, system: Any, device: torch.device, group: Any) -> TrainStep:
        numbers = StepScalars(state.optimizer.optim, device, tensors=True)
        return TrainStep(state, plan, system, device, group, numbers=numbers)

    def replayed(state: Any, plan: Any, system: Any, device: torch.device, group: Any) -> TrainStep:
        numbers = StepScalars(state.optimizer.optim, device, tensors=True)
        tapes.append(Recorder())
        steps_of_runs.append(TrainStep(state, plan, system, device, group, numbers=numbers, capture=tapes[-1]))
        return steps_of_runs[-1]

    with dispatch.static_shapes():
        monkeypatch.setattr(LOOP, "TrainStep", eager)
        trained(recipe, data, tmp_path / "eager", capsys, "--max-steps", steps)
        monkeypatch.setattr(LOOP, "TrainStep", replayed)
        trained(recipe, data, tmp_path / "replayed", capsys, "--max-steps", 5)
        said = trained(
            recipe, data, tmp_path / "replayed", capsys, "--max-steps", steps
        )  # from its checkpoint, in another process
    assert sum(tape.played for tape in tapes) == steps and len(tapes) == 2
    assert [step.captures for step in steps_of_runs] == [0, 0]  # NCCL's connections could not be closed before
    assert "captured" in said.out  # a CPU captures as it goes, which is said
    (tensors, events), (others, others_events) = left(tmp_path / "eager"), left(tmp_path / "replayed")
    assert tensors == others
    of_resume = [event for event in others_events if event["event"] == "eval" and event["step"] == 5]
    assert [event for event in others_events if event not in of_resume] == events

"""A run that starts from weights: model and average are these weights before the first step, for every workload."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from messages import check_text
from shared_runs import MASKRCNN, SSD
from tiny_runs import TINY, of_its_own

from paceline.cli.flags import parse_run_args
from paceline.cli.main import main
from paceline.config.run import RunOptions
from paceline.distributed.comm.stop import StopRequest, StopVote
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.context import TrainContext
from paceline.training.eval_history import TrainResult
from paceline.training.loop import make_validator
from paceline.training.request import Request
from paceline.training.trainer import run_training

FP32 = "--system cpu --system.precision fp32 --system.intra-op-threads 1"
SMALL = {"classify-demo": " ".join(TINY), "ssd-demo": SSD, "maskrcnn-demo": MASKRCNN}
RUNS = {"classify-demo": "resnet_run", "ssd-demo": "ssd_run", "maskrcnn-demo": "maskrcnn_run"}


@pytest.fixture(params=SMALL)
def source(request) -> tuple[list[str], Path]:
    """-> (the words that train this recipe, a finished run of it)."""
    run = request.getfixturevalue(RUNS[request.param])
    words = f"{request.param} --data {run.data} {SMALL[request.param]} {FP32}"
    return words.split(), run.folder


@pytest.fixture(autouse=True)
def no_report(monkeypatch, tmp_path_factory):
    of_its_own(monkeypatch, tmp_path_factory)


def tensors_of(run: Path, *groups: str) -> dict[str, torch.Tensor]:
    """Of the last checkpoint; a later group's stand for an earlier one's. What --weights takes are the average and, where
    it has none, the model's."""
    tensors = load_checkpoint(run / "checkpoints" / "last").tensors
    return {name: tensor for group in groups for name, tensor in tensors[group].items()}


def test_before_the_first_step_the_average_scores_as_eval_of_the_weights_does(source, tmp_path, capsys, monkeypatch):
    words, run = source
    assert main(["eval", str(run), "--checkpoint", "last", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out.splitlines()[-1])
    asked = parse_run_args([*words, "--ema-decay", "0.99"], RunOptions(), verb="train")
    options = replace(asked.options, output_dir=str(tmp_path / "run"), weights=str(run / "checkpoints" / "last"))
    request = Request(asked.name, asked.recipe, asked.system_name, asked.system, options, asked.given)
    scored = []

    def score_at_once(context: TrainContext, *, pending: bool) -> TrainResult:
        state = context.state
        assert state.average is not None and not pending
        saved = tensors_of(run, "model", "average")
        for name, value in state.average.state().items():
            assert torch.equal(value, saved[name]), name
            assert torch.equal(state.model.state_dict()[name], saved[name]), name
        evaluator = make_validator(context, StopVote(context.roles.peers, StopRequest()))
        assert evaluator.begin() and evaluator.pending == 0
        result = evaluator.take()
        assert result is not None and evaluator.pending is None
        scored.append(result.found.metrics)
        return TrainResult("interrupted", "", 0, {}, str(context.folder))

    monkeypatch.setattr("paceline.training.trainer.loop", score_at_once)
    run_training(request)
    (metrics,) = scored
    assert metrics == {name: wanted[name] for name in metrics}


def test_three_steps_at_no_rate_leave_the_weights_and_their_average_where_they_were(source, tmp_path, capsys):
    words, run = source
    out = tmp_path / "run"
    more = f"--weights {run}/checkpoints/last --optim.lr 1e-9 --ema-decay 0.998 --max-steps 3 --seed 9 --output-dir {out}"
    assert main(["train", *words, *more.split()]) == 0
    wanted = tensors_of(run, "model", "average")
    for group in ("model", "average"):
        for name, value in tensors_of(out, group).items():
            if value.is_floating_point() and not name.endswith(("running_mean", "running_var")):
                torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6, msg=f"{group} {name}")
    # 3 steps of 0.998 would leave 99 % of the first weights in it.
    check_text(capsys.readouterr().out, "--ema-decay 0.998", "99%", "3 steps")

"""What a run was asked for beside its recipe, in whole runs: --patience, --deterministic, --profile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
import torch
from messages import check_text
from run_files import events_of, tensor_files
from tiny_runs import refused, train

from paceline.training.logging.profiler import Tracer
from paceline.training.step import TrainStep

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.mark.parametrize("target", [None, 1.5])
def test_patience_ends_a_run_at_the_evaluation_that_uses_it_up(class_photos, tmp_path, capsys, target):
    more = [] if target is None else ["--target", f"top1={target}"]
    flags = ["--eval-every", 1, "--patience", 2, "--optim.lr", 1e-9, *more]
    said = train(capsys, class_photos, tmp_path / "run", *flags, steps=30)
    assert target is None or "(target top1 150 %)" in said.out  # in the terms of the numbers beside it
    best, waited, last = -1.0, 0, 0
    scored = events_of(tmp_path / "run", "eval")
    for event in scored:
        best, waited = (event["top1"], 0) if event["top1"] > best else (best, waited + 1)
        last = event["step"]
        if waited == 2:
            break
    (end,) = events_of(tmp_path / "run", "end")
    assert waited == 2 and 3 <= last < 30 and end["step"] == last == scored[-1]["step"] == len(scored)
    assert end["best"] == {**end["best"], "top1": best}
    assert check_text(end["reason"], "2 evaluations")
    assert (said.code, end["status"]) == ((0, "success") if target is None else (1, "ran_out"))


@contextlib.contextmanager
def seen_deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[bool]]:
    """Whether forwards in it ran under deterministic kernels; the switch is put back, which a process of its own never needs."""
    from paceline.models.resnet.loss import ClassifierWithLoss

    seen: set[bool] = set()
    forward = ClassifierWithLoss.forward
    was = torch.are_deterministic_algorithms_enabled()
    with monkeypatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # and gone with the patch
        patch.setattr(
            ClassifierWithLoss,
            "forward",
            lambda self, batch: seen.add(torch.are_deterministic_algorithms_enabled()) or forward(self, batch),
        )
        try:
            yield seen
        finally:
            torch.use_deterministic_algorithms(was)


def test_two_exact_runs_have_the_same_bits_and_were_deterministic(class_photos, tmp_path, capsys, monkeypatch):
    files = []
    for name in ("first", "again"):
        with seen_deterministic(monkeypatch) as seen:
            said = train(capsys, class_photos, tmp_path / name, "--deterministic", "--log-every", 1, steps=4)
        assert said.code == 0 and seen == {True}, said.err
        files.append(tensor_files(tmp_path / name))
    assert files[0] == files[1]
    losses = [[event["loss"] for event in events_of(tmp_path / name, "train")] for name in ("first", "again")]
    assert losses[0] == losses[1] and len(set(losses[0])) == 4
    with seen_deterministic(monkeypatch) as seen:
        train(capsys, class_photos, tmp_path / "other", steps=1)
    assert seen == {False}


def test_a_trace_has_its_steps_by_name_and_what_is_in_them(class_photos, tmp_path, capsys, monkeypatch):
    replayed, take = [], TrainStep.__call__
    monkeypatch.setattr(TrainStep, "__call__", lambda *given, **how: replayed.append(how["replay"]) or take(*given, **how))
    assert train(capsys, class_photos, tmp_path / "run", "--profile", "1:3", steps=4).code == 0
    assert replayed == [True, False, False, True]
    assert [path.name for path in (tmp_path / "run" / "profile").iterdir()] == ["steps-1-3.json"]
    trace = json.loads((tmp_path / "run" / "profile" / "steps-1-3.json").read_text())["traceEvents"]
    ranges = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in trace if e.get("cat") == "user_annotation"]
    steps = {name: (begin, end) for name, begin, end in ranges if name.startswith("step ")}
    assert list(steps) == ["step 2", "step 3"]  # the numbers that the log has
    for begin, end in steps.values():
        inside = [name for name, first, last in ranges if begin <= first <= last <= end and not name.startswith("step")]
        assert inside == ["forward", "backward", "update"]
    assert any("convolution" in e["name"] for e in trace if e.get("cat") == "cpu_op")


def test_ranks_without_a_trace_know_its_steps(tmp_path):
    """Where steps are replayed, all ranks send those that one of them traces."""
    others = Tracer("1:3", tmp_path, main=False)
    assert (others.asked, others.steps) == (range(1, 3), range(0))
    assert Tracer("", tmp_path, main=True).asked == range(0)


def test_nvtx_ranges_stand_in_a_window_that_opens_before_the_first_step(class_photos, tmp_path, capsys, monkeypatch):
    """The calls, in their order: there is no CUDA here to hear them."""
    heard: list[str] = []

    @contextlib.contextmanager
    def ranged(name: str) -> Iterator[None]:
        heard.append(name)
        yield
        heard.append(f"end of {name}")

    monkeypatch.setattr("paceline.training.resolve.check_profile", lambda *_: None)
    monkeypatch.setattr("torch.cuda.profiler.start", lambda: heard.append("start"))
    monkeypatch.setattr("torch.cuda.profiler.stop", lambda: heard.append("stop"))
    monkeypatch.setattr("torch.autograd.profiler.emit_nvtx", lambda: ranged("operations"))
    monkeypatch.setattr("torch.profiler.record_function", ranged)
    assert train(capsys, class_photos, tmp_path / "run", "--profile", "nvtx:1:3", steps=4).code == 0
    steps = [part for step in (2, 3) for part in (f"step {step}", f"end of step {step}")]
    assert heard == ["start", "operations", *steps, "end of operations", "stop"]
    assert not (tmp_path / "run" / "profile").exists()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("nvtx:0:1", "--profile nvtx:0:1 ... CUDA ... cpu"),
        ("2:3", "--profile 2:3 ... 2"),
        ("3:2", "FIRST:END"),
        ("rocm:0:1", "nvtx:50:53"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_before_training(class_photos, tmp_path, capsys, asked, says):
    refused(train(capsys, class_photos, tmp_path / "run", "--profile", asked, "--system", "cpu"), says)
    assert not (tmp_path / "run").exists()

"""Steps that are replayed from their recorded operations alone train as steps that are taken: bit for bit, all workloads.

A CPU takes the accelerators' forms for it, and tests/tape.py is the graph: it knows memory and no Python.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from by_night import ONE_MORE
from messages import raises
from small_steps import batch_of, plan_of, small, state_of
from tape import HostReadError, Recorder
from torch import Tensor

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan, step_rates
from paceline.config.recipe import Recipe
from paceline.config.system import System, check_system
from paceline.data.batch import Batch
from paceline.models.ops import dispatch
from paceline.training import cuda_graphs
from paceline.training.cuda_graphs import WARM_UPS
from paceline.training.evaluate import inference_mode
from paceline.training.optim.step_scalars import StepScalars
from paceline.training.state import State, load_model
from paceline.training.step import TrainStep

CPU = torch.device("cpu")
STEPS = 20


@pytest.fixture(autouse=True)
def fixed_forms() -> Iterator[None]:
    with dispatch.static_shapes():
        yield


@dataclass
class Trainer:
    """A state with its step, and the batches of each step."""

    recipe: Recipe
    plan: BatchPlan
    state: State
    take: TrainStep

    def batches(self, step: int) -> list[Batch]:
        images = self.plan.micro_batch_size
        return [batch_of(self.recipe, images, 100 * step + forward) for forward in range(self.plan.micro_batches)]

    def steps(self, first: int, last: int) -> list[dict[str, float]]:
        """Take them; -> each one's losses."""
        found = []
        for step in range(first, last):
            losses = self.take(self.batches(step), step_rates(self.recipe, self.plan, step))
            found.append({name: float(value) for name, value in losses.items()})
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes, by name."""
        state = self.state
        parts: dict[str, Any] = {"model": state.model.state_dict(), "optimizer": state.optimizer.state()}
        parts |= {"average": state.average.state()} if state.average is not None else {}
        parts |= {"scaler": state.scaler.state()} if state.scaler is not None else {}
        return {f"{part}.{name}": tensor.clone() for part, of in parts.items() for name, tensor in of.items()}


def trainer(recipe: Recipe, system: System, *, capture: Recorder | None = None, floats: bool = False) -> Trainer:
    plan = plan_of(recipe, system, steps=STEPS)
    state = state_of(recipe, plan, system, CPU)
    numbers = StepScalars(recipe.optim, CPU, tensors=not floats)
    return Trainer(recipe, plan, state, TrainStep(state, plan, system, CPU, capture=capture, numbers=numbers))


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that differ in a bit."""
    assert left.keys() == right.keys()
    return [name for name, tensor in left.items() if not torch.equal(tensor, right[name])]


@dataclass(frozen=True)
class Case:
    """What is trained, and where."""

    task: str
    changes: dict[str, Any]
    system: System = field(default_factory=System)


LARS = {
    "optim.name": "lars", "optim.momentum_style": "mxnet-corrected", "optim.nesterov": False, "optim.lr": 2.0,
    "schedule.name": "polynomial", "schedule.warmup": 0.2, "ema_decay": 0.9,
}  # fmt: skip
CORRECTED = LARS | {"optim.name": "sgd", "optim.lr": 0.05, "schedule.name": "cosine", "optim.bias_lr_factor": 2.0}
SGD = {"schedule.name": "cosine", "schedule.warmup": 0.2, "ema_decay": 0.99, "optim.clip_norm": 1.0}
ADAMW = {"optim.name": "adamw", "optim.nesterov": False, "optim.lr": 0.002}
HALF = System(precision="fp16")
CASES = {
    "classification, lars": Case("classification", LARS),
    "ssd, adamw": Case("detection", {}),
    "maskrcnn, counted ahead": Case("instance-segmentation", {}, System(micro_batch_size=2)),
    "classification, sgd": Case("classification", SGD),
    "classification, corrected": Case("classification", CORRECTED),
    "classification, adamw": Case("classification", ADAMW),
    "classification, fp16": Case("classification", SGD, HALF),
    "classification, fp16 lars": Case("classification", LARS, HALF),
    "classification, fp16 adamw": Case("classification", ADAMW, HALF),
    "classification, two forwards": Case("classification", SGD, System(micro_batch_size=2)),
    "ssd, whole batch, two forwards": Case("detection", {"model.loss_normalizer": "batch"}, System(micro_batch_size=2)),
    "ssd, corrected": Case("detection", CORRECTED),
    "maskrcnn, sgd": Case("instance-segmentation", CORRECTED | {"optim.lr": 0.005}),
}
BY_DAY = {"classification, lars", "ssd, adamw"}


@pytest.mark.parametrize("name", [name if name in BY_DAY else pytest.param(name, marks=ONE_MORE) for name in CASES])
def test_a_replayed_run_is_the_run_bit_for_bit(name: str) -> None:
    case = CASES[name]
    recipe = small(case.task, case.changes)
    eager, tape = trainer(recipe, case.system), Recorder()
    replayed = trainer(recipe, case.system, capture=tape)
    assert replayed.steps(0, STEPS) == eager.steps(0, STEPS)
    assert same(replayed.tensors(), eager.tensors()) == []
    assert (len(tape.tapes), tape.played) == (1, STEPS)
    if eager.state.scaler is not None:
        assert 1 <= int(eager.state.scaler.skipped) < STEPS


@pytest.mark.nightly("a few more recorded steps of masks")
def test_masks_replayed_for_a_few_steps_are_the_steps() -> None:
    """The long case above by day."""
    case = CASES["maskrcnn, counted ahead"]
    recipe = small(case.task, case.changes)
    eager, replayed = trainer(recipe, case.system), trainer(recipe, case.system, capture=Recorder())
    assert eager.plan.loss_micro_batches == 2  # a pass that only counts is in the graph
    assert replayed.steps(0, 2) == eager.steps(0, 2)
    assert same(replayed.tensors(), eager.tensors()) == []


def test_a_rate_that_stays_a_python_number_is_found() -> None:
    recipe = small("classification", CORRECTED)
    eager, replayed = trainer(recipe, System()), trainer(recipe, System(), capture=Recorder(), floats=True)
    assert replayed.steps(0, 3) != eager.steps(0, 3)
    assert same(replayed.tensors(), eager.tensors())


def test_what_an_evaluation_and_a_resume_change_is_changed_in_place() -> None:
    """Averaged weights in the model and out of it, a checkpoint loaded over the state: the next replay reads what is there."""
    recipe = small("classification", LARS)
    eager, replayed = trainer(recipe, HALF), trainer(recipe, HALF, capture=Recorder())
    found = []
    for run in (eager, replayed):
        state, losses = run.state, run.steps(0, 3)
        assert state.average is not None and state.scaler is not None
        saved = [
            {name: tensor.clone() for name, tensor in part.items()}
            for part in (state.model.state_dict(), *(p.state() for p in (state.optimizer, state.average, state.scaler)))
        ]
        with state.average.applied(), inference_mode(state.model):
            state.model.predict(run.batches(50)[0])  # type: ignore[operator]
        losses += run.steps(3, 6)
        load_model(state.model, saved[0])
        for part, tensors in zip((state.optimizer, state.average, state.scaler), saved[1:]):
            part.load_state(tensors)
        losses += run.steps(3, 6)
        assert losses[3:6] == losses[6:9]
        found.append((losses, run.tensors()))
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1]) == []


def test_each_kind_of_batches_is_captured_once_and_a_step_can_be_sent_for_a_profiler() -> None:
    recipe, tape = small("classification"), Recorder()
    eager, replayed = trainer(recipe, System()), trainer(recipe, System(), capture=tape)
    for run in (eager, replayed):
        losses = []
        for step, wider in enumerate((0, 32, 0, 32)):
            batch, rates = batch_of(recipe, 4, step, wider=wider), step_rates(recipe, run.plan, step)
            if step < 3:
                losses.append(run.take([batch], rates)["loss"].clone())
                continue
            with torch.profiler.profile(acc_events=True) as profile:
                losses.append(run.take([batch], rates, replay=False)["loss"].clone())
            assert {"forward", "backward", "update"} <= {event.key for event in profile.key_averages()}
        run.losses = [float(loss) for loss in losses]  # type: ignore[attr-defined]
    assert replayed.losses == eager.losses  # type: ignore[attr-defined]
    assert same(replayed.tensors(), eager.tensors()) == []
    assert (len(tape.tapes), tape.played, replayed.take.captures) == (2, 3, 2)


def test_a_step_that_is_prepared_has_changed_nothing() -> None:
    recipe, system = small("classification", LARS), replace(HALF, micro_batch_size=2)
    eager, replayed = trainer(recipe, system), trainer(recipe, system, capture=Recorder())
    before = replayed.tensors()
    replayed.take.prepare(replayed.batches(7)[:1])
    assert same(before, replayed.tensors()) == [] and replayed.take.captures == 1
    assert all(weight.grad is None for weight in replayed.state.model.parameters())
    assert replayed.steps(0, 2) == eager.steps(0, 2) and replayed.take.captures == 1


def test_kinds_that_are_warmed_up_first_are_captured_without_another_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture holds stays taken, so a run warms all of its shapes up before it captures the first."""
    order, discard, recorder = [], TrainStep.discard, Recorder()
    monkeypatch.setattr(TrainStep, "discard", lambda self, batches: order.append("warm") or discard(self, batches))
    record = recorder.__call__
    monkeypatch.setattr(Recorder, "__call__", lambda self, work: order.append("capture") or record(work))
    recipe = small("classification")
    run = trainer(recipe, System(), capture=recorder)
    kinds = [[batch_of(recipe, 4, 0, wider=wider)] for wider in (32, 0)]
    for work in (run.take.warm_up, run.take.prepare, run.take.prepare):
        for batches in kinds:
            work(batches)
    assert order == ["warm"] * 2 * WARM_UPS + ["capture"] * 2
    run.steps(0, 1)
    assert (run.take.captures, run.take.late_captures, len(order)) == (2, 0, 2 * WARM_UPS + 2)
    run.take([batch_of(recipe, 4, 0, wider=64)], step_rates(recipe, run.plan, 1))
    assert (run.take.captures, run.take.late_captures) == (3, 1)


def test_a_step_that_is_closed_holds_no_capture() -> None:
    """Else NCCL would wait for it for ever where the ranks part; that a cycle would be found some time is not enough."""
    recipe, recorder = small("classification"), Recorder()
    run = trainer(recipe, System(), capture=recorder)
    run.steps(0, 1)
    held = weakref.ref(recorder.tapes.pop())
    gc.disable()
    try:
        assert held() is not None
        run.take.close()
        assert held() is None
    finally:
        gc.enable()
    trainer(recipe, System()).take.close()


@pytest.mark.parametrize("update", [True, False])
def test_a_discarded_step_leaves_no_trace(update: bool) -> None:
    run = trainer(small("classification", SGD), replace(HALF, micro_batch_size=2))
    before, pending = run.tensors(), [buffer.clone() for buffer in run.state.model.buffers()]
    run.take.discard(run.batches(3), update=update)
    assert same(before, run.tensors()) == []
    assert all(map(torch.equal, run.state.model.buffers(), pending))
    assert all(weight.grad is None for weight in run.state.model.parameters())


def test_one_kind_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_CAPTURES", 1)
    recipe = small("classification")
    run = trainer(recipe, System(), capture=Recorder())
    run.take.prepare([batch_of(recipe, 4, 0)])
    with raises(RecipeError, "--system.cuda-graph", "(2, 3, 32, 32)", "limit of 1"):
        run.take.prepare([batch_of(recipe, 2, 0)])


def test_a_step_that_reads_a_value_cannot_be_captured() -> None:
    recipe = small("classification")
    run = trainer(recipe, System(), capture=Recorder())
    forward = run.state.model.forward

    def reading(batch: Batch) -> dict[str, Tensor]:
        found = forward(batch)
        found["loss"].item()
        return found

    run.state.model.forward = reading
    with pytest.raises(HostReadError):
        run.steps(0, 1)


class Refusing(Recorder):
    """A device that cannot take a step down."""

    def __init__(self, problem: RuntimeError) -> None:
        super().__init__()
        self.problem = problem

    def __call__(self, work: Any) -> Any:
        raise self.problem


def test_a_capture_that_the_device_refuses_ends_in_one_line_and_want_of_memory_in_its_own() -> None:
    recipe = small("classification")
    refused = trainer(recipe, System(), capture=Refusing(RuntimeError("CUDA error: not permitted\nCompile with ...")))
    with pytest.raises(
        RecipeError, match=r"^--system\.cuda-graph: .*CUDA error: not permitted\).*--system\.cuda-graph off\.$"
    ):
        refused.steps(0, 1)
    short = trainer(recipe, System(), capture=Refusing(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        short.steps(0, 1)


def test_cuda_is_asked_for_one_pool_a_stream_of_its_own_and_captures_that_other_threads_do_not_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By stand-ins with torch's own signatures: this has never met a GPU."""
    said: list[tuple[Any, ...]] = []
    signature = inspect.signature(torch.cuda.graph)

    class Stream:
        def __init__(self, name: Any) -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            said.append((self.name, "waits for", other.name))

    class Graph:
        def replay(self) -> None:
            said.append(("replayed",))

    @contextmanager
    def capturing(*args: Any, **kwargs: Any) -> Iterator[None]:
        asked = signature.bind(*args, **kwargs).arguments
        said.append(("captured", asked["pool"], asked["stream"].name, asked["capture_error_mode"]))
        yield

    here = Stream("main")
    for name, stand_in in (
        ("Stream", lambda device: Stream("side")), ("current_stream", lambda device: here), ("CUDAGraph", Graph),
        ("stream", lambda stream: nullcontext(said.append(("on", stream.name)))), ("graph", capturing),
        ("graph_pool_handle", iter([(0, 1), (0, 2)]).__next__),
    ):  # fmt: skip
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    graphs = cuda_graphs.choose_capture(System("cuda", cuda_graph="on"), torch.device("cuda", 0))
    assert graphs is not None and cuda_graphs.choose_capture(System("cuda"), torch.device("cuda", 0)) is None
    with graphs.aside():
        said.append(("warm",))
    losses = {"loss": torch.zeros(())}
    for _ in range(2):
        replay, found = graphs(lambda: losses)
        replay()
        assert found is losses
    assert said == [
        ("side", "waits for", "main"), ("on", "side"), ("warm",), ("main", "waits for", "side"),
        *[("captured", (0, 1), "side", "thread_local"), ("replayed",)] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize("accelerator", ["cpu", "hpu", "xpu", "mps"])
def test_graphs_are_refused_where_there_are_none(accelerator: Any) -> None:
    check_system(System("cuda", cuda_graph="on"))
    with pytest.raises(RecipeError, match=rf"^--system\.cuda-graph on: .* uses {accelerator}\. Remove the flag\.$"):
        check_system(System(accelerator, cuda_graph="on"))

"""`paceline bench step`: our training step beside plain loops around the same network, whichever workload's.

Every contender of a workload gets the same batch, already on the device, in the same number format; each normalizes on the device.
A workload says what it measures by a StepBench of its own (step_resnet.py, step_ssd.py, step_maskrcnn.py), its peers lie in
benchmarks/.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.config.plan import StepRates, make_plan
from paceline.config.recipe import Recipe
from paceline.config.recipes import OF_TASK
from paceline.config.system import Kernels, Precision, System
from paceline.data.batch import Batch
from paceline.distributed.device.host_memory import set_malloc_trim_threshold
from paceline.distributed.device.setup import autocast_for, make_exact
from paceline.distributed.device.timing import STEPS
from paceline.models.ops.dispatch import set_triton
from paceline.tools.bench import WHERE, find_peers, harness, require_peers
from paceline.tools.bench.profile import ProfiledPart
from paceline.training.loss_normalization import configure_loss_groups
from paceline.training.meters import Meters
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.sgd import SGD
from paceline.training.optim.step_scalars import LossScaler
from paceline.training.state import State
from paceline.training.step import TrainStep
from paceline.training.step_variants import choose_kernels

TRAIN_IMAGES, VAL_IMAGES = 117_266, 5000  # of the plan, which no step looks at
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class StepBench(ABC):
    """What to measure. A workload's own has more fields, and says what its steps are."""

    task: ClassVar[str]
    batch: int  # images of a step
    rounds: int
    seconds: float  # a contender's share of a round, at least one step
    precisions: tuple[Precision, ...]
    system: System
    compile: bool = False  # torch.compile contenders, as further ones
    block: int = STEPS  # steps on a GPU between two looks at its clock, at least
    matrix: int = 2048  # side of the matrix products that are tried for the machine's ceiling
    threads: int = 0  # of a CPU; 0 = as torch has it
    part: str = "all"  # all, ops, step, predict
    only: tuple[str, ...] = ()  # contenders of the step; empty = all
    slowest: float = math.inf  # a contender that is this many times slower than ours is left out of the rounds

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Facts of the report."""

    @abstractmethod
    def recipe(self) -> Recipe[Any, Any]:
        """Settings of a run of this batch."""

    @abstractmethod
    def model(self, device: torch.device) -> nn.Module:
        """Our model with the same weights on every call."""

    @abstractmethod
    def scenes(self, device: torch.device) -> Iterator[tuple[str, Any]]:
        """The batches to measure, each with what is peculiar to it, in words; `.batch` is what our step takes."""

    def trained(self, scene: Any, device: torch.device) -> Any:
        """Our model in training on a scene."""
        return self.model(device).train()

    def extra_facts(self, model: Any, batch: Any) -> dict[str, float]:
        """Further facts of our step on a batch, of the model as it is: a fact's name -> its value."""
        return {}

    def parts(self, model: Any) -> Sequence[ProfiledPart]:
        """Of our model, for a profile."""
        return ()

    def ours(self, precision: Precision, scene: Any, device: torch.device) -> harness.Menu:
        """Our contenders; on a CPU also in the memory layout that a run would not choose."""
        result = harness.list_variants(
            harness.OURS, partial(make_step, self, precision, scene, device), ours=True, profiled=True
        )
        if device.type == "cpu":
            name, other = self.other_layout()
            result[f"{harness.OURS} {name}"] = harness.Case(partial(make_step, other, precision, scene, device))
        return result

    def other_layout(self) -> tuple[str, Any]:
        """The memory layout that a run would not choose: its name, and this benchmark in it."""
        value, name = ("on", "channels_last") if self.system.channels_last == "off" else ("off", "contiguous")
        return name, replace(self, system=replace(self.system, channels_last=value))

    def predictor(self, precision: Precision, scene: Any, device: torch.device) -> Callable[[], Any] | None:
        """What predicts on the scene's batch; None where that is not measured."""
        return None


def run_step_bench(bench: StepBench, device: torch.device, tell: Tell) -> dict[str, Any]:
    """-> JSON facts. `tell` gets them whenever more is known: a machine that is taken away leaves what it has measured.

    Raises PacelineError where peers alone are asked for and there are none.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(bench.threads or before)
    try:
        return _run(bench, device, tell)
    finally:
        torch.set_num_threads(before)


def _run(bench: StepBench, device: torch.device, tell: Tell) -> dict[str, Any]:
    make_exact(False, varied=bench.task == "instance-segmentation")  # convolutions are chosen as in training
    set_malloc_trim_threshold(device)  # as in training; peers in this process have it too
    network = OF_TASK.get(bench.task, bench.task)
    theirs = require_peers(network, "--part ops") if bench.part == "ops" else find_peers(network)
    facts = {
        "task": bench.task,
        **harness.machine_facts(device),
        "batch": bench.batch,
        **bench.about(),
        "matrix": bench.matrix,
    }
    facts["peers"] = WHERE if theirs is None else ""
    tell(facts)
    if theirs is not None and bench.part in ("all", "ops") and hasattr(theirs, "operations"):
        facts["operations"] = []
        for operation in theirs.operations(bench, device):
            facts["operations"].append(harness.compare_operation(operation, bench.rounds, bench.seconds / 10, device)[0])
            tell(facts)
    if bench.part in ("all", "step"):
        facts["step"] = {}
        for precision in bench.precisions:
            for words, scene in bench.scenes(device):
                menu = bench.ours(precision, scene, device)
                if theirs is not None:
                    menu |= theirs.contenders(bench, precision, scene, device)
                menu = harness.select_possible(menu, device, compile=bench.compile, only=bench.only)
                for known in harness.run_steps(menu, bench, precision, device):
                    facts["step"][", ".join(filter(None, (precision, words)))] = known
                    tell(facts)
    if bench.part in ("all", "predict"):
        for precision in bench.precisions:
            *_, (_, scene) = bench.scenes(device)
            ours = bench.predictor(precision, scene, device)
            if ours is not None:
                operation = theirs and theirs.prediction(bench, precision, scene, device, ours)
                operation = operation or harness.Operation("prediction", {harness.OURS: ours})
                facts.setdefault("predict", {})[precision] = harness.compare_operation(
                    operation, bench.rounds, bench.seconds / 4, device
                )[0]
                tell(facts)
    return facts


def make_step(
    bench: StepBench,
    precision: Precision,
    scene: Any,
    device: torch.device,
    *,
    compile: bool = False,
    graph: bool = False,
    kernels: Kernels = "torch",
) -> harness.ReadyCase:
    """One optimizer step of paceline on the scene's batch, as a run takes it; with graph, replayed as `--system.cuda-graph` does."""
    choose_kernels(replace(bench.system, precision=precision, kernels=kernels))
    model = bench.trained(scene, device)
    step = make_step_function(bench, precision, model, device, compile=compile, graph=graph)
    batch = to_memory_format(scene.batch, bench.system)

    def take() -> Tensor:
        set_triton(kernels == "triton")  # of the whole process, which other contenders share
        try:
            return step(batch)
        finally:
            set_triton(False)

    return harness.ReadyCase(take, bench.parts(model), partial(bench.extra_facts, model, batch))


def make_step_function(
    bench: StepBench, precision: Precision, model: Any, device: torch.device, *, compile: bool = False, graph: bool = False
) -> Callable[[Any], Tensor]:
    """What takes an optimizer step of paceline on a batch that lies on the device -> its loss, on the device."""
    system = replace(bench.system, micro_batch_size=bench.batch, precision=precision)
    system = replace(system, compile="on" if compile else "off", cuda_graph="on" if graph else "off")
    recipe = bench.recipe()
    plan = make_plan(recipe, system, world=1, most=bench.batch, train_images=TRAIN_IMAGES, val_images=VAL_IMAGES)
    if plan.loss_normalizer_images:
        configure_loss_groups(model, plan)
    optimizer = SGD(list_named_parameters(model, recipe.optim.no_decay), recipe.optim)
    scaler = LossScaler("dynamic", 65536.0, device=device) if precision == "fp16" else None
    step = TrainStep(State(model, optimizer, None, scaler, Meters(device)), plan, system, device)
    lr = recipe.optim.lr
    return lambda batch: step([batch], StepRates(lr, lr))["loss"]


def to_memory_format(batch: Any, system: System) -> Any:
    """The batch in the memory layout that the system's models work in."""
    if system.channels_last == "off":
        return batch
    return replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))


def to_device(model: nn.Module, system: System, device: torch.device) -> Any:
    """The model on the device, in the memory layout that the system asks for."""
    model = model.to(device)
    return model.to(memory_format=torch.channels_last) if system.channels_last != "off" else model  # type: ignore[call-overload]


def make_predict_function(
    bench: StepBench, precision: Precision, model: Any, batch: Batch, device: torch.device
) -> Callable[[], Any]:
    """The model's `predict` on the batch, in this number format."""
    autocast, batch = (
        autocast_for(replace(bench.system, precision=precision), device),
        to_memory_format(batch, bench.system),
    )

    def predict() -> Any:
        with torch.no_grad(), autocast():
            return model.predict(batch)

    return predict

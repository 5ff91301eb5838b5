"""From a request to a job that is ready to train: folder, data, plan, run.json, state (fresh or resumed), logs.

Everything a user can get wrong is refused here, before the first step; after it only the machine can fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from paceline.checkpoint.writer import CheckpointWriter
from paceline.config.errors import RecipeError
from paceline.config.plan import Plan, make_plan, shorten
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, check_controls, seconds_in
from paceline.config.system import System
from paceline.dist.launcher import Launch
from paceline.dist.world import World
from paceline.log.pace import Clock, Interval
from paceline.log.recorder import Facts, Recorder
from paceline.metrics.target import in_words
from paceline.models.batch_norm import configure_batch_norm
from paceline.models.weights import load_weights
from paceline.optim.average import WeightAverage
from paceline.optim.lars import LARS
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import named_parameters
from paceline.optim.sgd import SGD
from paceline.provenance import provenance
from paceline.run_folder import RunFolder, fingerprint, open_run_folder
from paceline.state import Meters, State
from paceline.systems.detect import cpu_cores
from paceline.tasks import open_task
from paceline.tasks.memory import images_that_fit
from paceline.tasks.mlperf import mllog_facts
from paceline.tasks.task import Evaluation, Place, Task

# A run prints about this many train events, and one at least every LOG_AT_MOST steps.
EVENTS_IN_A_RUN, LOG_AT_MOST = 200, 100
# First scale of a dynamic fp16 loss scale (torch.amp.GradScaler's).
FIRST_LOSS_SCALE = 65536.0


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    system: System
    controls: Controls
    given: frozenset[str] = frozenset()  # dotted names of the recipe fields set by hand
    command: str = ""  # the command line, for run.json
    repeats: bool = False  # recipe and controls come from a run.json: its target was already settled


@dataclass
class Job:
    """One rank's part of a run, ready to train."""

    run: Run
    task: Task
    world: World
    place: Place
    state: State
    recorder: Recorder
    writer: CheckpointWriter | None  # rank 0 only
    folder: Path
    clock: Clock
    interval: Interval
    checkpoint_facts: dict[str, Any]
    log_every: int
    save_every: int
    warm_up_due: bool
    eval_batch: int
    last_step: int = 0
    why_here: str = ""
    _eval_steps: set[int] = field(default_factory=set)

    @property
    def target(self) -> str:
        """The quality target in words; empty without one."""
        return in_words(self.run.recipe.quality.targets)

    def train_loader(self) -> Any:
        """Batches from the state's step on; a context manager."""
        one = self.run.controls.overfit_one_batch
        return self.task.train_loader(self.run.plan, self.run.system, self.place, first=self.state.step, one_batch=one)

    def log_due(self) -> bool:
        """Whether a train event follows this step."""
        return self.state.step % self.log_every == 0 or self.state.step >= self.last_step

    def evaluation_due(self) -> bool:
        """Whether an evaluation follows this step."""
        return self.state.step in self._eval_steps or self.state.step >= self.last_step

    def save_due(self) -> bool:
        """Whether a checkpoint follows this step (an evaluation saves one anyway)."""
        return self.state.step % self.save_every == 0

    def out_of_time(self) -> bool:
        """Whether --time-budget is used up by this rank's clock."""
        budget = seconds_in(self.run.controls.time_budget)
        return budget > 0 and self.clock.seconds() >= budget

    def end_here(self, why: str) -> None:
        """Make this step the run's last: it is evaluated and saved as the last step always is."""
        self.last_step, self.why_here = self.state.step, why

    def end_without_target(self, reason: str) -> tuple[Literal["success", "ran_out"], str]:
        """Status and reason of an end at which no target was met."""
        shortened = self.run.plan.stop_after < self.run.plan.total_steps and not self.why_here
        if not self.target:
            return "success", f"{reason}; no target was set"
        if shortened:
            return "success", f"{reason}, as asked; the target {self.target} belongs to the whole run"
        return "ran_out", f"{reason} without reaching {self.target}"

    def explain_non_finite(self, step: int, means: dict[str, float]) -> str:
        """Write down what is needed to look at a non-finite loss, and say it in a line."""
        files = self.task.images_of_step(self.run.plan, step)
        facts = {"step": step, "losses": {name: str(value) for name, value in means.items()}, "images": files}
        bundle = self.folder / f"non-finite-step-{step:06d}.json"
        if self.world.is_main:
            bundle.write_text(json.dumps(facts, indent=2))
        return (
            f"the loss of step {step:,} is not finite; its {len(files)} images are named in {bundle.name}. "
            "Usual causes, in order: an lr for another batch, too short a warm-up, fp16 without a dynamic loss scale."
        )

    def write_predictions(self, result: Evaluation) -> None:
        """RUN/predictions/step-N.json: what the report's pictures are made of."""
        if self.world.is_main:
            folder = self.folder / "predictions"
            folder.mkdir(exist_ok=True)
            text = json.dumps({"step": self.state.step, **result.predictions})
            (folder / f"step-{self.state.step:06d}.json").write_text(text)

    def write_report(self) -> None:
        """RUN/report.html, on rank 0."""
        if self.world.is_main:
            from paceline.report.page import write_report

            self.recorder.say(f"report: {write_report(self.folder)}")


def choose_device(system: System, local_rank: int) -> torch.device:
    """This rank's device.

    Raises RecipeError when the system wants CUDA and torch has none for this rank.
    """
    if system.accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        raise RecipeError(
            f"this system computes on CUDA, but torch sees {torch.cuda.device_count()} CUDA devices here and this is local "
            f"rank {local_rank}. Start fewer ranks, or use --system cpu; `paceline doctor` says what torch sees."
        )
    return torch.device("cuda", local_rank)


@contextmanager
def set_up(request: Request, launch: Launch, world: World) -> Iterator[Job]:
    """Everything before the first step; the job's logs and files are closed at the end.

    Raises UserError for whatever a user can mend.
    """
    check_controls(request.controls)
    with open_run_folder(request.name, request.controls.out, world) as run_folder:
        system = run_folder.system(request.system, given="system" in request.given, world=world.world)
        threads = set_threads(system, world)
        recipe, controls = request.recipe, request.controls
        say = print if world.is_main else _silent
        task = open_task(recipe, controls, world, say=say)
        recipe = settle_target(request, task, say)
        memory = task.memory(system)
        plan = make_plan(
            recipe,
            system,
            world=world.world,
            most=images_that_fit(memory, system),
            train_images=task.train_images,
            val_images=task.val_images,
        )
        plan = shorten(plan, steps=controls.steps, eval_every=controls.eval_every)
        facts = provenance(request.command, launch.kind, threads=threads, task=task, memory=asdict(memory))
        run = Run(request.name, recipe, request.system_name, system, plan, controls, facts)
        place = Place(world.rank, world.world, world.device, threads["loader"])
        make_exact(controls.exact)
        state = build_state(task, run, world)
        run_folder.check_space(state, controls.keep)
        resumed = run_folder.load(run, say)
        if resumed is not None:
            state.restore(resumed[0], world)
        elif controls.weights:
            for line in load_weights(task.weights_of(state.model), Path(controls.weights)).lines():
                say(line)
        run_folder.write(run)
        recorder = Recorder(
            run_folder.path if world.is_main else None,
            log_facts(run, task, state, world),
            resumed_at=state.step if resumed else None,
            evaluated=not state.evaluation_pending,
        )
        try:
            with run_folder.writer(controls) as writer:
                if resumed is not None:
                    recorder.resume(state.step, state.seconds, checkpoint=resumed[1], world=world.world)
                yield _job(run, task, world, place, state, recorder, writer, run_folder)
        finally:
            recorder.close()


def _job(
    run: Run, task: Task, world: World, place: Place, state: State, recorder: Recorder, writer, run_folder: RunFolder
) -> Job:
    plan, controls = run.plan, run.controls
    per_epoch = max(1, math.ceil(plan.steps_per_epoch - 1e-6))
    return Job(
        run=run,
        task=task,
        world=world,
        place=place,
        state=state,
        recorder=recorder,
        writer=writer,
        folder=run_folder.path,
        clock=Clock(state.seconds),
        interval=Interval(plan.global_batch),
        checkpoint_facts=fingerprint(run),
        log_every=controls.log_every or min(LOG_AT_MOST, max(1, plan.total_steps // EVENTS_IN_A_RUN)),
        save_every=controls.save_every or per_epoch,
        warm_up_due=world.world > 1 or run.system.compile,
        eval_batch=max(1, min(plan.images_per_forward, math.ceil(plan.val_images / world.world))),
        last_step=plan.stop_after,
        _eval_steps=set(plan.eval_steps),
    )


def settle_target(request: Request, task: Task, say) -> Recipe:
    """A target holds for the data it was set for; with other data the run goes to its end, and that is said."""
    recipe = request.recipe
    if not recipe.quality.targets or task.is_target_data or request.repeats or "quality.targets" in request.given:
        return recipe
    say(
        f"the target {in_words(recipe.quality.targets)} was set for {recipe.target_data}; on this data the run goes to its end "
        "(set one with --quality.targets)"
    )
    return replace(recipe, quality=replace(recipe.quality, targets=()))


def set_threads(system: System, world: World) -> dict[str, int]:
    """Fix the number of compute threads, which decides the bits of a sum; -> what was chosen, for run.json."""
    share = max(1, cpu_cores() // max(1, world.local_world))
    compute = system.intra_op_threads or share
    torch.set_num_threads(compute)
    return {"intra_op": compute, "loader": system.loader_threads or share}


def make_exact(exact: bool) -> None:
    """--exact: deterministic kernels only."""
    if exact:
        import os

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it for deterministic sums
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True


def build_state(task: Task, run: Run, world: World) -> State:
    """Model, optimiser and the rest, fresh, on this rank's device."""
    recipe, system, plan = run.recipe, run.system, run.plan
    model = task.build(world.device)
    if system.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    configure_batch_norm(
        model,
        groups=plan.bn_groups,
        join=plan.bn_join,
        join_group=world.new_groups(plan.bn_join),
        forwards=plan.forwards,
    )
    optim = recipe.optim
    parameters = named_parameters(model, optim.decay_on)
    optimiser: SGD | LARS
    if optim.kind == "lars":
        optimiser = LARS(
            parameters,
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            form=optim.momentum_form,
            eta=optim.lars_eta,
            eps=optim.lars_eps,
        )
    else:
        optimiser = SGD(
            parameters,
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            form=optim.momentum_form,
            nesterov=optim.nesterov,
        )
    scaler = None
    if system.precision == "fp16":
        kind = "static" if system.loss_scale else "dynamic"
        scaler = LossScaler(kind, system.loss_scale or FIRST_LOSS_SCALE, device=world.device)
    average = WeightAverage(model, recipe.ema) if recipe.ema else None
    return State(model, optimiser, average, scaler, Meters(world.device))


def log_facts(run: Run, task: Task, state: State, world: World) -> Facts:
    """What the logs say of the run before it starts."""
    plan = run.plan
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    return Facts(
        target=in_words(run.recipe.quality.targets),
        total_steps=plan.stop_after,
        steps_per_epoch=plan.steps_per_epoch,
        eval_steps=plan.eval_steps,
        train_images=plan.train_images,
        val_images=plan.val_images,
        benchmark=task.benchmark,
        platform=f"{plan.world}x{device}",
        mllog=mllog_facts(run),
        weights=[name for name, _ in state.model.named_parameters()],
    )


def _silent(_: str) -> None:
    """What ranks other than 0 say."""


__all__ = ["Job", "Plan", "Request", "choose_device", "set_up"]

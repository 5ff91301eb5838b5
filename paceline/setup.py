"""From a request to a job that is ready to train: folder, data, plan, run.json, state (fresh or resumed), logs.

Everything a user can get wrong is refused here, before the first step; after it only the machine can fail.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.alike import data_facts, request_facts, run_facts
from paceline.checkpoint.layout import INDEX
from paceline.checkpoint.read import SUFFIX, check_file, load_checkpoint
from paceline.config.errors import CheckpointError, RecipeError
from paceline.config.length import plan_in_words
from paceline.config.plan import MOST_FIRST_WEIGHTS, Plan, evaluation_batch, first_weights_share, make_plan, shorten
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, check_controls
from paceline.config.system import System
from paceline.dist.failure import is_echo
from paceline.dist.launcher import Launch
from paceline.dist.world import World
from paceline.fitting import fit, try_out
from paceline.job import Job
from paceline.log.console import Console
from paceline.log.pace import Clock, Interval
from paceline.log.recorder import Facts, Recorder
from paceline.loss_groups import configure_loss_groups
from paceline.machine import make_exact, set_threads
from paceline.metrics.target import in_words
from paceline.models.batch_norm import configure_batch_norm
from paceline.opening import open_task
from paceline.optim.average import WeightAverage
from paceline.optim.loss_scale import LossScaler
from paceline.optim.make import make_optimiser
from paceline.optim.parameter_groups import named_parameters
from paceline.provenance import provenance
from paceline.run_folder import RunFolder, fingerprint, open_run_folder
from paceline.shortage import check_addresses, failures_in_words
from paceline.state import Meters, State
from paceline.tasks.memory import MemoryEstimate, images_that_fit
from paceline.tasks.task import Place, Task

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

    def facts(self) -> dict[str, Any]:
        """What must be alike in the requests of all ranks."""
        return request_facts(
            "train", self.recipe, self.system, self.controls, given=self.given, name=self.name, repeats=self.repeats
        )


@contextmanager
def set_up(request: Request, launch: Launch, world: World, console: Console) -> Iterator[Job]:
    """Everything before the first step; the job's logs and files are closed at the end.

    console   where rank 0 speaks
    Raises UserError for whatever a user can mend.
    """
    began = time.monotonic()
    check_controls(request.controls)
    with open_run_folder(
        request.name, request.recipe, request.controls, request.given, world, repeats=request.repeats
    ) as run_folder:
        system = run_folder.system(request.system, given="system" in request.given, world=world.world)
        say, warn = (console.say, console.tell) if world.is_main else (_silent, _silent)
        named = "system.intra_op_threads" in request.given
        threads = set_threads(run_folder.with_threads(system, given=named, world=world.world), world, warn)
        run_folder.say_threads(threads["intra_op"], warn)
        recipe, controls = request.recipe, request.controls
        init_began: list[float] = []  # seconds since 1970; preparing a data set is no part of a timed run
        console.doing("opening the data")
        task = open_task(recipe, controls, world, say=say, prepared=lambda: init_began.append(time.time()))
        world.agree(data_facts(task), "data")
        recipe = settle_target(request, task, warn)
        check_metrics(recipe, task)
        system = settle_system(task, system, controls.exact, say)
        memory = task.memory(system)
        plan = plan_for(task, recipe, system, world, memory)
        check_addresses(memory.total(plan.images_per_forward), threads["loader"] + threads["intra_op"])
        place = Place(world.rank, world.world, world.device, threads["loader"])
        make_exact(controls.exact)
        fitted: dict[str, Any] = {}
        if controls.fit_schedule:
            console.doing("measuring the speed")
            trial = Run(request.name, recipe, request.system_name, system, plan, controls)
            recipe, controls, fitted = fit(
                recipe,
                controls,
                plan,
                saved=run_folder.saved,
                measure=lambda: try_out(
                    trial, build_state(build_model(task, trial, world), trial, world), task, place, world
                ),
                seconds=lambda: time.monotonic() - began,
                world=world,
                say=say,
            )
            plan = plan_for(task, recipe, system, world, memory)
            say(f"  {plan_in_words(plan)}")
        plan = shorten(plan, steps=controls.steps, eval_every=controls.eval_every)
        facts = provenance(request.command, launch.kind, threads=threads, task=task, memory=asdict(memory))
        facts |= {"fitted": fitted} if fitted else {}
        run = Run(request.name, recipe, request.system_name, system, plan, controls, facts)
        console.doing("building the model")
        resumed = run_folder.load(run, request.given, warn)
        weights = weights_file(controls.weights) if controls.weights and resumed is None else None
        world.agree(run_facts(run, "" if resumed is None else resumed[1], weights), "run")
        model = build_model(task, run, world)
        if weights is not None:
            for line in task.load_weights(model, weights).lines():
                say(line)
        state = build_state(model, run, world)
        run_folder.check_space(state, controls.keep)
        if resumed is not None:
            state.restore(resumed[0], world)
        if state.step < run.plan.stop_after:  # else the run stands further than this command asks, and only ends
            tell_short_average(run, say)
        run_folder.write(run)
        recorder = Recorder(
            run_folder.path if world.is_main else None,
            log_facts(run, task, state, world),
            console,
            json=controls.json,
            resumed_at=state.step if resumed else None,
            evaluated=not state.evaluation_pending,
            init_began=init_began[0],
        )
        try:
            with run_folder.writer(controls) as writer:
                if resumed is not None:
                    recorder.resume(
                        state.step, state.seconds, checkpoint=resumed[1], world=world.world, after=run_folder.ended
                    )
                job = _job(run, task, world, place, state, recorder, writer, run_folder)
                if world.watch is not None:
                    world.watch.before_exit.append(job.fail)  # another rank failed, and this process is about to leave
                try:
                    with failures_in_words(run):
                        yield job
                except Exception as error:
                    if world.watch is None or not is_echo(error):  # else the watch is about to say whose end it echoes
                        job.fail(f"{type(error).__name__}: {error}".splitlines()[0])
                    raise
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
        warm_up_due=world.world > 1 or run.system.compile or task.shapes.vary,
        eval_batch=evaluation_batch(plan.images_per_forward, plan.val_images, world.world),
        last_step=plan.stop_after,
        _eval_steps=set(plan.eval_steps),
    )


def plan_for(task: Task, recipe: Recipe, system: System, world: World, memory: MemoryEstimate) -> Plan:
    """The plan of `recipe` on the task's data. Raises RecipeError for one that cannot be carried out as the recipe says."""
    plan = make_plan(
        recipe,
        system,
        world=world.world,
        most=images_that_fit(memory, system),
        train_images=task.train_images,
        val_images=task.val_images,
    )
    task.workload.check_plan(recipe, plan)
    return plan


def settle_target(request: Request, task: Task, say) -> Recipe:
    """A target holds for the data it was set for; with other data the run goes to its end, and that is said."""
    recipe = request.recipe
    settled = "quality.targets" in request.given or (request.repeats and "data" not in request.given)
    if not recipe.quality.targets or task.is_target_data or settled:
        return recipe
    say(
        f"the target {in_words(recipe.quality.targets)} was set for {recipe.target_data}; on this data the run goes to its end "
        "(set one with --quality.targets)"
    )
    return replace(recipe, quality=replace(recipe.quality, targets=()))


def settle_system(task: Task, system: System, exact: bool, say) -> System:
    """The system as this task can use it: compilation is left out where it has no form of it, and that is said.

    Raises RecipeError for --exact on an accelerator where a kernel of the task has no deterministic form.
    """
    workload = task.workload
    if exact and system.accelerator != "cpu" and workload.no_exact:
        raise RecipeError(
            f"--exact: {task.recipe.task} has no deterministic form on an accelerator: {workload.no_exact}. "
            "Leave --exact away, or train with --system cpu."
        )
    if not system.compile or not workload.no_compile:
        return system
    say(f"compile off: {task.recipe.task}: {workload.no_compile}")
    return replace(system, compile=False)


def weights_file(name: str) -> Path:
    """The file that --weights means: itself, or a checkpoint folder's model (its average where weights were averaged).

    A checkpoint's file is compared with its checksum, also where it is named itself; other files have none.
    Raises CheckpointError for a damaged checkpoint, and for a run folder, which holds several.
    """
    path = Path(name).expanduser()
    if (path / "run.json").is_file():
        raise CheckpointError(f"--weights {name}: this is a run; name one of its checkpoints: {path}/checkpoints/best")
    if not (path / INDEX).is_file():
        check_file(path)
        return path
    groups = load_checkpoint(path).tensors
    return path / f"{'average' if 'average' in groups else 'model'}{SUFFIX}"


def check_metrics(recipe: Recipe, task: Task) -> None:
    """Refuse a target on a metric that no evaluation will give: it could never be met.

    Raises RecipeError naming it.
    """
    for name, _ in recipe.quality.targets:
        if name not in task.workload.metrics:
            raise RecipeError(
                f"--quality.targets {name}: there is no such metric. Known: {', '.join(task.workload.metrics)}."
            )


def tell_short_average(run: Run, say) -> None:
    """Say that the average of the weights is warmed up, in a run so short that the first weights would linger in it."""
    share, recipe = first_weights_share(run.recipe, run.plan), run.recipe
    if share > MOST_FIRST_WEIGHTS:
        say(
            f"the average of the weights (--ema {recipe.ema:g}) would still be {100 * share:.0f} % first weights after "
            f"{run.plan.stop_after:,} steps: its decay is warmed up, to at most (1 + t) / (10 + t) in step t"
        )


def build_model(task: Task, run: Run, world: World) -> nn.Module:
    """The task's freshly initialised model on this rank's device, laid out and cut as the plan says."""
    system, plan = run.system, run.plan
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
    if plan.loss_group:
        configure_loss_groups(model, plan)
    return model


def build_state(model: nn.Module, run: Run, world: World) -> State:
    """Optimiser, average and the rest, fresh, for a model that has its first weights: the average is a copy of these."""
    recipe, system = run.recipe, run.system
    optim = recipe.optim
    parameters = named_parameters(model, optim.decay_on, bias_lr=optim.bias_lr)
    optimiser = make_optimiser(parameters, optim)
    scaler = None
    if system.precision == "fp16":
        kind = "static" if system.loss_scale else "dynamic"
        scaler = LossScaler(kind, system.loss_scale or FIRST_LOSS_SCALE, device=world.device)
    average = WeightAverage(model) if recipe.ema else None
    return State(model, optimiser, average, scaler, Meters(world.device))


def log_facts(run: Run, task: Task, state: State, world: World) -> Facts:
    """What the logs say of the run before it starts."""
    plan = run.plan
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    return Facts(
        target=in_words(run.recipe.quality.targets),
        total_steps=plan.stop_after,
        global_batch=plan.global_batch,
        steps_per_epoch=plan.steps_per_epoch,
        eval_steps=plan.eval_steps,
        train_images=plan.train_images,
        val_images=plan.val_images,
        benchmark=task.workload.benchmark,
        platform=f"{plan.world}x{device}",
        mllog=task.workload.log_facts(run),
        weights=[name for name, _ in state.model.named_parameters()],
    )


def _silent(_: str) -> None:
    """What ranks other than 0 say."""

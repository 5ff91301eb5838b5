"""Train one run: `run_training` is its table of contents. Then read loop.py (the training loop) and step.py (one step)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines, Reporter
from paceline.config.run import RunSpec
from paceline.config.run_length import Cadence
from paceline.data.loader.gpu_decode import choose_gpu_decoder
from paceline.data.workers.template import start_early
from paceline.distributed.comm.environment import apply_environment
from paceline.distributed.comm.failure import is_secondary
from paceline.distributed.comm.launcher import Launch, read_launch
from paceline.distributed.comm.roles import RankRoles, assign_roles
from paceline.distributed.comm.world import open_distributed
from paceline.distributed.device.affinity import bind_cores, choose_adapter
from paceline.distributed.device.host_memory import check_address_limit, explained_failures, set_malloc_trim_threshold
from paceline.distributed.device.provenance import warn_untested_torch
from paceline.distributed.device.setup import choose_device, make_exact, set_threads
from paceline.models.memory_estimate import MemoryEstimate
from paceline.models.task import InputRank, Task
from paceline.models.workload import WorkloadSpec
from paceline.training.context import Checkpointer, TrainContext
from paceline.training.data_cache import open_memory_cache
from paceline.training.eval_history import TrainResult
from paceline.training.factory import build_model, build_state, choose_weights, load_first_weights
from paceline.training.logging.console import Console, open_console
from paceline.training.logging.event_logger import open_recorder
from paceline.training.logging.monitors import open_monitors
from paceline.training.logging.stdout_guard import keep_output_open
from paceline.training.loop import loop, serve_evaluations
from paceline.training.memory_probe import can_probe_memory, find_fitting_run
from paceline.training.open_data import open_task, prepare_data
from paceline.training.plan_run import plan_run, report_short_average, with_length, with_provenance, with_step_variants
from paceline.training.plan_text import report_plan
from paceline.training.previous_run import SavedRun
from paceline.training.rank_consistency import request_fingerprint, run_facts
from paceline.training.request import Request
from paceline.training.resolve import resolve_request, resolve_with_data, unresolved_flags
from paceline.training.resume import ResumePoint, check_start, find_resume_point
from paceline.training.run_dir.folder import find_nearest_folder, open_run_folder
from paceline.training.state import State
from paceline.training.step_variants import choose_kernels

# What is done on rank 0 once a run has ended.
OnEnd = Callable[[TrainResult, RunSpec, WorkloadSpec, Console], None]


def run_training(request: Request, console: Console | None = None, *, on_end: OnEnd | None = None) -> TrainResult:
    """Train one run on this rank, to its end.

    request  what to train, as `validate` leaves it
    console  closed here; None: a new one, by the request's options
    on_end   called on rank 0 once the run has ended, before the ranks part
    Raises PacelineError for whatever a user can mend; after the first step only the machine can fail.
    """
    began, launch = time.monotonic(), read_launch(os.environ)
    with ExitStack() as held:
        output = held.enter_context(keep_output_open())
        console = held.enter_context(console or open_console(request.options, launch.rank))
        roles = held.enter_context(join_ranks(request, launch, console))
        # Only rank 0 prints. Another rank that prepares the data of its node writes their check page too.
        world, reporter = roles.everyone, console if launch.rank == 0 else Lines(str, console.describe)

        folder = held.enter_context(open_run_folder(request, world, reporter))
        saved = folder.saved
        request = resolve_request(request, saved, roles.trainers, reporter)
        rank_info, threads, cpu_binding = held.enter_context(prepare_cores(request, saved, roles, reporter))
        start = find_resume_point(saved, request, world, reporter, undecided=unresolved_flags(request))
        request, weights = choose_weights(request, saved, start, world, reporter)

        reporter.doing("opening the data")
        manifest = None if request.options.synthetic else prepare_data(request.recipe, request.options, world, reporter)
        init_began = time.time()  # MLPerf's clock: preparing a data set is no part of a timed run
        task = open_task(request.recipe, request.options, world, reporter, manifest=manifest)
        request, task, auto, input_rate = resolve_with_data(request, task, rank_info, roles, saved, reporter)

        memory = task.memory(request.system)
        run = plan_run(request, task, roles, memory, launch.nodes, reporter, new=saved.facts is None and auto is None)
        run, variants = with_step_variants(run, task, world, saved, reporter)
        prepare_device(run, task, rank_info, threads, memory)
        if run.options.copy_data_to:
            from paceline.training.staged_data import open_staged_copy

            held.enter_context(open_staged_copy(task.data, run.options.copy_data_to, world, reporter))
        run, rescaled = with_length(run, task, rank_info, roles, memory, saved, reporter, began)
        facts = {**cpu_binding, "rescaled_schedule": rescaled, "step_variants": variants, "auto_config": auto}
        facts["input_rate"] = None if input_rate is None else asdict(input_rate)
        run = with_provenance(run, request.command, launch.kind, threads, task, memory, facts)
        console.input_rate = input_rate.format_line() if input_rate is not None else ""
        report_plan(run, memory, input_rate, reporter)

        reporter.doing("building the model")
        check_start(saved, start, run, request.given)
        world.assert_equal(run_facts(run, start.checkpoint, weights), "run")
        state = build_state_from(run, task, roles, start, weights, reporter)
        folder.check_space(state, run.options.keep_checkpoints)
        if can_probe_memory(rank_info.device):
            reporter.doing("testing a step")
            run = find_fitting_run(run, task, state, roles, reporter)
        roles.join_handover()
        report_short_average(run, state.step, reporter)

        mirror = held.enter_context(folder.begin(run, reporter))
        recorder = held.enter_context(open_recorder(run, task.workload, state, start, folder, console, init_began))
        writer = held.enter_context(folder.writer(run.options, start, mirror, reporter))
        held.enter_context(open_memory_cache(task.data, run.system, world, reporter))
        checkpoints = Checkpointer(run, roles.peers, recorder, writer, mirror)
        monitors = held.enter_context(open_monitors(run, roles.peers, recorder, start, folder.path))
        due = Cadence.of(run.plan, run.options)
        context = TrainContext(
            run, task, roles, rank_info, state, start.standing, checkpoints, recorder, monitors, due, folder.path
        )
        output.goes_on = f"training continues, and {folder.path}/events.jsonl has the events"
        with record_failure(context):
            ending = (
                serve_evaluations(context) if roles.evaluates else loop(context, pending=start.pending(run.plan.stop_after))
            )
            if on_end is not None and world.is_main:
                on_end(ending, run, task.workload, console)
        return ending


@contextmanager
def join_ranks(request: Request, launch: Launch, console: Console) -> Iterator[RankRoles]:
    """While this is open, this rank computes on its device and belongs to the others; -> who trains and who only evaluates.

    Raises RankError where code, versions or requests of the ranks differ, PacelineError for a device that is missing.
    """
    facts = folder = None
    if launch.world > 1:
        explicit, repeats = request.given, request.repeats
        facts = request_fingerprint(
            "train", request.recipe, request.system, request.options, explicit=explicit, name=request.name, repeats=repeats
        )
        folder = find_nearest_folder(request.options.output_dir)
    with apply_environment(request.system, launch, named="system.interface" in request.given) as notes:
        start_early("paceline.data.loader.slots")
        for note in filter(None, (*notes, warn_untested_torch(torch.__version__)) if launch.rank == 0 else ()):
            console.warning(note)
        device = choose_device(request.system, launch.local_rank, launch.local_world)
        choose_adapter(request.system, launch, os.environ)
        with open_distributed(launch, device=device, facts=facts, secret_folder=folder) as world, explained_failures():
            yield assign_roles(world, request.options.dedicated_eval_ranks)


@contextmanager
def prepare_cores(
    request: Request, saved: SavedRun, roles: RankRoles, reporter: Reporter
) -> Iterator[tuple[InputRank, dict[str, int], dict[str, Any]]]:
    """While this is open, this rank's threads run on its cores; -> (its place, its numbers of threads, `cpu_binding` of run.json).

    Raises RecipeError where the cores do not suffice.
    """
    system, world, explicit = request.system, roles.everyone, "system.intra_op_threads" in request.given
    with bind_cores(system, world, reporter) as placed:
        wanted = saved.with_threads(system, explicit=explicit, world=roles.trainers)
        threads = set_threads(wanted, world, reporter, placed.share)
        saved.report_threads(threads["intra_op"], reporter)
        choose_kernels(system)
        yield InputRank(roles.peers.rank, roles.peers.world, world.device, threads["loader"]), threads, placed.facts


def prepare_device(
    run: RunSpec, task: Task, rank_info: InputRank, threads: Mapping[str, int], memory: MemoryEstimate
) -> None:
    """Set how the device computes, before anything is built there. Raises PacelineError where it lacks what the run needs."""
    check_address_limit(memory.total(run.plan.micro_batch_size), threads["loader"] + threads["intra_op"])
    choose_gpu_decoder(run.recipe.input, rank_info.device)  # refused before anything is written
    make_exact(run.options.deterministic, varied=task.data.shapes.vary)
    set_malloc_trim_threshold(rank_info.device)


def build_state_from(
    run: RunSpec, task: Task, roles: RankRoles, start: ResumePoint, weights: Path | None, reporter: Reporter
) -> State:
    """The model, optimizer and what else a checkpoint holds, at the step where the run starts.

    Raises PacelineError where weights do not fit, or ranks differ in them.
    """
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    load_first_weights(model, task, run, roles.everyone, start, weights, reporter)
    state = build_state(model, run, roles.peers)
    if start.snapshot is not None and not roles.evaluates:  # ranks that evaluate receive their weights each time
        state.restore(start.snapshot, roles.peers)
    return state


@contextmanager
def record_failure(context: TrainContext) -> Iterator[None]:
    """An error inside is written as the run's end, also where another rank is the one that fails."""
    watch = context.roles.everyone.watch

    def fail(reason: str) -> None:
        with suppress(PacelineError):  # the folder itself may be gone, and the reason says more
            seconds = context.monitors.clock.seconds()
            context.recorder.fail(context.state.step, seconds, best=context.standing.best, reason=reason)

    if watch is not None:
        watch.before_exit.append(fail)  # called when another rank failed, before this process exits
    try:
        with explained_failures(context.run):
            yield
    except Exception as error:
        if watch is None or not is_secondary(error):  # an echo: the watch reports the rank that failed first
            fail(f"{type(error).__name__}: {error}".splitlines()[0])
        raise

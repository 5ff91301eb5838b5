"""From a request to a job that is ready to train, in five stages; each is a value that the next one is made from.

    Asked     request.py   the request is valid in itself, and each rank has its role
    Settled   request.py   the run's folder, the machine, and where the run starts; no data is opened
    Opened    opened.py    the data, and the plan: the run is known to its last number
    Built     here         network, first weights or checkpoint, optimiser: the State; a step of it fits into memory
    Job       here         logs, checkpoint writer, clocks: everything that the loop (loop.py) uses

Everything a user can get wrong is refused here, before the first step; after it only the machine can fail. What needs no data
is refused before they are opened; a check that needs the data stands in opening.py, and open_data (opened.py) calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn

from paceline._utils.formatting import metric_label, target_text
from paceline.accelerators import device_name
from paceline.config.length import Due
from paceline.config.run import Run
from paceline.config.submission import division_of
from paceline.log.console import Console
from paceline.log.events import read_events
from paceline.log.pace import Clock, Interval, Neighbours, Spikes, Stragglers
from paceline.log.recorder import Recorder
from paceline.log.sinks import Facts
from paceline.machine.compiler import compilations
from paceline.machine.power import PowerMeter, gpus_of, power_meter
from paceline.machine.shortage import failures_in_words
from paceline.ranks.failure import is_echo
from paceline.ranks.launcher import Launch
from paceline.ranks.world import World
from paceline.tasks.workload import Workload
from paceline.training.alike import checkpoint_facts, run_facts, weight_facts
from paceline.training.building import build_model, build_state, untrained
from paceline.training.job import Job
from paceline.training.local_copies import photos_in_memory
from paceline.training.opened import Opened, open_data
from paceline.training.opening import report_short_average
from paceline.training.plan_text import in_roles
from paceline.training.request import Request, ask, settle
from paceline.training.start import check_start, fingerprint
from paceline.training.state import State
from paceline.training.trial_steps import run_that_fits, worth_trying


@contextmanager
def set_up(request: Request, launch: Launch, world: World, console: Console) -> Iterator[Job]:
    """Everything before the first step; the job's logs and files are closed at the end of the block.

    Raises UserError for whatever a user can mend.
    """
    asked = ask(request, launch, world, console)
    with ExitStack() as held:
        built = build(open_data(settle(asked, held), held))
        with _job(built, held) as job:
            if world.watch is not None:
                world.watch.before_exit.append(job.fail)  # called when another rank failed, before this process exits
            try:
                with failures_in_words(built.run):
                    yield job
            except Exception as error:
                if world.watch is None or not is_echo(error):  # an echo: the watch reports the rank that failed first
                    job.fail(f"{type(error).__name__}: {error}".splitlines()[0])
                raise


@dataclass(frozen=True)
class Built:
    """A run that can take its next step."""

    opened: Opened
    run: Run  # its forwards are small enough for the memory
    state: State


def build(opened: Opened) -> Built:
    """Build network and state. Raises UserError where the checkpoint is another run's, weights do not fit, or ranks differ in them."""
    settled, run, task = opened.settled, opened.run, opened.task
    asked, start, roles = settled.asked, settled.start, settled.asked.roles
    asked.console.doing("building the model")
    check_start(settled.folder.saved, start, run, asked.request.given)
    asked.world.agree(run_facts(run, start.checkpoint, settled.weights), "run")
    if roles.evaluators:
        asked.reporter.line(in_roles(run.plan))
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    _load_first_weights(model, opened)
    state = build_state(model, run, roles.peers)
    settled.folder.check_space(state, run.controls.keep)
    if start.snapshot is not None and not roles.evaluates:  # ranks that evaluate receive their weights each time
        state.restore(start.snapshot, roles.peers)
    if worth_trying(asked.world.device):
        asked.console.doing("trying a step")
        run = run_that_fits(run, task, state, roles, asked.world.device, asked.reporter)
    roles.meet()
    if state.step < run.plan.stop_after:  # else the run is further than this command asks, and only ends
        report_short_average(run, asked.reporter)
    return Built(opened, run, state)


def _load_first_weights(model: nn.Module, opened: Opened) -> None:
    """Random weights, alike on all ranks, or those of --weights; a checkpoint's come later. All ranks agree on what they have."""
    settled = opened.settled
    asked, start, weights = settled.asked, settled.start, settled.weights
    world = asked.world
    if start.snapshot is None:
        world.broadcast_(model.state_dict().values())  # a user's workload may draw other weights on each rank
    if weights is not None:
        report = opened.task.load_weights(model, weights)
        for line in report.lines():
            asked.reporter.line(line)
        if start.snapshot is None and "fc.weight" in report.reinitialised:
            _fit_head(model, opened)
    elif start.snapshot is None and not opened.run.controls.synthetic and (frozen := untrained(model)):
        asked.reporter.warning(
            f"{frozen} do not train and keep random values: nothing is learned there. Name --weights, or let all parts train "
            "(--model.frozen none, --model.freeze 0)"
        )
    if world.world > 1 and start.snapshot is not None:
        world.agree(checkpoint_facts(start.snapshot, start.checkpoint), "weights")
    elif world.world > 1 and weights is not None:
        world.agree(weight_facts(model.state_dict(), "--weights"), "weights")


def _fit_head(model: nn.Module, opened: Opened) -> None:
    """Fit the last layer to the training photos where the recipe wants that: on rank 0, for all."""
    asked, recipe = opened.settled.asked, opened.run.recipe
    if getattr(recipe.model, "first_head", "drawn") != "fitted" or opened.run.controls.synthetic:
        return
    from paceline.tasks.first_head import fit_head  # detectors do without a classifier's code

    asked.console.doing("fitting the last layer to the training photos")
    if asked.world.is_main:
        asked.reporter.line(fit_head(opened.task, model))  # type: ignore[arg-type]  # the field is the classifiers' alone
    asked.world.broadcast_(model.state_dict().values())


@contextmanager
def _job(built: Built, held: ExitStack) -> Iterator[Job]:
    """Write run.json; logs and checkpoint writer are open inside."""
    run, state, opened = built.run, built.state, built.opened
    settled, task, controls = opened.settled, opened.task, opened.run.controls
    asked, start, folder = settled.asked, settled.start, settled.folder
    world, roles, reporter = asked.world, asked.roles, asked.reporter
    mirror = held.enter_context(folder.mirror(asked.request.controls, run.name, reporter))
    folder.write(run)
    if mirror is not None:
        mirror.wake()
    pending = start.pending(run.plan.stop_after)
    recorder = _recorder(built, pending)
    held.callback(recorder.close)
    changed = mirror.wake if mirror is not None else lambda: None
    with (
        folder.writer(controls, start, reporter, changed=changed) as writer,
        photos_in_memory(task, settled.system, world, reporter),
    ):
        resumed = start.snapshot is not None
        if resumed:
            recorder.resume(
                state.step, start.seconds, checkpoint=start.checkpoint, world=roles.trainers, after=folder.ended
            )
        plan, memory = run.plan, opened.memory
        yield Job(
            run=run,
            task=task,
            roles=roles,
            place=opened.place,
            state=state,
            standing=start.standing,
            evaluation_pending=pending,
            recorder=recorder,
            writer=writer,
            mirror=mirror,
            folder=folder.path,
            clock=Clock(start.seconds),
            interval=Interval(
                plan.global_batch,
                ranks=plan.world,
                flop=memory.flop_of if memory.flop else None,
                compiled=compilations if run.system.compile == "on" else None,
            ),
            due=Due.of(plan, controls),
            stragglers=Stragglers(roles.peers.hosts),
            spikes=Spikes(read_events(folder.path / "events.jsonl") if resumed else ()),
            neighbours=Neighbours(settled.threads["intra_op"] if plan.world == 1 and world.device.type == "cpu" else 0),
            checkpoint_facts=fingerprint(run),
            power=held.enter_context(_node_power(world)),
        )


def _recorder(built: Built, pending: bool) -> Recorder:
    """The recorder of the run's events; pending: the evaluation of the step where the run starts is still to come."""
    run, settled, world = built.run, built.opened.settled, built.opened.settled.asked.world
    names = [name for name, _ in built.state.model.named_parameters()]
    return Recorder(
        settled.folder.path if world.is_main else None,
        log_facts(run, built.opened.task.workload, names, device_name(world.device)),
        settled.asked.console,
        sinks=settled.asked.sinks,
        json=run.controls.json,
        resumed_at=built.state.step if settled.start.snapshot is not None else None,
        evaluated=not pending,
        init_began=built.opened.init_began,
    )


def log_facts(run: Run, workload: Workload, parameters: Sequence[str], device: str) -> Facts:
    """The facts of the run that the logs need before it starts.

    parameters  their names, in the model's order
    device      name of each rank's device
    """
    plan, submission = run.plan, run.controls.mlperf
    ranks = plan.world + plan.eval_ranks
    return Facts(
        target=", ".join(
            f"{metric_label(name)} {target_text(name, value)}" for name, value in run.recipe.quality.targets
        ),
        total_steps=plan.stop_after,
        global_batch=plan.global_batch,
        steps_per_epoch=plan.steps_per_epoch,
        eval_steps=plan.eval_steps,
        train_images=plan.train_images,
        val_images=plan.val_images,
        submission={
            "benchmark": workload.rules(run.recipe)[0],
            "org": submission.submitter,
            "division": division_of(submission, run.recipe),
            "status": submission.status,
            "platform": submission.platform or f"{ranks}x{device}",
            "accelerators": ranks,
        },
        cache_cleared=submission.cache_cleared,
        mllog=workload.log_facts(run),
        weights=workload.log_tensors(parameters),
        accuracy=workload.log_accuracy,
    )


def _node_power(world: World) -> AbstractContextManager[PowerMeter]:
    """The meter of this rank's node, on the node's first rank; elsewhere one that measures nothing."""
    first = world.local_rank == 0
    return power_meter(gpus_of(world.device, world.local_world) if first else (), proceed=first)

"""From a request to a job that is ready to train, in five stages; each is a value that the next one is made of.

    Asked     request.py   controls that can be, and what each rank is there for
    Settled   settled.py   the run's folder, the machine, where the run starts: nothing is opened
    Opened    opened.py    the data, and the plan: the run is known
    Built     built.py     network, weights, state
    Job       job.py       logs, checkpoints, clocks: what the loop asks of it

Everything a user can get wrong is refused here, before the first step; after it only the machine can fail. What needs no data
is refused before they are opened: a check that needs the data can only stand where an Opened is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from paceline.accelerators import device_name
from paceline.config.due import Due
from paceline.log.console import Console
from paceline.log.events import read_events
from paceline.log.pace import Clock, Interval, Spikes, Stragglers
from paceline.log.recorder import Recorder
from paceline.machine.compiler import compilations
from paceline.machine.power import PowerMeter, gpus_of, power_meter
from paceline.machine.shortage import failures_in_words
from paceline.ranks.failure import is_echo
from paceline.ranks.launcher import Launch
from paceline.ranks.world import World
from paceline.training.built import Built, build
from paceline.training.job import Job
from paceline.training.keeping import kept_photos
from paceline.training.log_facts import log_facts
from paceline.training.opened import open_data
from paceline.training.request import Request, ask
from paceline.training.settled import settle
from paceline.training.start import fingerprint


@contextmanager
def set_up(request: Request, launch: Launch, world: World, console: Console) -> Iterator[Job]:
    """Everything before the first step; the job's logs and files are closed at the end.

    console   where rank 0 speaks
    Raises UserError for whatever a user can mend.
    """
    asked = ask(request, launch, world, console)
    with ExitStack() as held:
        built = build(open_data(settle(asked, held), held))
        with _job(built, held) as job:
            if world.watch is not None:
                world.watch.before_exit.append(job.fail)  # another rank failed, and this process is about to leave
            try:
                with failures_in_words(built.run):
                    yield job
            except Exception as error:
                if world.watch is None or not is_echo(error):  # else the watch is about to say whose end it echoes
                    job.fail(f"{type(error).__name__}: {error}".splitlines()[0])
                raise


@contextmanager
def _job(built: Built, held: ExitStack) -> Iterator[Job]:
    """run.json is written; logs and checkpoints are open inside."""
    run, state, opened = built.run, built.state, built.opened
    settled, task, controls = opened.settled, opened.task, opened.run.controls
    asked, start, folder = settled.asked, settled.start, settled.folder
    world, roles = asked.world, asked.roles
    mirror = held.enter_context(folder.mirror(asked.request.controls, run.name, asked.say, asked.warn))
    folder.write(run)
    if mirror is not None:
        mirror.wake()
    pending = start.pending(run.plan.stop_after)
    recorder = _recorder(built, pending)
    held.callback(recorder.close)
    changed = mirror.wake if mirror is not None else lambda: None
    with (
        folder.writer(controls, start, asked.warn, changed=changed) as writer,
        kept_photos(task, settled.system, world, asked.say),
    ):
        resumed = start.snapshot is not None
        if resumed:
            recorder.resume(
                state.step, start.seconds, checkpoint=start.checkpoint, world=roles.trainers, after=folder.ended
            )
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
            interval=_interval(built),
            due=Due.of(run.plan, controls),
            stragglers=Stragglers(roles.peers.hosts),
            spikes=Spikes(read_events(folder.path / "events.jsonl") if resumed else ()),
            checkpoint_facts=fingerprint(run),
            power=held.enter_context(_node_power(world)),
        )


def _recorder(built: Built, pending: bool) -> Recorder:
    """What writes the run's events; pending: an evaluation of the step where the run stands is to come."""
    settled, run, world = built.opened.settled, built.run, built.opened.settled.asked.world
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


def _interval(built: Built) -> Interval:
    plan, memory = built.run.plan, built.opened.memory
    return Interval(
        plan.global_batch,
        ranks=plan.world,
        flop=memory.flop_of if memory.flop else None,
        compiled=compilations if built.run.system.compile else None,
    )


def _node_power(world: World) -> AbstractContextManager[PowerMeter]:
    """The meter of this rank's node, on the node's first rank; elsewhere one of nothing."""
    first = world.local_rank == 0
    return power_meter(gpus_of(world.device, world.local_world) if first else (), proceed=first)

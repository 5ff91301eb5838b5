"""From a request to a job that is ready to train: folder, data, plan, run.json, state (fresh or resumed), logs.

Everything a user can get wrong is refused here, before the first step; after it only the machine can fail. What needs no data
is refused before they are opened: preparing or verifying them may take minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.accelerators import device_name
from paceline.config.commands import shown
from paceline.config.due import Due
from paceline.config.first_weights import NONE, check_first_weights, named_weights
from paceline.config.length import plan_in_words
from paceline.config.plan import shorten, training_ranks
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, check_controls
from paceline.config.submission import check_submission
from paceline.config.system import System
from paceline.log.console import Console
from paceline.log.events import read_events
from paceline.log.pace import Clock, Interval, Stragglers
from paceline.log.recorder import Recorder
from paceline.log.sinks import makers
from paceline.log.spikes import Spikes
from paceline.machine.compiler import compilations
from paceline.machine.heap import keep_freed_memory
from paceline.machine.machine import make_exact, set_threads
from paceline.machine.placing import bound
from paceline.machine.power import PowerMeter, gpus_of, power_meter
from paceline.machine.provenance import provenance
from paceline.machine.shortage import check_addresses, failures_in_words
from paceline.ranks.failure import is_echo
from paceline.ranks.launcher import Launch
from paceline.ranks.roles import Roles, assign
from paceline.ranks.world import World
from paceline.tasks.task import InputRank, Task
from paceline.training.alike import checkpoint_facts, data_facts, request_facts, run_facts, weight_facts
from paceline.training.building import build_model, build_state, first_weights, untrained
from paceline.training.fitting import Pace, fit, try_out
from paceline.training.job import Job
from paceline.training.keeping import kept_photos
from paceline.training.log_facts import log_facts
from paceline.training.opening import check_request, open_task
from paceline.training.plan_text import describe, in_roles
from paceline.training.run_folder import open_run_folder
from paceline.training.settling import (
    check_metrics,
    keeps_target,
    plan_for,
    refuse_profile,
    refuse_ranges,
    settle_system,
    settle_target,
    tell_short_average,
    undecided,
)
from paceline.training.staging import staged_photos
from paceline.training.start import check_start, find_start, fingerprint
from paceline.training.trying import run_that_fits, worth_trying


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


def node_power(world: World) -> AbstractContextManager[PowerMeter]:
    """The meter of this rank's node, on the node's first rank; elsewhere one of nothing."""
    first = world.local_rank == 0
    return power_meter(gpus_of(world.device, world.local_world) if first else (), proceed=first)


@contextmanager
def set_up(request: Request, launch: Launch, world: World, console: Console) -> Iterator[Job]:
    """Everything before the first step; the job's logs and files are closed at the end.

    console   where rank 0 speaks
    Raises UserError for whatever a user can mend.
    """
    began = time.monotonic()
    check_controls(request.controls)
    check_submission(request.controls.mlperf, request.recipe)
    training_ranks(world.world, request.controls.eval_ranks)
    sinks = makers(request.controls) if world.is_main else ()
    roles = assign(world, request.controls.eval_ranks)
    with (
        open_run_folder(
            request.name,
            request.recipe,
            request.controls,
            request.given,
            world,
            repeats=request.repeats,
            say=console.tell,
        ) as run_folder,
        ExitStack() as to_the_end,
    ):
        system = run_folder.saved.system(request.system, given=request.given, world=roles.trainers)
        say, warn = (console.say, console.tell) if world.is_main else (lambda _: None,) * 2
        say(f"run: {shown(run_folder.path)}")
        placed = to_the_end.enter_context(bound(system, world, warn))
        named = "system.intra_op_threads" in request.given
        system_of_threads = run_folder.saved.with_threads(system, given=named, world=roles.trainers)
        threads = set_threads(system_of_threads, world, warn, placed.share)
        run_folder.saved.say_threads(threads["intra_op"], warn)
        recipe, controls = request.recipe, request.controls
        controls = replace(controls, mlperf=run_folder.saved.submission(controls.mlperf, warn))
        check_request(recipe, controls.data)
        kept = keeps_target(controls, request.given, repeats=request.repeats)
        if kept:
            check_metrics(recipe)
        system = settle_system(recipe, system, controls.exact, say)
        refuse_ranges(controls.profile, system)
        start = find_start(
            run_folder.saved, request.name, recipe, request.given, world, warn, undecided=undecided(controls, kept)
        )
        weights = None
        if start.snapshot is not None:
            controls = replace(controls, weights=run_folder.saved.weights())
        else:
            check_first_weights(request.name, recipe, controls, request.command)
            weights = first_weights(named_weights(controls), world, say)
            if controls.weights == NONE:
                say(f"--weights {NONE}: training starts from random values")
        init_began: list[float] = []  # seconds since 1970; preparing a data set is no part of a timed run
        console.doing("opening the data")
        task = open_task(recipe, controls, world, say=say, prepared=lambda: init_began.append(time.time()))
        world.agree(data_facts(task), "data")
        if part_of := task.facts.get("part_of"):
            say(f"the data are a part of {part_of}")
        recipe = settle_target(recipe, controls, request.given, task, warn, repeats=request.repeats)
        check_metrics(recipe)
        memory = task.memory(system)
        plan = plan_for(task, recipe, system, roles, memory)
        check_addresses(memory.total(plan.images_per_forward), threads["loader"] + threads["intra_op"])
        place = InputRank(roles.peers.rank, roles.peers.world, world.device, threads["loader"])
        make_exact(controls.exact)
        keep_freed_memory(world.device)
        to_the_end.enter_context(staged_photos(task, controls.stage, world, console, say))
        fitted: dict[str, Any] = {}
        if controls.fit_schedule:
            console.doing("measuring the speed")
            trial = Run(request.name, recipe, request.system_name, system, plan, controls)
            recipe, controls, fitted = fit(
                recipe,
                controls,
                plan,
                saved=run_folder.saved.facts,
                measure=lambda: _tried_out(trial, task, place, roles),
                seconds=lambda: time.monotonic() - began,
                world=world,
                say=say,
            )
            plan = plan_for(task, recipe, system, roles, memory)
            say(f"  {plan_in_words(plan)}")
        plan = shorten(plan, steps=controls.steps, eval_every=controls.eval_every)
        refuse_profile(controls.profile, plan)
        facts = provenance(
            request.command,
            launch.kind,
            threads=threads,
            data=task.facts,
            classes=task.classes,
            memory=asdict(memory),
        )
        facts |= {**placed.facts, **({"fitted": fitted} if fitted else {})}
        run = Run(request.name, recipe, request.system_name, system, plan, controls, facts)
        for line in describe(request.name, recipe, request.system_name, system, plan, memory, brief=True):
            say(line)
        console.doing("building the model")
        check_start(run_folder.saved, start, run, request.given)
        world.agree(run_facts(run, start.checkpoint, weights), "run")
        if roles.evaluators:
            say(in_roles(plan))
        model = build_model(task, run, roles.peers, trains=not roles.evaluates)
        if start.snapshot is None:
            world.broadcast_(model.state_dict().values())  # what a workload of one's own draws may differ by rank
        if weights is not None:
            for line in task.load_weights(model, weights).lines():
                say(line)
        elif start.snapshot is None and not controls.synthetic and (frozen := untrained(model)):
            warn(
                f"{frozen} do not train and keep random values: nothing is learned there. Name --weights, or let all parts train "
                "(--model.frozen none)"
            )
        if world.world > 1 and start.snapshot is not None:
            world.agree(checkpoint_facts(start.snapshot, start.checkpoint), "weights")
        elif world.world > 1 and weights is not None:
            world.agree(weight_facts(model.state_dict(), "--weights"), "weights")
        state = build_state(model, run, roles.peers)
        run_folder.check_space(state, controls.keep)
        if start.snapshot is not None and not roles.evaluates:  # those are handed what they evaluate
            state.restore(start.snapshot, roles.peers)
        if worth_trying(world.device):
            console.doing("trying a step")
            run = run_that_fits(run, task, state, roles, world.device, say)
        roles.meet()
        if state.step < run.plan.stop_after:  # else the run stands further than this command asks, and only ends
            tell_short_average(run, say)
        mirror = to_the_end.enter_context(run_folder.mirror(request.controls, request.name, say, warn))
        run_folder.write(run)
        if mirror is not None:
            mirror.wake()
        pending = start.pending(run.plan.stop_after)
        recorder = Recorder(
            run_folder.path if world.is_main else None,
            log_facts(
                run, task.workload, [name for name, _ in state.model.named_parameters()], device_name(world.device)
            ),
            console,
            sinks=sinks,
            json=controls.json,
            resumed_at=state.step if start.snapshot is not None else None,
            evaluated=not pending,
            init_began=init_began[0],
        )
        try:
            changed = mirror.wake if mirror is not None else lambda: None
            with (
                run_folder.writer(controls, start, warn, changed=changed) as writer,
                kept_photos(task, system, world, say),
            ):
                if start.snapshot is not None:
                    recorder.resume(
                        state.step,
                        start.seconds,
                        checkpoint=start.checkpoint,
                        world=roles.trainers,
                        after=run_folder.ended,
                    )
                plan = run.plan
                job = Job(
                    run=run,
                    task=task,
                    roles=roles,
                    place=place,
                    state=state,
                    standing=start.standing,
                    evaluation_pending=pending,
                    recorder=recorder,
                    writer=writer,
                    mirror=mirror,
                    folder=run_folder.path,
                    clock=Clock(start.seconds),
                    interval=Interval(
                        plan.global_batch,
                        ranks=plan.world,
                        flop=memory.flop_of if memory.flop else None,
                        compiled=compilations if system.compile else None,
                    ),
                    due=Due.of(plan, controls),
                    stragglers=Stragglers(roles.peers.hosts),
                    spikes=Spikes(read_events(run_folder.path / "events.jsonl") if start.snapshot is not None else ()),
                    checkpoint_facts=fingerprint(run),
                    power=to_the_end.enter_context(node_power(world)),
                )
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


def _tried_out(trial: Run, task: Task, place: InputRank, roles: Roles) -> Pace | None:
    """The pace of a run that is thrown away; None on a rank that only evaluates, which but helps to found groups."""
    model = build_model(task, trial, roles.peers, trains=not roles.evaluates)
    if roles.evaluates:
        return None
    with failures_in_words(trial):
        return try_out(trial, build_state(model, trial, roles.peers), task, place, roles.peers)

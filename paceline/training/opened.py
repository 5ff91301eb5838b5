"""The third stage: the data are open, and the plan is made of them: the run is known to its last number."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from paceline.config.length import plan_in_words
from paceline.config.plan import shorten
from paceline.config.run import Run
from paceline.machine.host_memory import keep_freed_memory
from paceline.machine.machine import make_exact
from paceline.machine.provenance import provenance
from paceline.machine.shortage import check_addresses, failures_in_words
from paceline.tasks.memory import MemoryEstimate
from paceline.tasks.task import InputRank, Task
from paceline.training.alike import data_facts
from paceline.training.building import build_model, build_state
from paceline.training.fitting import Pace, fit, try_out
from paceline.training.opening import open_task
from paceline.training.plan_text import describe
from paceline.training.settled import Settled
from paceline.training.settling import check_metrics, plan_for, refuse_profile, settle_target
from paceline.training.staging import staged_photos


@dataclass(frozen=True)
class Opened:
    """A run on its open data; nothing of a network is built."""

    settled: Settled
    task: Task
    run: Run
    memory: MemoryEstimate
    place: InputRank
    init_began: float  # seconds since 1970; preparing a data set is no part of a timed run


def open_data(settled: Settled, held: ExitStack) -> Opened:
    """Open the data until `held` closes, and plan. Raises UserError for data that cannot be used, or a plan that cannot be."""
    asked, system, controls, threads = settled.asked, settled.system, settled.controls, settled.threads
    request, world, roles, say = asked.request, asked.world, asked.roles, asked.say
    init_began: list[float] = []
    asked.console.doing("opening the data")
    task = open_task(settled.recipe, controls, world, say=say, prepared=lambda: init_began.append(time.time()))
    world.agree(data_facts(task), "data")
    if part_of := task.facts.get("part_of"):
        say(f"the data are a part of {part_of}")
    recipe = settle_target(settled.recipe, controls, request.given, task, asked.warn, repeats=request.repeats)
    check_metrics(recipe)
    memory = task.memory(system)
    plan = plan_for(task, recipe, system, roles, memory)
    check_addresses(memory.total(plan.images_per_forward), threads["loader"] + threads["intra_op"])
    place = InputRank(roles.peers.rank, roles.peers.world, world.device, threads["loader"])
    make_exact(controls.exact)
    keep_freed_memory(world.device)
    held.enter_context(staged_photos(task, controls.stage, world, asked.console, say))
    run = Run(request.name, recipe, request.system_name, system, plan, controls)
    run, fitted = _fitted(settled, Opened(settled, task, run, memory, place, init_began[0]))
    plan = shorten(run.plan, steps=run.controls.steps, eval_every=run.controls.eval_every)
    refuse_profile(run.controls.profile, plan)
    facts = provenance(
        request.command,
        asked.launch.kind,
        threads=threads,
        data=task.facts,
        classes=task.classes,
        memory=asdict(memory),
    )
    facts |= {**settled.placed.facts, **({"fitted": fitted} if fitted else {})}
    run = Run(request.name, run.recipe, request.system_name, system, plan, run.controls, facts)
    for line in describe(request.name, run.recipe, request.system_name, system, plan, memory, brief=True):
        say(line)
    return Opened(settled, task, run, memory, place, init_began[0])


def _fitted(settled: Settled, opened: Opened) -> tuple[Run, dict[str, Any]]:
    """--fit-schedule: the run with a length that the time allows, and what run.json says of it; else the run as it is."""
    asked, run, roles = settled.asked, opened.run, settled.asked.roles
    if not run.controls.fit_schedule:
        return run, {}
    asked.console.doing("measuring the speed")
    recipe, controls, fitted = fit(
        run.recipe,
        run.controls,
        run.plan,
        saved=settled.folder.saved.facts,
        measure=lambda: _measured(opened),
        seconds=lambda: time.monotonic() - asked.began,
        world=asked.world,
        say=asked.say,
    )
    plan = plan_for(opened.task, recipe, run.system, roles, opened.memory)
    asked.say(f"  {plan_in_words(plan)}")
    return Run(run.name, recipe, run.system_name, run.system, plan, controls), fitted


def _measured(opened: Opened) -> Pace | None:
    """The pace of a run that is thrown away; None on a rank that only evaluates, which but helps to found groups."""
    roles, run, task = opened.settled.asked.roles, opened.run, opened.task
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    if roles.evaluates:
        return None
    with failures_in_words(run):
        return try_out(run, build_state(model, run, roles.peers), task, opened.place, roles.peers)

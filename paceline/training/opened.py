"""The third stage: the data are open, and the plan is made from them; the run is known to its last number.

--fit-schedule is carried out here: the recipe's schedule is shortened to a number of steps, which is found once and kept in
run.json. With --steps the number is named; with --time-budget it is measured (trial_steps.py). Rank 0 decides, all ranks follow.
From then on the number counts and no clock: repeating or resuming the run takes the same one, and gives the same bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline._utils.errors import CheckpointError
from paceline._utils.reporter import Reporter
from paceline.config.length import fit_schedule, plan_in_words, steps_in_time
from paceline.config.plan import Plan, shorten
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, seconds_in
from paceline.config.system import System
from paceline.input.device_render import renderer_for
from paceline.machine.host_memory import keep_freed_memory
from paceline.machine.machine import choose_kernels, make_exact
from paceline.machine.provenance import provenance
from paceline.machine.shortage import check_addresses, failures_in_words
from paceline.ranks.exchange import from_main
from paceline.ranks.world import World
from paceline.tasks.memory import MemoryEstimate
from paceline.tasks.task import InputRank, Task
from paceline.training.alike import data_facts
from paceline.training.building import build_model, build_state
from paceline.training.feeding import chosen_decoder, decoded_by, feeding_of, remedy
from paceline.training.few_photos import refuse_few, report_length
from paceline.training.forms import choose_forms
from paceline.training.local_copies import staged_photos
from paceline.training.look import command_without, look
from paceline.training.opening import check_metrics, open_task, opened_again, plan_for, refuse_profile, settle_target
from paceline.training.plan_text import describe
from paceline.training.request import Settled
from paceline.training.saved_run import fitted_to
from paceline.training.trial_steps import Pace, measure_pace

# A budget is a ceiling: checkpoints, scores and a neighbour on the machine take their part too.
USED = 0.95


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
    """Open the data until `held` closes, and plan. Raises UserError for unusable data, or where no plan keeps to the recipe."""
    asked, system, controls, threads = settled.asked, settled.system, settled.controls, settled.threads
    request, world, roles, reporter = asked.request, asked.world, asked.roles, asked.reporter
    init_began: list[float] = []
    asked.console.doing("opening the data")
    task = open_task(settled.recipe, controls, world, reporter, prepared=lambda: init_began.append(time.time()))
    task, controls, auto = _looked_at(settled, task)
    place = InputRank(roles.peers.rank, roles.peers.world, world.device, threads["loader"])
    feeding = feeding_of(task, place, roles.trainers)
    if getattr(task.recipe.input, "decoder", "") == "auto":
        decoder = from_main(world, chosen_decoder(task.recipe, place, feeding), "decoder")
        task = opened_again(task, decoded_by(task.recipe, decoder), controls)
        reporter.line(f"--input.decoder auto: {decoder}")
    world.agree(data_facts(task), "data")
    if part_of := task.facts.get("part_of"):
        reporter.line(f"the data are a part of {part_of}")
    recipe = settle_target(task.recipe, controls, request.given, task, reporter, repeats=request.repeats)
    check_metrics(recipe)
    memory = task.memory(system)
    plan = plan_for(task, recipe, system, roles, memory, asked.launch.nodes)
    if not (request.repeats or settled.folder.saved.facts or settled.controls.auto):  # a run that was begun goes on
        refuse_few(request.name, recipe, plan, controls, request.given, system.accelerator)
        if not (controls.steps or controls.fit_schedule):
            report_length(request.name, recipe, plan, request.given, system.accelerator == "cpu", reporter)
    asked_for = shorten(plan, steps=controls.steps, eval_every=controls.eval_every)
    system, forms = _forms_chosen(settled, task, recipe, asked_for)
    check_addresses(memory.total(plan.images_per_forward), threads["loader"] + threads["intra_op"])
    renderer_for(recipe.input, place.device)  # refused before anything is written
    make_exact(controls.exact, varied=task.shapes.vary)
    keep_freed_memory(world.device)
    held.enter_context(staged_photos(task, controls.stage, world, reporter))
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
    facts |= {
        **settled.placed.facts,
        **({"fitted": fitted} if fitted else {}),
        **({"forms": forms} if forms else {}),
        **({} if feeding is None else {"feeding": asdict(feeding)}),
        **({} if auto is None else {"auto": auto}),
    }
    run = Run(request.name, run.recipe, request.system_name, system, plan, run.controls, facts)
    reporter.rows(describe(request.name, run.recipe, request.system_name, system, plan, memory))
    if feeding is not None:
        asked.console.input_rate = feeding.in_words()
        reporter.line(f"input: {feeding.in_words()}")
        if feeding.short and run.recipe.input.decoder != "nvjpeg":
            reporter.warning(f"note: the accelerator will wait for images. {remedy(run.recipe)}")
    return Opened(settled, task, run, memory, place, init_began[0])


def _forms_chosen(settled: Settled, task: Task, recipe: Recipe, plan: Plan) -> tuple[System, str]:
    """The system with a form of the step for each `auto`, and the reason: rank 0 chooses for all ranks, and prints it."""
    asked, controls = settled.asked, settled.controls
    seconds = seconds_in(controls.time_budget) if controls.time_budget else math.inf
    found = choose_forms(
        *(recipe, settled.system, plan, task.workload), exact=controls.exact, varied=task.shapes.vary, seconds=seconds
    )
    chosen, reason = json.loads(from_main(asked.world, json.dumps(found), "forms"))
    if reason:
        asked.reporter.line(f"forms of the step: {reason}")
    system = replace(settled.system, **chosen)
    choose_kernels(system)
    return system, reason or (settled.folder.saved.facts or {}).get("forms", "")


def _looked_at(settled: Settled, task: Task) -> tuple[Task, Controls, dict[str, Any] | None]:
    """--auto: -> (the task with what fits its images, the controls without it, `auto` of run.json); else as they are, and None."""
    asked, saved, controls = settled.asked, settled.folder.saved.facts or {}, settled.controls
    if not controls.auto:
        return task, controls, saved.get("auto")
    found = look(
        task,
        settled.recipe,
        controls,
        asked.request.given,
        cpu=settled.system.accelerator == "cpu",
        ranks=asked.roles.trainers,
        reporter=asked.reporter,
    )
    if asked.request.command:
        asked.reporter.line(f"the same without --auto:  {command_without(asked.request.command, found.facts)}")
    return opened_again(task, found.recipe, found.controls), found.controls, found.facts


def _fitted(settled: Settled, opened: Opened) -> tuple[Run, dict[str, Any]]:
    """--fit-schedule: -> (the run with a length that the time allows, `fitted` of run.json); else the run as it is, and {}."""
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
        reporter=asked.reporter,
    )
    plan = plan_for(opened.task, recipe, run.system, roles, opened.memory, asked.launch.nodes)
    asked.reporter.line(f"  {plan_in_words(plan)}")
    return Run(run.name, recipe, run.system_name, run.system, plan, controls), fitted


def _measured(opened: Opened) -> Pace | None:
    """The pace of a run that is thrown away; None on a rank that only evaluates, which only helps to found groups."""
    roles, run, task = opened.settled.asked.roles, opened.run, opened.task
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    if roles.evaluates:
        return None
    with failures_in_words(run):
        return measure_pace(run, build_state(model, run, roles.peers), task, opened.place, roles.peers)


def fit(
    recipe: Recipe,
    controls: Controls,
    plan: Plan,
    *,
    saved: Mapping[str, Any] | None,
    measure: Callable[[], Pace | None],
    seconds: Callable[[], float],
    world: World,
    reporter: Reporter,
) -> tuple[Recipe, Controls, dict[str, Any]]:
    """-> (the recipe fitted to --steps or --time-budget, the controls without these, `fitted` of run.json).

    plan      of the recipe as it is
    saved     run.json of the resumed run, which was fitted to the same; None for a fresh run
    measure   called on every rank where the number is not known yet; None on a rank that only evaluates
    seconds   since the command began
    Raises RecipeError where not one step fits, CheckpointError for a run.json that is none of ours.
    """
    asked = fitted_to(controls)
    facts: dict[str, Any] = {"asked": asked, "steps": min(controls.steps, plan.total_steps)}
    if saved is not None:
        facts = dict(saved["fitted"])
        if type(facts.get("steps")) is not int or facts["steps"] < 1:
            raise CheckpointError(f"run.json: fitted.steps is {str(facts.get('steps'))[:60]}, which no run has had.")
    elif not controls.steps:
        pace = measure()
        if pace is not None:
            facts |= {"step_seconds": pace.step, "eval_seconds": pace.evaluation}
        if world.is_main:
            assert pace is not None  # rank 0 trains
            found = steps_in_time(
                USED * seconds_in(controls.time_budget) - seconds() - pace.first_step,
                step_seconds=pace.step,
                eval_seconds=pace.evaluation,
                evaluations=len(plan.eval_steps),
                eval_every=controls.eval_every,
            )
            facts["steps"] = min(found, plan.total_steps)
        facts["steps"] = int(from_main(world, str(facts["steps"]), "fit-schedule"))
    steps = facts["steps"]
    short = f"{steps:,} of the recipe's {plan.total_steps:,} steps"
    if steps == plan.total_steps:
        short = f"the recipe's own {steps:,} steps"
    if all(isinstance(facts.get(name), float) for name in ("step_seconds", "eval_seconds")):
        short += f" (a step takes {facts['step_seconds']:.2g} s, an evaluation {facts['eval_seconds']:.2g} s)"
    reporter.line(f"schedule fitted to {asked}: {short}")
    budget = controls.time_budget if controls.steps else ""
    return fit_schedule(recipe, plan, steps), replace(controls, fit_schedule=False, steps=0, time_budget=budget), facts

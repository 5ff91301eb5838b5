"""The training loop. Start reading here.

`train` is the Python call; the command line builds the same Request. `run_training` joins the ranks and sets up;
`loop` takes one optimiser step after another and does what is due after each: a train event, an evaluation, a checkpoint, the end.
An evaluation's result comes later than its inference: scoring runs beside the steps that follow. It is taken before anything of
a later step is written down, so a run whose result decides its end has left nothing behind that is newer than that result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.checkpoint.layout import step_name
from paceline.config.errors import UserError
from paceline.config.keywords import controls_and_changes
from paceline.config.plan import rates_at
from paceline.config.recipe import Recipe, override
from paceline.config.run_names import STOP_FILE
from paceline.dist.environment import environment
from paceline.dist.exchange import smallest
from paceline.dist.launcher import read_launch
from paceline.dist.stop import StopVote, catch_stop
from paceline.dist.world import open_world
from paceline.evaluation_rank import serve
from paceline.going_on import FinishedError
from paceline.job import Job
from paceline.log.console import Console, open_console
from paceline.log.events import facts_of
from paceline.log.output import lasting_output
from paceline.machine import choose_device
from paceline.metrics.target import better, reached
from paceline.placing import choose_adapter
from paceline.run_folder import nearest_folder
from paceline.settling import refuse_compressed
from paceline.setup import Request, set_up
from paceline.shortage import failures_in_words
from paceline.step import TrainStep
from paceline.trace import Tracer

Status = Literal["success", "ran_out", "stopped_early", "interrupted", "failed"]
STOPPED_INSIDE = "stopped inside an evaluation; the same command goes on with it"
# Stopping early is what --steps or --time-budget asked for, so a script that asked goes on.
EXIT_CODES: dict[Status, int] = {"success": 0, "stopped_early": 0, "ran_out": 1, "failed": 3, "interrupted": 75}


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: Status  # success: target reached, or no target and the whole length done
    reason: str  # in words
    step: int  # optimiser steps done, less discarded ones
    best: dict[str, float]  # best value of each metric
    run: str  # the run's folder

    @property
    def exit_code(self) -> int:
        """The command line's exit code for this status."""
        return EXIT_CODES[self.status]


def train(
    recipe: str | Recipe,
    *,
    data: str | Path = "",
    out: str | Path = "",
    system: str = "auto",
    changes: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Ending:
    """Train a recipe to its quality target, or as long as is asked, and say how the run ended.

        ending = paceline.train("resnet50-tiny", data="photos", out="runs/first", steps=500)
        ending = paceline.train("ssd-custom", data="coco", global_batch=16, changes={"optim.lr": 0.005})
        ending.status, ending.best, ending.run        # "success", {"box_ap": 0.41, ...}, "/home/me/runs/first"
        paceline.load(ending.run).predict("cat.jpg")

    It is what `paceline train` does, in this process: it prints its progress, writes a checkpoint an epoch and a report. Called
    again with the same `out` it goes on where it was broken off, and a run that ended goes on where it is given more steps.

    recipe    a name from `paceline train --help`, e.g. "resnet50-tiny", "ssd-custom", "maskrcnn-tiny"; or a Recipe
    data      the data set: class folders, COCO, Pascal VOC or YOLO; "" is the recipe's built-in pictures
    out       the run's folder; one with an unfinished run resumes it; "" makes runs/NAME-001, -002, ...
    system    where it runs: auto, cpu, gpu, ... (`paceline show RECIPE` tells)
    changes   fields of the recipe by their dotted names: {"optim.lr": 0.1, "model.depth": 18}; and "mlperf.submitter"

    Keywords of the run (paceline.config.run.Controls says what each means):
        weights steps time_budget fit_schedule patience limit_train limit_val log_every save_every eval_every eval_ranks keep
        keep_every overfit_one_batch synthetic stage exact profile quiet json mlperf
        mlperf is a dict of paceline.config.submission.Submission's fields: {"submitter": "Us", "cache_cleared": True}.
    Keywords of the recipe, each a field of it (paceline.config.recipe.Recipe):
        global_batch epochs images_seen bn_span ema seed epoch_steps target_data, and whole parts: model input optim schedule
        quality. A changed global_batch needs its learning rate named again, changes={"optim.lr": ...}: none is scaled.

    return    an Ending: status, "success" where the target or the end was reached, reason in words, step, best value of each
              metric, and run, the folder that paceline.load opens
    Raises UserError, with one of its kinds, for anything that a user can mend: an unknown name, a value that cannot be, data
    that cannot be used, a folder that is finished or in use. paceline.UserError is their common class.
    """
    from paceline.recipes import RECIPES
    from paceline.recipes.rows import ROWS
    from paceline.systems import SYSTEMS
    from paceline.systems.published import system_for

    if not isinstance(recipe, str | Recipe):
        raise UserError(f"paceline.train({recipe!r:.60}): the first argument is a recipe's name, or a Recipe.")
    recipes = RECIPES | {name: row.make for name, row in ROWS.items()}
    for name, menu, noun in ((recipe, RECIPES, "recipe"), (system, SYSTEMS, "system")):
        if isinstance(name, str) and name not in menu and not (noun == "recipe" and name in ROWS):
            raise UserError(f"there is no {noun} {name!r}. Known: {', '.join(menu)}.")
    chosen = recipes[recipe]() if isinstance(recipe, str) else recipe
    controls, changed = controls_and_changes(chosen, {"data": data, "out": out, **keywords}, changes or {})
    return run_training(
        Request(
            name=recipe if isinstance(recipe, str) else "custom",
            recipe=override(chosen, changed),
            system_name=system,
            system=system_for(str(recipe), system, SYSTEMS[system](), changed),
            controls=controls,
            given=frozenset(changed) | ({"system"} if system != "auto" else set()),
        )
    )


def run_training(request: Request, console: Console | None = None) -> Ending:
    """Carry out one request on this rank: join the other ranks, set up, train, report.

    console   where rank 0 speaks; closed here. None: one as the request's controls want it
    """
    launch = read_launch(os.environ)
    refuse_compressed(request.system, request.controls.exact)
    facts, folder = request.facts() if launch.world > 1 else None, nearest_folder(request.controls.out)
    named = "system.interface" in request.given
    try:
        with (
            environment(request.system, launch, named=named) as notes,
            lasting_output() as output,
            console or open_console(request.controls, launch.rank) as console,
        ):
            for note in notes if launch.rank == 0 else ():
                console.tell(note)
            device = choose_device(request.system, launch.local_rank, launch.local_world)
            choose_adapter(request.system, launch, os.environ)
            with (
                open_world(launch, device=device, facts=facts, secret_folder=folder) as world,
                failures_in_words(),
                set_up(request, launch, world, console) as job,
            ):
                output.goes_on = f"training goes on, events are in {job.folder}/events.jsonl"
                ending = Ending(**serve(job)) if job.roles.evaluates else loop(job)
                job.write_report()
                return ending
    except FinishedError as finished:
        raise UserError(f"{finished}{written_late(finished.folder)}") from None


def written_late(folder: Path) -> str:
    """Write the report of a finished run that was killed before it had one; -> what to say of it."""
    if (folder / "report.html").exists():
        return ""
    from paceline.report.page import write_report

    return f"\nIts report was missing and is written now: {write_report(folder)}"


def loop(job: Job) -> Ending:
    """Train from where `job.state` stands to the run's end."""
    recipe, plan, state, recorder = job.run.recipe, job.run.plan, job.state, job.recorder
    step_once = TrainStep(state, plan, job.run.system, job.place.device, job.world.group)
    with ExitStack() as open_things:
        stop_request = open_things.enter_context(catch_stop(job.folder / STOP_FILE))
        recorder.stopping(lambda: stop_request.asked)
        vote = StopVote(job.world, stop_request, outside=job.roles.evaluators > 0)
        open_things.callback(vote.close)
        state.evaluation_pending |= state.step >= job.last_step and state.evaluated_step != state.step
        if not state.evaluation_pending and (how := end_after_evaluation(job)) is not None:
            return finish(job, *how)  # killed between the last checkpoint and the `end` event
        state.discarded_steps = 0
        if job.warm_up_due and state.step < job.last_step:
            # A whole loss group; and where gradients add up, a second forward, which runs beside those of the first.
            forwards = max(plan.loss_forwards, min(plan.forwards, 2))
            step_once.discard([job.task.warm_up_batch(plan, job.place.device)] * forwards)
        recorder.start(state.step, job.clock.seconds())
        recorder.doing("first step")
        job.world.barrier()  # no rank touches a training image before rank 0 has logged that the run starts
        loader = open_things.enter_context(job.train_loader())
        tracer = open_things.enter_context(Tracer(job.run.controls.profile, job.folder, main=job.world.is_main))
        if state.evaluation_pending and (ending := evaluate_now(job, step_once, vote)) is not None:
            return ending
        job.interval.begin(state.step, loader.wait_seconds)
        tracer.starts_at(state.step)
        for step, batches in loader:
            rates = rates_at(recipe, plan, step)
            losses = step_once(batches, rates)
            state.step = step + 1
            state.meters.add(losses, step)
            job.interval.took(batch.images.shape for batch in batches)
            tracer.passed(step)
            if job.result_due() and (ending := take_result(job)) is not None:
                return ending
            recorder.passed(state.step, job.clock.seconds())
            if job.log_due() and (ending := report_interval(job, step_once, rates.lr, loader.wait_seconds)) is not None:
                return ending
            if job.out_of_time():
                stop_request.ask("time budget")
            if vote.vote() and state.step < job.last_step:
                if (ending := take_result(job)) is not None:
                    return ending
                if vote.reason != "time budget":
                    recorder.doing("stopping: saving a checkpoint")
                    state.evaluation_pending = job.evaluation_due()
                    if (ending := save(job)) is not None:
                        return ending
                    return finish(job, "interrupted", f"stopped by a {vote.reason}; the same command goes on from here")
                job.end_here(f"time budget {job.run.controls.time_budget} used up")
            if job.evaluation_due():
                if (ending := evaluate_now(job, step_once, vote)) is not None:
                    return ending
            elif job.save_due() and (ending := save(job)) is not None:
                return ending
    raise AssertionError("the evaluation after the last step ends every run")


def report_interval(job: Job, step_once: TrainStep, lr: float, waited: float) -> Ending | None:
    """One train event; the ending when a loss of the interval was not finite on any rank."""
    state, plan = job.state, job.run.plan
    means, bad_step, ranks = state.meters.read(job.world, lambda: job.own_numbers(step_once.own_time, waited))
    if bad_step is not None:
        return finish(job, "failed", job.explain_non_finite(bad_step, means))
    unsettled = means.pop("unsettled", None)  # on an accelerator; a mean over steps and images, as losses are
    facts: dict[str, Any] = facts_of(means)
    if unsettled is not None:
        facts["approximated"] = {"unsettled_boxes": round(unsettled * state.meters.steps * plan.global_batch)}
    if state.scaler is not None:
        facts["skipped_steps"] = int(state.scaler.skipped)
    facts |= job.facts_of_ranks(ranks)
    pace = job.interval.close(state.step, waited)
    job.recorder.train(
        state.step,
        job.clock.seconds(),
        eta_seconds=job.seconds_left(pace["images_per_second"]),
        lr=lr,
        samples=state.step * plan.global_batch,
        **pace,
        **facts,
    )
    state.meters.clear()
    return None


def evaluate_now(job: Job, step_once: TrainStep, vote: StopVote) -> Ending | None:
    """Save, run inference, start scoring; wait for the result where no training follows. The ending, if this brings one."""
    state = job.state
    if not state.evaluation_pending:  # else the run was resumed from the very checkpoint
        state.evaluation_pending = True
        if (ending := save(job)) is not None:
            return ending
    if not job.begin_evaluation(step_once.autocast, vote):
        return finish(job, "interrupted", STOPPED_INSIDE)
    goes_on = job.run.system.score_beside and state.step < job.last_step
    if goes_on:
        job.recorder.training_goes_on()
    job.recorder.doing("" if goes_on else "waiting for the evaluation" if job.roles.evaluators else "scoring")
    return None if goes_on else take_result(job)


def take_result(job: Job) -> Ending | None:
    """The pending evaluation's result, if there is one: remember it, log it, judge its checkpoint; the ending that it brings."""
    state, pending = job.state, job.pending
    if pending is None:
        return None
    with job.interval.paused() as wait:
        result = pending.scoring.result()
    job.pending = None
    if result is None:  # its own checkpoint is the newest, and says that it is pending
        return finish(job, "interrupted", STOPPED_INSIDE, back_to=pending.step)
    headline = job.task.workload.headline
    is_best = better(result.metrics[headline], state.best.get(headline))
    state.remember(pending.step, result.metrics, is_best)
    how = end_after_evaluation(job)
    state.discarded_steps = 0 if how is None else state.step - pending.step
    seconds = job.clock.seconds()
    # The event comes before the checkpoint knows: after a kill in between, the evaluation is repeated and its event cut.
    job.recorder.evaluation(
        pending.step,
        seconds,
        metrics=result.metrics,
        headline=headline,
        images=result.images,
        eval_seconds=pending.inference_seconds + pending.scoring.seconds,
        best=is_best,
        approximated=result.approximated,
        went_on=pending.went_on + wait.seconds,
        ends=how is not None,
    )
    if job.writer is not None:
        job.writer.judge(pending.step, state.judgement(seconds), best=is_best)
    return None if how is None else finish(job, *how)


def end_after_evaluation(job: Job) -> tuple[Status, str] | None:
    """Status and reason of the end that the newest evaluation brings; None when training goes on."""
    state, patience = job.state, job.run.controls.patience
    if reached(job.run.recipe.quality.targets, state.last_metrics):
        return "success", f"target {job.target} reached"
    if 0 < patience <= state.evaluations_since_best:
        return job.end_without_target(f"no better result in {patience} evaluations")
    if state.evaluated_step >= job.last_step:
        return job.end_of_steps()
    return None


def save(job: Job) -> Ending | None:
    """Write a checkpoint in the background; all ranks call it, rank 0 writes. The ending where the weights are not finite.

    Losses are read once an interval: without this look a checkpoint between two readings could hold what no run can go on from.
    """
    state = job.state
    if smallest(job.world, int(state.is_finite())) == 0:
        means, bad_step, _ = state.meters.read(job.world)
        what = "gradient" if bad_step is None else "loss"
        reason = job.explain_non_finite(state.step - 1 if bad_step is None else bad_step, means, what)
        return finish(job, "failed", reason)
    snapshot = job.state.snapshot(job.world, job.clock.seconds(), job.checkpoint_facts)
    if job.writer is not None:
        job.writer.wait()
        # The event comes first: after a kill, one that speaks of a checkpoint that never came is cut, but one that is
        # missing would stay missing.
        job.recorder.checkpoint(job.state.step, job.clock.seconds(), name=step_name(job.state.step))
        job.writer.submit(job.state.step, snapshot)


def finish(job: Job, status: Status, reason: str, *, back_to: int | None = None) -> Ending:
    """The run's end: the checkpoint is on disk before the `end` event says so.

    back_to  where steps that were trained since are discarded, the step that the run goes on from
    """
    if job.writer is not None:
        job.writer.close()
    if status == "interrupted" and job.world.is_main:
        try:
            (job.folder / STOP_FILE).unlink(missing_ok=True)  # obeyed: the same command shall go on
        except OSError as problem:
            reason += f", once {STOP_FILE} is removed ({problem.strerror})"
    state = job.state
    step, discarded = state.evaluated_step if state.discarded_steps else state.step, state.discarded_steps
    if back_to is not None:
        step, discarded = back_to, state.step - back_to
    job.recorder.end(
        step,
        job.clock.seconds(),
        status=status,
        target_met=status == "success" and reached(job.run.recipe.quality.targets, state.last_metrics),
        best=state.best,
        reason=reason,
        since_best=state.evaluations_since_best,
        discarded_steps=discarded,
    )
    ending = Ending(status, reason, step, dict(state.best), str(job.folder))
    job.roles.order(end=asdict(ending))
    return ending

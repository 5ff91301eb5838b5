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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.checkpoint.layout import step_name
from paceline.config.errors import UserError
from paceline.config.keywords import controls_and_changes
from paceline.config.plan import rates_at
from paceline.config.recipe import Recipe, override
from paceline.config.run_names import STOP_FILE
from paceline.dist.environment import environment
from paceline.dist.exchange import smallest
from paceline.dist.launcher import read_launch
from paceline.dist.stop import Reason, StopVote, catch_stop
from paceline.dist.world import open_world
from paceline.evaluate import Evaluator
from paceline.evaluation_rank import serve
from paceline.going_on import FinishedError
from paceline.job import Job
from paceline.log.console import Console, open_console
from paceline.log.events import facts_of
from paceline.log.output import lasting_output
from paceline.machine import choose_device
from paceline.metrics.target import reached
from paceline.placing import choose_adapter
from paceline.run_folder import nearest_folder
from paceline.settling import refuse_compressed
from paceline.setup import Request, set_up
from paceline.shortage import failures_in_words
from paceline.standing import Ending, Over, over_after
from paceline.state import EVALUATES
from paceline.step import TrainStep
from paceline.trace import Tracer
from paceline.warm_up import warm_up

STOPPED_INSIDE = "stopped inside an evaluation; the same command goes on with it"


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
        keep_every overfit_one_batch synthetic stage exact profile quiet json sink tensorboard mlperf
        sink is a list of names: ["wandb", "./file.py:name"].
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
    run, state, due, recorder = job.run, job.state, job.due, job.recorder
    step_once = TrainStep(state, run.plan, run.system, job.place.device, job.world.group)
    with ExitStack() as open_things:
        open_things.callback(step_once.close)
        stop_request = open_things.enter_context(catch_stop(job.folder / STOP_FILE))
        recorder.stopping(lambda: stop_request.asked)
        vote = StopVote(job.world, stop_request, outside=job.roles.evaluators > 0)
        open_things.callback(vote.close)
        evaluator = job.evaluator(vote)
        try:
            pending = goes_on(job)
            warm_up(job, step_once)
            recorder.start(state.step, job.clock.seconds())
            recorder.doing("first step")
            job.world.barrier()  # no rank touches a training image before rank 0 has logged that the run starts
            loader = open_things.enter_context(job.train_loader())
            tracer = open_things.enter_context(Tracer(run.controls.profile, job.folder, main=job.world.is_main))
            if pending:
                begin_evaluation(job, evaluator)
            job.interval.begin(state.step, loader.wait_seconds)
            tracer.starts_at(state.step)
            for step, batches in loader:
                rates = rates_at(run.recipe, run.plan, step)
                losses = step_once(batches, rates, replay=step not in tracer.asked)
                state.step = step + 1
                state.meters.add(losses, step)
                job.interval.took(batch.images.shape for batch in batches)
                tracer.passed(step)
                if due.result(state.step):
                    take_result(job, evaluator)
                recorder.passed(state.step, job.clock.seconds())
                if due.log(state.step):
                    report_interval(job, step_once, rates.lr, loader.wait_seconds)
                if job.out_of_time():
                    stop_request.ask("time budget")
                if vote.vote() and state.step < due.last_step:
                    take_result(job, evaluator)
                    stop(job, vote.reason)
                if due.evaluation(state.step):
                    save(job)
                    begin_evaluation(job, evaluator)
                elif due.save(state.step):
                    save(job)
        except Over as over:
            return finish(job, over)
    raise AssertionError("the evaluation after the last step ends every run")


def goes_on(job: Job) -> bool:
    """Whether training goes on with an evaluation, that of the step where it stands.

    Raises Over where it had ended: it was killed between its last result and the `end` event.
    """
    standing = job.standing
    if not job.evaluation_pending and (over := over_after(standing, job.run, job.due)) is not None:
        over.discarded = standing.discarded_steps if standing.step == job.state.step else 0
        raise over
    return job.evaluation_pending


def report_interval(job: Job, step_once: TrainStep, lr: float, waited: float) -> None:
    """One train event. Raises Over when a loss of the interval was not finite on any rank."""
    state, plan = job.state, job.run.plan
    means, bad_step, ranks = state.meters.read(job.world, lambda: job.own_numbers(step_once.own_time, waited))
    if bad_step is not None:
        raise Over("failed", job.explain_non_finite(bad_step, means))
    unsettled = means.pop("unsettled", None)  # on an accelerator; a mean over steps and images, as losses are
    facts: dict[str, Any] = facts_of(means)
    if unsettled is not None:
        facts["approximated"] = {"unsettled_boxes": round(unsettled * state.meters.steps * plan.global_batch)}
    if state.scaler is not None:
        facts["skipped_steps"] = int(state.scaler.skipped)
    if step_once.late_captures:
        facts["late_captures"] = step_once.late_captures
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


def begin_evaluation(job: Job, evaluator: Evaluator) -> None:
    """Run inference on the state that was just saved and start scoring; wait for the result where no training follows."""
    recorder, step = job.recorder, job.state.step
    recorder.evaluation_begins(step)
    with job.interval.paused():
        if not evaluator.begin():
            raise Over("interrupted", STOPPED_INSIDE)
    if job.run.system.score_beside and step < job.due.last_step:
        recorder.training_goes_on()
        recorder.doing("")
    else:
        recorder.doing("waiting for the evaluation" if job.roles.evaluators else "scoring")
        take_result(job, evaluator)


def take_result(job: Job, evaluator: Evaluator) -> None:
    """The pending evaluation's result, if there is one: remember it, and write it down. Raises Over where it ends the run.

    Its event is what a run that goes on knows it by: it comes after all that is written of the evaluation, and before
    anything follows from it.
    """
    step, standing, trained = evaluator.pending, job.standing, job.state.step
    if step is None:
        return
    with job.interval.paused() as wait:
        result = evaluator.take()
    if result is None:
        raise Over("interrupted", STOPPED_INSIDE, step=step, discarded=trained - step)
    is_best = standing.remember(step, result.found.metrics)
    over = over_after(standing, job.run, job.due)
    if over is not None:
        over.step, over.discarded = step, trained - step
    job.recorder.evaluation(
        step,
        job.clock.seconds(),
        metrics=result.found.metrics,
        headline=standing.headline,
        images=result.found.images,
        eval_seconds=result.seconds,
        best=is_best,
        approximated=result.found.approximated,
        went_on=result.went_on + wait.seconds,
        ends=over is not None,
        discarded_steps=over.discarded if over is not None else 0,
    )
    if job.writer is not None:
        job.writer.evaluated(step, best=is_best)
    if over is not None:
        raise over


def save(job: Job) -> None:
    """Write a checkpoint in the background; all ranks call it, rank 0 writes. Raises Over where the weights are not finite.

    Losses are read once an interval: without this look a checkpoint between two readings could hold what no run can go on from.
    """
    state = job.state
    if smallest(job.world, int(state.is_finite())) == 0:
        means, bad_step, _ = state.meters.read(job.world)
        what = "gradient" if bad_step is None else "loss"
        raise Over("failed", job.explain_non_finite(state.step - 1 if bad_step is None else bad_step, means, what))
    told = {"seconds": job.clock.seconds(), EVALUATES: job.due.evaluation(state.step)}
    snapshot = state.snapshot(job.world, {**told, **job.checkpoint_facts})
    if job.writer is not None:
        job.writer.wait()
        # The event comes first: after a kill, one that speaks of a checkpoint that never came is cut, but one that is
        # missing would stay missing.
        job.recorder.checkpoint(state.step, job.clock.seconds(), name=step_name(state.step))
        job.writer.submit(state.step, snapshot)


def stop(job: Job, reason: Reason) -> None:
    """All ranks were asked to stop after this step: a used-up time budget makes it the last, all else raises Over."""
    if reason == "time budget":
        job.due.end(job.state.step, f"time budget {job.run.controls.time_budget} used up")
        return
    job.recorder.doing("stopping: saving a checkpoint")
    save(job)
    raise Over("interrupted", f"stopped by a {reason}; the same command goes on from here")


def finish(job: Job, over: Over) -> Ending:
    """The run's end: the checkpoint is on disk before the `end` event says so."""
    if job.writer is not None:
        job.writer.close()
    reason, standing = over.reason, job.standing
    if over.status == "interrupted" and job.world.is_main:
        try:
            (job.folder / STOP_FILE).unlink(missing_ok=True)  # obeyed: the same command shall go on
        except OSError as problem:
            reason += f", once {STOP_FILE} is removed ({problem.strerror})"
    step = job.state.step if over.step is None else over.step
    job.recorder.end(
        step,
        job.clock.seconds(),
        status=over.status,
        target_met=over.status == "success" and reached(job.run.recipe.quality.targets, standing.metrics),
        best=standing.best,
        reason=reason,
        since_best=standing.since_best,
        discarded_steps=over.discarded,
    )
    ending = Ending(over.status, reason, step, dict(standing.best), str(job.folder))
    job.roles.order(end=asdict(ending))
    return ending

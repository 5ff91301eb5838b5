"""The training loop. Start reading here; then step.py (one step) and setup.py (how a job is made).

`loop` takes one optimiser step after another. After each it does what is due: a train event, an evaluation, a checkpoint, the end.
An evaluation has two parts: inference stops training, then scoring runs in a thread beside the following steps. Its result is
taken before anything of a later step is written, so a run that its result ends has written nothing newer than that result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from paceline._utils.names import STOP_FILE
from paceline.config.plan import rates_at
from paceline.log.events import facts_of
from paceline.log.trace import Tracer
from paceline.ranks.exchange import smallest
from paceline.ranks.stop import Reason, StopVote, catch_stop
from paceline.tasks.metrics import reached
from paceline.training.checkpoint.layout import step_name
from paceline.training.evaluate import Evaluator
from paceline.training.job import Job
from paceline.training.standing import Ending, RunEnded, over_after
from paceline.training.start import cards_of
from paceline.training.state import EVALUATES
from paceline.training.step import TrainStep
from paceline.training.trial_steps import warm_up

STOPPED_INSIDE = "stopped inside an evaluation"


def loop(job: Job) -> Ending:
    """Train from the step of `job.state` to the run's end."""
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
            raise_if_over(job)
            warm_up(job, step_once)
            recorder.start(state.step, job.clock.seconds())
            recorder.doing("first step")
            job.world.barrier()  # no rank touches a training image before rank 0 has logged that the run starts
            loader = open_things.enter_context(job.train_loader())
            if why := getattr(loader, "why_threads", ""):
                recorder.warning(f"note: images are read by threads, which is slower than worker processes: {why}")
            tracer = open_things.enter_context(Tracer(run.controls.profile, job.folder, main=job.world.is_main))
            if job.evaluation_pending:
                begin_evaluation(job, evaluator)
            job.interval.begin(state.step, loader.wait_seconds)
            tracer.starts_at(state.step)
            for step, batches in loader:
                rates = rates_at(run.recipe, run.plan, step)
                losses = step_once(batches, rates, replay=step not in tracer.asked, measured=due.log(step + 1))
                state.step = step + 1
                state.meters.add(losses, step)
                job.interval.took(batch.images.shape for batch in batches)
                tracer.passed(step)
                if due.result(state.step):
                    take_result(job, evaluator)
                recorder.passed(state.step, job.clock.seconds())
                if due.log(state.step):
                    report_interval(job, step_once, rates.lr, loader.wait_seconds)
                    job.report_mirror()
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
        except RunEnded as ended:
            return finish(job, ended)
    raise AssertionError("the evaluation after the last step ends every run")


def raise_if_over(job: Job) -> None:
    """Raises RunEnded where a resumed run has its last result: it was killed before the `end` event."""
    standing = job.standing
    if not job.evaluation_pending and (ended := over_after(standing, job.run, job.due)) is not None:
        ended.discarded = standing.discarded_steps if standing.step == job.state.step else 0
        raise ended


def report_interval(job: Job, step_once: TrainStep, lr: float, waited: float) -> None:
    """Write one train event. Raises RunEnded where a loss of the interval was not finite on any rank."""
    state, plan = job.state, job.run.plan
    parts: dict[str, float] = {}

    def own_numbers() -> tuple[int, int, int]:
        nonlocal parts
        parts, own = step_once.times.read() if step_once.times is not None else ({}, 0.0)
        return job.own_numbers(own, waited)

    means, bad_step, ranks = state.meters.read(job.world, own_numbers)
    if bad_step is not None:
        raise RunEnded("failed", job.explain_non_finite(bad_step, means))
    unsettled = means.pop("unsettled", None)  # on an accelerator; a mean over steps and images, like the losses
    facts: dict[str, Any] = facts_of(means)
    if unsettled is not None:
        facts["approximated"] = {"unsettled_boxes": round(unsettled * state.meters.steps * plan.global_batch)}
    if state.scaler is not None:
        facts["skipped_steps"] = int(state.scaler.skipped)
    if step_once.late_captures:
        facts["late_captures"] = step_once.late_captures
    facts |= ({"step_seconds": parts} if parts else {}) | job.facts_of_step(step_once.sizes.read())
    facts |= job.facts_of_ranks(ranks)
    pace = job.interval.close(state.step, waited)
    if warning := job.neighbours.look():
        job.recorder.warning(warning)
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
    """Run inference with the state that was just saved, and start scoring; wait for the result where no training follows."""
    recorder, step = job.recorder, job.state.step
    recorder.evaluation_begins(step)
    with job.interval.paused():
        if not evaluator.begin():
            raise RunEnded("interrupted", STOPPED_INSIDE)
    if job.run.system.score_beside and step < job.due.last_step:
        recorder.training_goes_on()
        recorder.doing("")
    else:
        recorder.doing("waiting for the evaluation" if job.roles.evaluators else "scoring")
        take_result(job, evaluator)


def take_result(job: Job, evaluator: Evaluator) -> None:
    """Take and record the result of the pending evaluation, if there is one. Raises RunEnded where it ends the run.

    A resumed run knows the result by its event alone. So the event is written after everything else of the evaluation, and before
    anything that follows from it.
    """
    step, standing, trained = evaluator.pending, job.standing, job.state.step
    if step is None:
        return
    with job.interval.paused() as wait:
        result = evaluator.take()
    if result is None:
        raise RunEnded("interrupted", STOPPED_INSIDE, step=step, discarded=trained - step)
    is_best = standing.remember(step, result.found.metrics)
    ended = over_after(standing, job.run, job.due)
    if ended is not None:
        ended.step, ended.discarded = step, trained - step
    job.recorder.evaluation(
        step,
        job.clock.seconds(),
        metrics=result.found.metrics,
        headline=standing.headline,
        images=result.found.images,
        eval_seconds=result.seconds,
        eval_parts=result.parts,
        best=is_best,
        approximated=result.found.approximated,
        best_f1=result.found.best_f1,
        went_on=result.went_on + wait.seconds,
        ends=ended is not None,
        discarded_steps=ended.discarded if ended is not None else 0,
    )
    if job.writer is not None:
        job.writer.evaluated(step, best=is_best)
    if ended is not None:
        raise ended


def save(job: Job) -> None:
    """Write a checkpoint in the background; all ranks call it, rank 0 writes. Raises RunEnded where the weights are not finite.

    Losses are read once an interval: without this check a checkpoint between two readings could hold weights of no use.
    """
    state = job.state
    if smallest(job.world, int(state.is_finite())) == 0:
        means, bad_step, _ = state.meters.read(job.world)
        what = "gradient" if bad_step is None else "loss"
        raise RunEnded("failed", job.explain_non_finite(state.step - 1 if bad_step is None else bad_step, means, what))
    facts = {"seconds": job.clock.seconds(), EVALUATES: job.due.evaluation(state.step)}
    snapshot = state.snapshot(job.world, {**facts, **job.checkpoint_facts})
    if job.writer is not None:
        job.writer.wait()
        # The event comes first: after a kill, the event of a checkpoint that was never written is cut, but a missing event
        # would stay missing.
        job.recorder.checkpoint(state.step, job.clock.seconds(), name=step_name(state.step))
        job.writer.submit(state.step, replace(snapshot, cards=cards_of(job.run, state.step)))


def stop(job: Job, reason: Reason) -> None:
    """Stop all ranks after this step. A used-up time budget makes it the last step; any other reason raises RunEnded."""
    if reason == "time budget":
        job.due.end(job.state.step, f"time budget {job.run.controls.time_budget} used up")
        return
    job.recorder.doing("stopping: saving a checkpoint")
    save(job)
    raise RunEnded("interrupted", f"stopped by a {reason}")


def finish(job: Job, ended: RunEnded) -> Ending:
    """End the run: wait for its last checkpoint, then write the `end` event."""
    if job.writer is not None:
        job.writer.close()
    reason, standing = ended.reason, job.standing
    if ended.status == "interrupted" and job.world.is_main:
        try:
            (job.folder / STOP_FILE).unlink(missing_ok=True)  # else the resumed run would stop again
        except OSError as problem:
            reason += f" (remove {STOP_FILE} first: {problem.strerror})"
        reason += f"; {job.how_to_resume()}"
    step = job.state.step if ended.step is None else ended.step
    job.recorder.end(
        step,
        job.clock.seconds(),
        status=ended.status,
        target_met=ended.status == "success" and reached(job.run.recipe.quality.targets, standing.metrics),
        best=standing.best,
        reason=reason,
        since_best=standing.since_best,
        discarded_steps=ended.discarded,
        **job.intervals(ended.status),
        **job.joules(),
        **job.finish_mirror(ended.status),
    )
    ending = Ending(ended.status, reason, step, dict(standing.best), str(job.folder))
    job.roles.order(end=asdict(ending))
    return ending

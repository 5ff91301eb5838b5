"""The training loop. Start reading here; then step.py (one step) and trainer.py (how a run is made ready).

`loop` takes one optimizer step after another. After each it does what is due: a train event, an evaluation, a checkpoint, the end.
An evaluation has two parts: inference stops training, then scoring runs in a thread beside the following steps. Its result is
taken before anything of a later step is written, so a run that its result ends has written nothing newer than that result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from paceline._utils.names import STOP_FILE
from paceline.config.plan import evaluation_batch, step_rates
from paceline.config.run import RunSpec
from paceline.config.run_length import Cadence
from paceline.distributed.comm.stop import StopVote, open_stop_vote
from paceline.distributed.comm.world import DistContext, all_min
from paceline.models.metrics import meets_targets
from paceline.training.context import Checkpointer, TrainContext
from paceline.training.eval_history import EvalHistory, StopTraining, TrainResult, check_stop, how_to_resume
from paceline.training.evaluate import Validator, predictions_file
from paceline.training.logging.events import EndEvent, EvalEvent, TrainEvent, loss_facts
from paceline.training.logging.monitors import Monitors
from paceline.training.logging.profiler import Tracer
from paceline.training.memory_probe import warm_up
from paceline.training.nan_debug import explain_non_finite
from paceline.training.state import State
from paceline.training.step import TrainStep

STOPPED_INSIDE = "stopped during an evaluation"


def loop(context: TrainContext, *, pending: bool = False) -> TrainResult:
    """Train from the step of `context.state` to the run's end.

    pending  the run resumes from a checkpoint whose evaluation is still to come
    """
    run, task, roles, rank_info, state = context.run, context.task, context.roles, context.place, context.state
    recorder, checkpoints, monitors, due = context.recorder, context.checkpoints, context.monitors, context.due
    standing, world = context.standing, roles.peers
    step_once = TrainStep(state, run.plan, run.system, rank_info.device, world.group)
    with ExitStack() as open_things:
        open_things.callback(step_once.close)
        vote = open_things.enter_context(open_stop_vote(world, context.folder / STOP_FILE, outside=roles.evaluators > 0))
        recorder.stopping(lambda: vote.request.asked)
        validator = make_validator(context, vote)
        explain = partial(explain_non_finite, run, task, rank_info, context.folder, checkpoints.wait)
        take = partial(take_result, validator, run, standing, due, checkpoints, monitors)
        evaluate = partial(begin_evaluation, validator, due, run.system.async_metrics, monitors, take)
        save_checkpoint = partial(save, state, world, due, checkpoints, monitors, explain)
        try:
            if not pending:
                raise_if_over(standing, run, due, state.step)
            warm_up(run, task, world, state.step, step_once, due, recorder, monitors.clock)
            recorder.start(state.step, monitors.clock.seconds())
            recorder.doing("first step")
            world.barrier()  # no rank touches a training image before rank 0 has logged that the run starts
            one = run.options.overfit_one_batch
            loader = open_things.enter_context(
                task.data.train_loader(run.plan, run.system, rank_info, first=state.step, one_batch=one)
            )
            if why := getattr(loader, "why_threads", ""):
                recorder.warning(f"note: threads read the images, which is slower than worker processes: {why}")
            tracer = open_things.enter_context(Tracer(run.options.profile, context.folder, main=world.is_main))
            if pending:
                evaluate()
            monitors.interval.begin(state.step, loader.wait_seconds)
            tracer.starts_at(state.step)
            for step, batches in loader:
                rates = step_rates(run.recipe, run.plan, step)
                losses = step_once(batches, rates, replay=step not in tracer.asked, measured=due.log(step + 1))
                state.step = step + 1
                state.meters.add(losses, step)
                monitors.interval.took(batch.images.shape for batch in batches)
                tracer.passed(step)
                if due.result(state.step):
                    take()
                recorder.passed(state.step, monitors.clock.seconds())
                if due.log(state.step):
                    report_interval(state, world, step_once, rates.lr, loader.wait_seconds, monitors, explain)
                    checkpoints.report_mirror()
                if monitors.out_of_time():
                    vote.request.request_stop("time budget")
                if vote.vote() and state.step < due.last_step:
                    take()
                    if vote.reason == "time budget":  # this step is the last
                        due.end(state.step, f"--max-time {run.options.max_time} reached")
                    else:
                        recorder.doing("stopping: saving a checkpoint")
                        save_checkpoint()
                        raise StopTraining("interrupted", f"stopped by a {vote.reason}")
                if due.evaluation(state.step):
                    save_checkpoint()
                    evaluate()
                elif due.save(state.step):
                    save_checkpoint()
        except StopTraining as ended:
            return finish(context, ended)
    raise AssertionError("the evaluation after the last step ends every run")


def make_validator(context: TrainContext, vote: StopVote) -> Validator:
    """The validator of the run on this rank."""
    plan, recorder, ranks = context.run.plan, context.recorder, context.roles.peers.world
    return Validator(
        context.task,
        context.state,
        context.run.system,
        context.place,
        context.roles,
        vote,
        folder=context.folder,
        batch=evaluation_batch(plan.micro_batch_size, plan.val_images, plan.evaluators),
        seconds=context.monitors.clock.seconds,
        passed=lambda images: recorder.scored(images * ranks),
    )


def serve_evaluations(context: TrainContext) -> TrainResult:
    """On a rank that only evaluates (`--dedicated-eval-ranks`): score the weights that rank 0 sends until the run ends.

    The ranks that train continue meanwhile, and take the result where they would take any other, so the run is the same as without
    such ranks. At most one evaluation is under way: its result is taken before the next begins.
    A signal or a STOP file on this rank is passed on to those that train, which decide. It stops an evaluation during inference;
    scores that are being computed are waited for.
    """
    roles = context.roles
    with open_stop_vote(roles.peers, context.folder / STOP_FILE, outside=True) as vote:
        validator = make_validator(context, vote)
        while "end" not in (order := roles.next_order(vote.stopping_here)):
            validator.answer(order["evaluate"])
        return TrainResult(**order["end"])


def raise_if_over(standing: EvalHistory, run: RunSpec, due: Cadence, step: int) -> None:
    """Raises StopTraining where a resumed run has its last result: it was killed before the `end` event."""
    if (ended := check_stop(standing, run, due)) is not None:
        ended.discarded = standing.discarded_steps if standing.step == step else 0
        raise ended


def report_interval(
    state: State,
    world: DistContext,
    step_once: TrainStep,
    lr: float,
    waited: float,
    monitors: Monitors,
    explain: partial[str],
) -> None:
    """Write one train event. Raises StopTraining where a loss of the interval was not finite on any rank.

    waited  seconds that the loader was waited for so far
    """
    parts: dict[str, float] = {}

    def own_numbers() -> tuple[int, int, int]:
        nonlocal parts
        parts, own = step_once.times.read() if step_once.times is not None else ({}, 0.0)
        return monitors.own_numbers(state.step, own, waited)

    means, bad_step, ranks = state.meters.read(world, own_numbers)
    if bad_step is not None:
        raise StopTraining("failed", explain(bad_step, means))
    unsettled = means.pop("unsettled", None)  # on an accelerator; a mean over steps and images, like the losses
    losses, facts = loss_facts(means), dict[str, Any]()
    if unsettled is not None:
        facts["approximated"] = {"unsettled_boxes": round(unsettled * state.meters.steps * monitors.plan.global_batch_size)}
    if state.scaler is not None:
        facts["skipped_steps"] = int(state.scaler.skipped)
    if step_once.late_captures:
        facts["late_captures"] = step_once.late_captures
    facts |= ({"step_seconds": parts} if parts else {}) | monitors.facts_of_step(state.step, step_once.sizes.read())
    facts |= monitors.facts_of_ranks(ranks)
    facts |= monitors.interval.close(state.step, waited)
    samples = state.step * monitors.plan.global_batch_size
    event = TrainEvent(losses=losses, lr=lr, samples=samples, **facts)
    left = monitors.seconds_left(state.step, event.images_per_second)
    monitors.recorder.train(state.step, monitors.clock.seconds(), event, eta_seconds=left)
    state.meters.clear()


def begin_evaluation(
    validator: Validator, due: Cadence, async_metrics: bool, monitors: Monitors, take: partial[None]
) -> None:
    """Run inference with the state that was just saved, and start scoring; wait for the result where no training follows.

    async_metrics  whether scoring may run beside training
    take          `take_result` of this run
    """
    recorder, step = monitors.recorder, validator.state.step
    recorder.evaluation_begins(step)
    with monitors.interval.paused():
        if not validator.begin():
            raise StopTraining("interrupted", STOPPED_INSIDE)
    if async_metrics and step < due.last_step:
        recorder.training_goes_on()
        recorder.doing("")
    else:
        recorder.doing("waiting for the evaluation" if validator.roles.evaluators else "computing metrics")
        take()


def take_result(
    validator: Validator, run: RunSpec, standing: EvalHistory, due: Cadence, checkpoints: Checkpointer, monitors: Monitors
) -> None:
    """Take and record the result of the pending evaluation, if there is one. Raises StopTraining where it ends the run.

    A resumed run knows the result by its event alone. So the event is written after everything else of the evaluation, and before
    anything that follows from it.
    """
    step, trained = validator.pending, validator.state.step
    if step is None:
        return
    with monitors.interval.paused() as wait:
        result = validator.take()
    if result is None:
        raise StopTraining("interrupted", STOPPED_INSIDE, step=step, discarded=trained - step)
    is_best = standing.remember(step, result.found.metrics)
    ended = check_stop(standing, run, due)
    if ended is not None:
        ended.step, ended.discarded = step, trained - step
    monitors.recorder.evaluation(
        step,
        monitors.clock.seconds(),
        EvalEvent(
            images=result.found.images,
            eval_seconds=result.seconds,
            metrics=result.found.metrics,
            eval_parts=result.parts,
            discarded_steps=(ended.discarded or None) if ended is not None else None,
            approximated=result.found.approximated or None,
            best_f1=result.found.best_f1 or None,
        ),
        headline=standing.headline,
        best=is_best,
        went_on=result.went_on + wait.seconds,
        ends=ended is not None,
    )
    checkpoints.evaluated(step, best=is_best)
    if ended is not None:
        raise ended


def save(
    state: State, world: DistContext, due: Cadence, checkpoints: Checkpointer, monitors: Monitors, explain: partial[str]
) -> None:
    """Write a checkpoint in the background; all ranks call it, rank 0 writes. Raises StopTraining where the weights are not finite.

    Losses are read once an interval: without this check a checkpoint between two readings could hold weights of no use.
    """
    if all_min(world, int(state.is_finite())) == 0:
        means, bad_step, _ = state.meters.read(world)
        what = "gradient" if bad_step is None else "loss"
        raise StopTraining("failed", explain(state.step - 1 if bad_step is None else bad_step, means, what))
    checkpoints.save(state, monitors.clock.seconds(), evaluates=due.evaluation(state.step))


def finish(context: TrainContext, ended: StopTraining) -> TrainResult:
    """End the run: wait for its last checkpoint, then write the `end` event."""
    run, world, standing, folder = context.run, context.roles.peers, context.standing, context.folder
    context.checkpoints.close()
    reason = ended.reason
    if ended.status == "interrupted" and world.is_main:
        try:
            (folder / STOP_FILE).unlink(missing_ok=True)  # else the resumed run would stop again
        except OSError as problem:
            reason += f" (remove {STOP_FILE} before you resume: {problem.strerror})"
        reason += f"; {how_to_resume(run, folder, world.world)}"
    step = context.state.step if ended.step is None else ended.step
    over = world.is_main and ended.status not in ("interrupted", "failed")
    event = EndEvent(
        status=ended.status,
        best=standing.best,
        reason=reason,
        evaluations_since_best=standing.since_best,
        discarded_steps=ended.discarded,
        **(log_intervals(standing, context.folder) if over else {}),
        **context.monitors.joules(),
        **context.checkpoints.finish_mirror(ended.status),
    )
    met = ended.status == "success" and meets_targets(run.recipe.target, standing.metrics)
    context.recorder.end(step, context.monitors.clock.seconds(), event, target_met=met)
    ending = TrainResult(ended.status, reason, step, dict(standing.best), str(folder))
    context.roles.order(end=asdict(ending))
    return ending


def log_intervals(standing: EvalHistory, folder: Path) -> dict[str, Any]:
    """Of the best evaluation's scores, for the `end` event of a run that is over; {} where the photos are many."""
    if standing.best_step < 0:
        return {}
    from paceline.models.metrics.bootstrap import final_intervals

    result = final_intervals(predictions_file(folder, standing.best_step))
    return {"intervals": result, "intervals_step": standing.best_step} if result else {}

"""Evaluation: every validation image once, over all ranks, with no collective inside the loop; scored while training goes on.

Each rank runs its contiguous share through the model (shares may differ by one image, so batch counts may differ too); the inputs of
scoring travel to rank 0 once, as compact bytes, where a thread computes the metrics. The loop takes the result at a step that every
rank knows beforehand, never by asking whether it is there: so all ranks agree, and a run is the same whether its scores come early
or late. Ranks that only evaluate (trainer.py) receive the weights, and return the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline._utils.atomic_write import atomic_write
from paceline._utils.journal import write_error
from paceline._utils.threads import Thread, failure_in_thread
from paceline.config.system import System
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.stop import StopVote
from paceline.distributed.comm.world import DistContext, broadcast_from_main
from paceline.distributed.device.setup import autocast_for
from paceline.models.task import EvalResult, Evaluator, InputRank, MetricShard, Task
from paceline.training.state import State

Keep = Callable[[EvalResult], None]


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[None]:
    """eval() and inference_mode() inside the block; each module's own mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def run_inference(
    model: nn.Module,
    task: Task,
    *,
    batch: int,
    system: System,
    rank_info: InputRank,
    passed: Callable[[int], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[MetricShard, bool]:
    """Run this rank's share of the validation images through `model`; -> (its score, whether `stop` ended it early).

    batch   most images in one forward
    passed  called with the number of images of each forward
    """
    score, autocast = task.evaluator.new_score(), autocast_for(system, rank_info.device)
    with inference_mode(model), task.data.val_loader(batch, system, rank_info) as loader:
        for _, batches in loader:
            for images in batches:
                with autocast():
                    score.add(images, model.predict(images))  # type: ignore[operator]
                passed(len(images))
            if stop():
                return score, True
    return score, False


class EvalPass:
    """The scoring of one evaluation. Every rank makes it at the same point, and calls `result` at the same point.

    score  this rank's share
    key    names this evaluation among those of the process
    keep   called in rank 0's thread with the evaluation and its predictions, which are released afterwards
    """

    def __init__(
        self, evaluator: Evaluator, world: DistContext, score: MetricShard, key: str, keep: Keep | None = None
    ) -> None:
        self.seconds = 0.0  # that rank 0's scoring took, once it is done
        self.gather_seconds = 0.0  # that gathering the ranks' scores took; a rank that is early waits in it
        self._world, self._key = world, f"evaluation/{key}"
        self._found: EvalResult | None = None
        self._error: Exception | None = None
        self._thread: Thread | None = None
        began = time.monotonic()
        packed = world.gather_bytes(score.pack())
        self.gather_seconds = time.monotonic() - began
        if packed is not None:
            # A daemon: a run that fails meanwhile does not wait for a score that is of no use any more.
            scored = (evaluator, packed, keep)
            self._thread = Thread(target=self._run, args=scored, name="paceline-scoring", daemon=True)
            self._thread.start()

    def _run(self, evaluator: Evaluator, packed: list[bytes], keep: Keep | None) -> None:
        began = time.monotonic()
        try:
            result = evaluator.summarize(packed)
            if keep is not None:
                keep(result)
                result = replace(result, predictions={}, draws=dict)
            self._found = result
        except BaseException as error:  # raised again by `result`
            self._error = failure_in_thread(error)
        self.seconds = time.monotonic() - began

    def result(self) -> EvalResult:
        """Wait for the result: metrics and number of images on every rank; predictions on rank 0, unless `keep` took them.

        Raises on rank 0 whatever scoring raised, such as RuntimeError for an image scored twice or not at all.
        """
        if self._thread is None:
            metrics, images = json.loads(broadcast_from_main(self._world, None, self._key))
            return EvalResult(metrics, images, {})
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        broadcast_from_main(self._world, json.dumps([dict(self._found.metrics), self._found.images]), self._key)
        return self._found


@dataclass(frozen=True)
class EvalRecord:
    """The result of an evaluation in a run."""

    found: EvalResult
    seconds: float  # of the whole evaluation
    parts: Mapping[str, float]  # of these: inference, gather, scoring
    went_on: float  # the run's seconds when training could continue beside its scoring


@dataclass
class Validator:
    """A run's evaluations, one at a time: every rank that trains calls `begin`, and some steps later `take`."""

    task: Task
    state: State
    system: System
    place: InputRank
    roles: RankRoles
    vote: StopVote
    folder: Path  # the run's
    batch: int  # most images in one forward
    seconds: Callable[[], float]  # the run's clock
    passed: Callable[[int], None]  # called with the number of images of each forward
    pending: int | None = None  # the step whose evaluation has begun, and whose result was not taken yet
    _scoring: EvalPass | None = None  # of that step; None where other ranks evaluate it
    _inference: float = 0.0
    _went_on: float = 0.0

    def begin(self) -> bool:
        """Run inference with the state's weights (their average, if one is kept), and start the scoring; False when stopped early.

        Where other ranks only evaluate, the weights are sent to them instead.
        """
        state, began, score = self.state, time.monotonic(), None
        with state.evaluated(self.roles.peers):
            if self.roles.evaluators:
                self.roles.order(evaluate=state.step)
                self.roles.broadcast_state(state.model.state_dict().values())
            else:
                score = self._infer()
        if score is None and not self.roles.evaluators:
            return False
        self._inference = time.monotonic() - began
        self._scoring = None if score is None else self._score(state.step, score)
        self._went_on = self.seconds()
        self.pending = state.step
        return True

    def take(self) -> EvalRecord | None:
        """Wait for the pending evaluation's result; None where the ranks that only evaluate were stopped."""
        assert self.pending is not None
        step, self.pending = self.pending, None
        if self._scoring is not None:
            result = self._scoring.result()
            parts = _parts(self._inference, self._scoring)
            return EvalRecord(result, sum(parts.values()), parts, self._went_on)
        # While it waits, it polls for a request to stop, and passes it on.
        answer = self.roles.answer_of(step, self.vote.stopping_here)
        if answer is None:
            return None
        return EvalRecord(EvalResult(**answer["found"]), answer["seconds"], answer["parts"], self._went_on)

    def answer(self, step: int) -> None:
        """On a rank that only evaluates: receive the weights after `step`, score them, and send the result."""
        self.roles.broadcast_state(self.state.model.state_dict().values())
        began, score, answer = time.monotonic(), self._infer(), None
        if score is not None:
            inference, scoring = time.monotonic() - began, self._score(step, score)
            answer = {"found": scoring.result().record(), "seconds": time.monotonic() - began}
            answer["parts"] = _parts(inference, scoring)
        self.roles.answer(step, answer)

    def _infer(self) -> MetricShard | None:
        score, stopped = run_inference(
            self.state.model,
            self.task,
            batch=self.batch,
            system=self.system,
            rank_info=self.place,
            passed=self.passed,
            stop=self.vote.stopping_here,
        )
        # Ranks may stop at different batches; they agree here, to avoid a deadlock.
        return None if self.vote.agree(stopped) else score

    def _score(self, step: int, score: MetricShard) -> EvalPass:
        keep = lambda result: write_predictions(self.folder, step, make_predictions(self.task, result))  # noqa: E731
        return EvalPass(self.task.evaluator, self.roles.peers, score, f"step-{step}", keep)


def _parts(inference: float, scoring: EvalPass) -> dict[str, float]:
    return {"inference": inference, "gather": scoring.gather_seconds, "scoring": scoring.seconds}


def make_predictions(task: Task, result: EvalResult) -> dict[str, Any]:
    """Return the content of a predictions file: the fold or half, and the predictions with a checksum of each image's bytes.

    `data lint --predictions` finds an image by its checksum after a correction has moved its file.
    """
    results = result.predictions
    if results.get("kind") in ("classification", "boxes", "instances") and "digests" in task.data.val_index.extra:
        for image in results["images"]:
            image["digest"] = f"{int(task.data.val_index.extra['digests'][image['index']]):016x}"
    return {**{name: task.facts[name] for name in ("fold", "half") if name in task.facts}, **results}


def predictions_file(run: Path, step: int) -> Path:
    """Where a run keeps what the weights after `step` found."""
    return run / "predictions" / f"step-{step:06d}.json"


def write_predictions(run: Path, step: int, predictions: Mapping[str, Any]) -> None:
    """Write RUN/predictions/step-N.json, from which the report's pictures are made, whole or not at all.

    Raises PacelineError where it cannot be written.
    """
    file = predictions_file(run, step)
    try:
        file.parent.mkdir(exist_ok=True)
        atomic_write(file, iterate_json({"step": step, **predictions}))
    except OSError as error:
        raise write_error(file, error) from error


def iterate_json(facts: Mapping[str, Any]) -> Iterator[str]:
    """The text of a JSON object, each of its lists item by item.

    Encoding one value holds the interpreter's lock to its end; for thousands of images that would stop training for seconds.
    """
    for number, (name, value) in enumerate(facts.items()):
        yield f"{', ' if number else '{'}{json.dumps(name)}: "
        if isinstance(value, list) and value:
            yield from (f"{', ' if index else '['}{json.dumps(item)}" for index, item in enumerate(value))
            yield "]"
        else:
            yield json.dumps(value)
    yield "}"


def evaluate(
    model: nn.Module,
    task: Task,
    *,
    key: str,
    batch: int,
    system: System,
    rank_info: InputRank,
    world: DistContext,
    passed: Callable[[int], None] = lambda _: None,
) -> EvalResult:
    """Score `model` on the task's validation images, and wait for the result; predictions are on rank 0.

    key     names this evaluation among those of the process
    batch   most images in one forward
    passed  called with the number of images of each forward on this rank
    Raises RuntimeError on rank 0 when an image was scored twice or not at all.
    """
    score, _ = run_inference(model, task, batch=batch, system=system, rank_info=rank_info, passed=passed)
    return EvalPass(task.evaluator, world, score, key).result()

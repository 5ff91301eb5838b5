"""Scoring: from what the ranks collected in an evaluation to its result, in a thread of rank 0, while training goes on.

The result is taken at a moment that every rank knows beforehand (the loop's), never by asking whether it is there: so all
ranks agree, and a run is the same whether its scores come early or late.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

from paceline.dist.exchange import from_main
from paceline.dist.roles import Roles
from paceline.dist.world import World
from paceline.tasks.task import Evaluation, Score, Task
from paceline.threads import Thread, failure_in_thread


class Scoring:
    """One evaluation's score under way. Every rank makes it at the same point, and asks for `result` at the same point.

    score  what this rank collected
    key    names this evaluation among those of the process
    keep   called in rank 0's thread with the evaluation and its predictions, which are released afterwards
    """

    def __init__(
        self, task: Task, world: World, score: Score, key: str, keep: Callable[[Evaluation], None] | None = None
    ) -> None:
        self.seconds = 0.0  # how long rank 0's scoring took, once it is done
        self._world, self._key = world, f"evaluation/{key}"
        self._found: Evaluation | None = None
        self._error: Exception | None = None
        self._thread: Thread | None = None
        packed = world.gather_bytes(score.pack())
        if packed is not None:
            # A daemon: a run that fails meanwhile does not wait for a score that nobody will read.
            self._thread = Thread(target=self._run, args=(task, packed, keep), name="paceline-scoring", daemon=True)
            self._thread.start()

    def _run(self, task: Task, packed: list[bytes], keep: Callable[[Evaluation], None] | None) -> None:
        began = time.monotonic()
        try:
            found = task.summarise(packed)
            if keep is not None:
                keep(found)
                found = replace(found, predictions={})
            self._found = found
        except BaseException as error:  # raised again where the result is asked for
            self._error = failure_in_thread(error)
        self.seconds = time.monotonic() - began

    def result(self) -> Evaluation:
        """Metrics and number of images on every rank, once rank 0 has them; predictions on rank 0 unless they were kept.

        Raises on rank 0 whatever scoring raised, such as RuntimeError for an image scored twice or not at all.
        """
        if self._thread is None:
            metrics, images = json.loads(from_main(self._world, None, self._key))
            return Evaluation(metrics, images, {})
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        from_main(self._world, json.dumps([dict(self._found.metrics), self._found.images]), self._key)
        return self._found


class ScoringElsewhere:
    """An evaluation that other ranks carry out (paceline/evaluation_rank.py), inference included; asked as a Scoring is.

    step       of the weights that were handed over
    meanwhile  called again and again while the result is waited for: passes on that this rank was told to stop
    """

    def __init__(self, roles: Roles, step: int, meanwhile: Callable[[], object]) -> None:
        self.seconds = 0.0  # how long inference and scoring took, once they are done
        self._roles, self._step, self._meanwhile = roles, step, meanwhile

    def result(self) -> Evaluation | None:
        """Metrics and number of images, once they are there; None where those ranks were told to stop before."""
        found = self._roles.answer_of(self._step, self._meanwhile)
        if found is None:
            return None
        self.seconds = found["seconds"]
        return Evaluation(found["metrics"], found["images"], {}, found["approximated"])

"""What a rank does that only evaluates (`--eval-ranks`): it waits for weights, scores them, says what it found, and waits again.

The ranks that train go on meanwhile (loop.py). They ask for the result where they would take any other, so the run is the same
as without such ranks. At most one evaluation is under way: its result is taken before the next begins.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from paceline.config.run_names import STOP_FILE
from paceline.ranks.stop import StopVote, catch_stop
from paceline.training.job import Job


def serve(job: Job) -> dict[str, Any]:
    """Evaluate whatever rank 0 hands over, until it says how the run ended; -> that: the fields of an Ending.

    A signal or a STOP file that this rank sees is passed on to those that train, which decide. An evaluation stops on it
    while photos are being looked at; scores that are being computed are waited for.
    """
    with (
        catch_stop(job.folder / STOP_FILE) as request,
        closing(StopVote(job.world, request, outside=True)) as vote,
    ):
        evaluator = job.evaluator(vote)
        while "end" not in (order := job.roles.next_order(vote.stopping_here)):
            evaluator.answer(order["evaluate"])
        return order["end"]

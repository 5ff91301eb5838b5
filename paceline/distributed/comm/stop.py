"""Stopping on request: a signal or a STOP file is noticed on any rank, and all ranks stop after the same step.

The answer to "does anybody want to stop?" travels while the step computes: asked at one step, read at the next, so the
question costs no waiting. Inside an evaluation, where ranks have different numbers of batches, no collective may be
used; there a key in the store spreads the word.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

import torch
import torch.distributed as dist

from paceline._utils.platform import SIGUSR1, handle_signals
from paceline.distributed.comm.world import DistContext

Reason = Literal["", "time budget", "STOP file", "signal"]
# The strongest of several reasons wins: whoever sends a signal will not wait.
REASONS: tuple[Reason, ...] = ("", "time budget", "STOP file", "signal")

CAUGHT = {signal.SIGTERM, SIGUSR1, signal.SIGINT}
FILE_SECONDS = 1.0
STORE_SECONDS = 0.5
STORE_KEY = "stop"


class StopRequest:
    """What this process alone knows: whether it has been asked to stop, and why."""

    def __init__(self, stop_file: Path | None = None):
        self._reason: Reason = ""
        self._stop_file = stop_file
        self._looked = -FILE_SECONDS

    def request_stop(self, reason: Reason) -> None:
        """Ask this run to stop; safe in a signal handler."""
        if REASONS.index(reason) > REASONS.index(self._reason):
            self._reason = reason

    @property
    def asked(self) -> bool:
        """Whether this process has been asked already; does not look for the STOP file."""
        return bool(self._reason)

    def reason(self) -> Reason:
        """Why to stop, or ''. Looks for the STOP file at most once a second."""
        if not self._reason and self._stop_file is not None and time.monotonic() - self._looked >= FILE_SECONDS:
            self._looked = time.monotonic()
            if self._stop_file.exists():
                self.request_stop("STOP file")
        return self._reason


@contextmanager
def catch_stop(stop_file: Path | None = None) -> Iterator[StopRequest]:
    """SIGTERM, SIGUSR1 and SIGINT only ask to stop inside the block; the previous handlers come back after it.

    A second SIGINT does what one does outside: it raises KeyboardInterrupt. `stop_file`: a path whose existence asks the
    same, where signals do not reach the ranks; one rank looking for it is enough. Outside the main thread Python allows no
    handlers: there only the file is looked at.
    """
    request = StopRequest(stop_file)
    interrupts = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        if number == signal.SIGINT:
            interrupts += 1
            if interrupts > 1:
                outside = previous[signal.SIGINT]
                if not callable(outside):  # ignored, as of a background job
                    raise KeyboardInterrupt
                signal.signal(number, outside)
                outside(number, frame)
        request.request_stop("signal")

    with handle_signals(CAUGHT, on_signal) as previous:
        yield request


class StopVote:
    """Turns any rank's request into one decision of all ranks."""

    def __init__(self, world: DistContext, request: StopRequest, *, outside: bool = False):
        """outside: ranks that are not in `world` (see `comm/roles.py`) ask, and learn the answer, through the store."""
        self.request = request  # of this rank
        self._world, self._outside = world, outside
        self._asked: tuple[torch.Tensor, dist.Work] | None = None
        self._seen: Reason = ""
        self._looked = -STORE_SECONDS
        self.reason: Reason = ""
        """Why all stop, once vote() or agree() has returned True; the same on every rank."""

    def vote(self) -> bool:
        """Call once a step on every rank: whether all stop now. The same answer everywhere at the same step.

        The answer is to the question asked one step before; the first call always returns False unless there is one rank.
        """
        if self._outside and self._world.is_main:
            self._look_in_store()
        if self._world.control is None:
            self.reason = self._mine()
            answered = bool(self.reason)
        else:
            answered = self._ask()
        if answered and self._outside and self._world.is_main and self.reason != "time budget":
            self._post(self.reason)
        return answered

    def _ask(self) -> bool:
        """The answer to the last question; the next one is on its way."""
        answered = self._finish()
        ballot = torch.tensor([REASONS.index(self._mine())], dtype=torch.int32)
        work = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._world.control, async_op=True)
        assert work is not None
        self._asked = (ballot, work)
        return answered

    def stopping_here(self) -> bool:
        """Whether any rank asked to stop, as far as this one knows: for loops of different lengths. No collective.

        A used-up time budget does not count here: what it ends is training, and an evaluation is part of a good end.
        Afterwards the ranks may differ in how far they came: agree() settles it.
        """
        reason = self._mine()
        reason = "" if reason == "time budget" else reason
        if not reason and (self._world.control is not None or self._outside):
            self._look_in_store()
            reason = self._seen
        if reason:
            self._post(reason)
        return bool(reason)

    def _look_in_store(self) -> None:
        """Look in the store, now and then, whether any rank asked."""
        if not self._seen and time.monotonic() - self._looked >= STORE_SECONDS:
            self._looked = time.monotonic()
            if (posted := self._world.messages.get(STORE_KEY)) is not None:
                self._seen = REASONS[int(posted)]

    def _post(self, reason: Reason) -> None:
        """Leave in the store that a rank asked."""
        if not self._seen:
            self._seen = reason
            self._world.messages.set(STORE_KEY, str(REASONS.index(reason)))

    def agree(self, stopped: bool) -> bool:
        """Whether `stopped` holds on any rank. Waits for all of them; for the end of a loop that used stopping_here."""
        if self._world.control is None:
            self.reason = self._mine() if stopped else self.reason
            return stopped
        self._finish()
        ballot = torch.tensor([REASONS.index(self._mine()) if stopped else 0, int(stopped)], dtype=torch.int32)
        dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._world.control)
        if ballot[1]:
            self.reason = REASONS[int(ballot[0])]
        return bool(ballot[1])

    def close(self) -> None:
        """End the asking. Does not wait, as another rank may have failed: the World's close() takes the last answer."""
        if self._asked is not None:
            self._world.unfinished.append(self._asked)
            self._asked = None

    def _mine(self) -> Reason:
        mine = self.request.reason()
        return mine if REASONS.index(mine) >= REASONS.index(self._seen) else self._seen

    def _finish(self) -> bool:
        """The answer to the question under way, if there is one."""
        if self._asked is None:
            return False
        ballot, work = self._asked
        work.wait()
        self._asked = None
        if int(ballot[0]):
            self.reason = REASONS[int(ballot[0])]
        return bool(ballot[0])


@contextmanager
def open_stop_vote(world: DistContext, stop_file: Path, *, outside: bool) -> Iterator[StopVote]:
    """A vote on the requests of the ranks while this is open; stop_file as for `catch_stop`, outside as for StopVote."""
    with catch_stop(stop_file) as request, closing(StopVote(world, request, outside=outside)) as vote:
        yield vote

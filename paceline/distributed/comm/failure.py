"""One rank's failure ends all, within seconds and by name.

Each rank has a thread that talks to the store: it beats, and looks for the key `failed`. A rank that raises prints its
traceback first and then sets that key; the others print one line and leave. A rank that was killed stops beating, which
rank 0 notices; rank 0's own silence is noticed by all. A collective that breaks because its peer has gone is no cause
but an echo: such a rank waits for the cause to be found instead of printing a traceback of its own.
A second thread watches the first, because a request to a host that lost its power is never answered.
Whatever a rank did not sign (paceline/distributed/comm/messages.py) is no reason to end, and no failure ends with exit code 0.
Silence is counted in looks, not on a clock, so a suspended machine wakes up without a false alarm.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from paceline._utils.errors import PacelineError, ResourceError
from paceline._utils.text import escape_line
from paceline._utils.threads import Thread
from paceline.distributed.comm.exit_code import FAILED, INTERRUPTED, USER_ERROR, leave_exit_code
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.messages import Messages
from paceline.distributed.comm.rendezvous import format_ranks

# These end a run in good order (done, target missed, interrupted and resumable); all ranks leave so together.
CLEAN_EXITS = (None, 0, 1, INTERRUPTED)
# After a broken collective some rank is very likely dead, so a much shorter silence is enough to name it.
SUSPECT_SECONDS = 3.0
# ... and this much for the word to spread on a busy machine.
ECHO_SECONDS = 7.0
# How long the rank that serves the store lingers for the others to read why they end.
LINGER_SECONDS = 5.0
COURTESY_SECONDS = 1.0
BYE = "bye"


class PeerWatch:
    """The two threads of one rank. `messages` must have a connection that nobody else uses.

    serves                   whether this process serves the store, so that its end ends all messages
    stale_seconds            silence after which a rank counts as lost
    """

    def __init__(
        self,
        messages: Messages,
        launch: Launch,
        *,
        serves: bool,
        address: str,
        stale_seconds: float = 20.0,
        poll_seconds: float = 0.5,
    ):
        self.before_exit: list[Callable[[str], None]] = []
        self._messages, self._serves, self._address = messages, serves, address
        self._rank, self._world = launch.rank, launch.world
        self._stale_looks, self._poll = max(2, round(stale_seconds / poll_seconds)), poll_seconds
        self._suspect_looks = max(2, round(min(SUSPECT_SECONDS, stale_seconds) / poll_seconds))
        self._watched = range(1, launch.world) if launch.is_main else range(1)
        self._seen = {peer: ("", 0) for peer in self._watched}  # peer -> (last beat, looks without a new one)
        self._beats = self._looks_without_answer = 0
        self._suspicious = self._reporting = False
        self._stop = threading.Event()
        self._leaving = threading.Lock()

    def start(self) -> None:
        """Begin to beat and to look; the roll call has left a first beat of every rank."""
        self._talker = threading.Thread(target=self._talk, name="paceline-watch", daemon=True)
        self._judge = threading.Thread(target=self._judge_talker, name="paceline-watch-watch", daemon=True)
        self._talker.start()
        self._judge.start()

    def finish(self) -> None:
        """Leave without alarm. The rank that serves the store waits until all others have left."""
        if not self._serves:
            self._stop.set()
            self._talker.join()
            self._messages.set(f"beat/{self._rank}", BYE)
            return
        # Keeps watching meanwhile: a rank that dies during shutdown still ends this wait, by name.
        while any(beat != BYE for beat, _ in self._seen.values()):
            time.sleep(self._poll / 5)
        self._stop.set()
        self._talker.join()

    def report(self, error: BaseException) -> int:
        """End all ranks because this one failed with `error`; -> the exit code to leave with.

        Prints the traceback (of a PacelineError: the message alone), unless another rank failed first.
        Does not return where `error` is the echo of another rank's end: this process then ends with that rank's name.
        """
        if is_secondary(error):
            self._suspicious = True
            # The talker ends this process as soon as the cause is known; past that time nobody is missing.
            time.sleep(SUSPECT_SECONDS + ECHO_SECONDS)
        try:
            first = self._messages.claim("first to fail", str(self._rank)) == str(self._rank)
        except RuntimeError:  # the store's host went first; the talker is about to print so
            time.sleep(LINGER_SECONDS)
            first = True
        if not first:
            time.sleep(LINGER_SECONDS)  # the talker ends this process when it reads who was first
        self._reporting = True
        code = USER_ERROR if isinstance(error, PacelineError) else FAILED
        if isinstance(error, PacelineError | ResourceError):
            text = f"{error}"
        else:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        print(f"rank {self._rank} (of {self._world}) failed:\n{text}", file=sys.stderr, flush=True)
        if not isinstance(error, PacelineError | ResourceError):
            text = traceback.format_exception_only(type(error), error)[-1].strip()
        self._publish(self._rank, text, code)
        self._wait_for_readers(self._rank)
        self._stop.set()
        # Threads that never end (a loader's, a communicator's) must not keep a failed process.
        try:
            Thread(target=_exit_after, args=(LINGER_SECONDS, code), daemon=True).start()
        except RuntimeError:  # it may be the want of threads that failed
            _exit_after(0, code)
        return code

    def _talk(self) -> None:
        while not self._stop.wait(self._poll):
            try:
                self._beats += 1
                self._messages.set(f"beat/{self._rank}", str(self._beats))
                failed = None if self._reporting else self._messages.get("failed")
                if failed is not None:
                    self._leave(**_readable(failed))
                if self._suspicious:
                    self._messages.set("suspicious", "1")
                self._look(self._suspicious or self._messages.get("suspicious") is not None)
            except RuntimeError as error:  # torch's DistError
                if self._stop.is_set():
                    return
                text = f"lost the connection to its store at {self._address} ({escape_line(str(error).splitlines()[0])})"
                self._leave(0, text, FAILED, store_lost=True)
            self._looks_without_answer = 0

    def _look(self, suspicious: bool) -> None:
        limit = self._suspect_looks if suspicious else self._stale_looks
        beats = self._messages.get_all([f"beat/{peer}" for peer in self._watched])
        for peer, beat in zip(self._watched, beats):
            last, looks = self._seen[peer]
            self._seen[peer] = (beat, 0) if beat is not None and _is_newer(beat, last) else (last, looks + (last != BYE))
        lost = [peer for peer, (_, looks) in self._seen.items() if looks >= limit]
        if lost:
            text = f"no heartbeat from {format_ranks(lost)} for {limit * self._poll:g} s (killed, or the host is down)"
            self._publish(lost[0], text, FAILED)
            self._leave(lost[0], text, FAILED)

    def _judge_talker(self) -> None:
        while not self._stop.wait(self._poll):
            self._looks_without_answer += 1
            # One more than the talker's own limit, whose message has more facts.
            if self._looks_without_answer > self._stale_looks + 2:
                self._leave(0, f"its store at {self._address} does not respond", FAILED, store_lost=True)

    def _publish(self, rank: int, text: str, code: int) -> None:
        try:
            self._messages.claim("failed", json.dumps({"rank": rank, "text": text, "code": code}))
        except RuntimeError as error:
            print(f"rank {self._rank} failed to notify the other ranks: {error}", file=sys.stderr, flush=True)

    def _wait_for_readers(self, failed: int) -> None:
        """The store ends with this process: let all but the `failed` rank read why."""
        if not self._serves:
            return
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline:
            readers = [
                f"read/{peer}"
                for peer, (beat, looks) in self._seen.items()
                if peer != failed and beat != BYE and looks < self._suspect_looks
            ]
            if not readers or self._messages.are_there(readers):
                return
            time.sleep(self._poll / 5)

    def _leave(self, rank: int, text: str, code: int, *, store_lost: bool = False) -> None:
        """End this process because of `rank`; never returns."""
        if not self._leaving.acquire(blocking=False):
            threading.Event().wait()  # the other thread is ending this process
        reason = f"rank {rank} (of {self._world}) failed: {text}"
        # Every rank prints why it ends, as nobody knows which of a host's ranks are left to print it.
        print(f"rank {self._rank}: exiting, because {reason}", file=sys.stderr, flush=True)
        for callback in self.before_exit:
            helper = Thread(target=callback, args=(reason,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had: it is only an event that nobody writes
                helper.start()
                helper.join(LINGER_SECONDS)
        if not store_lost:
            with contextlib.suppress(RuntimeError):  # its host may leave any moment now
                if not self._serves:
                    self._messages.set(f"read/{self._rank}", "1")
                self._wait_for_readers(rank)
        # torchrun blames the rank that leaves first, so that should be the one that failed.
        time.sleep(COURTESY_SECONDS)
        sys.stdout.flush()
        leave_exit_code(code)
        os._exit(code)


def _is_newer(beat: str, last: str) -> bool:
    """Whether `beat` was left after `last`: an old beat that a stranger repeats is no sign of life."""
    return last != BYE and (beat == BYE or int(beat) > int(last or -1))


def _readable(failed: str) -> dict[str, Any]:
    """The value of the key `failed`, as arguments of Watch._leave. Its text comes from another host, and goes to a terminal."""
    facts = json.loads(failed)
    code = USER_ERROR if facts["code"] == USER_ERROR else FAILED
    return {"rank": int(facts["rank"]), "text": escape_line(facts["text"].partition("\n")[0]), "code": code}


def is_secondary(error: BaseException) -> bool:
    """Whether `error`, or what caused it, is a broken connection between ranks: the echo of another rank's end."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (dist.DistNetworkError, dist.DistStoreError, dist.DistBackendError)):
            return True
        text = str(seen).lower()
        if isinstance(seen, RuntimeError) and any(sign in text for sign in ("gloo", "nccl", "closed by peer")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _exit_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    leave_exit_code(code)
    os._exit(code)

"""One rank that a fault strikes: the real command line, with what shall happen to it in the variable FAULT.

FAULT is JSON: {"strikes": [[AT, DO], ...], "roots": {"run": DIR, "cache": DIR, "data": DIR}, "report": bool, "count": FILE}.
Without strikes the rank is an ordinary one. `count`: where to write how often each kind of moment came.

AT, a moment                     comes
start                            before the command begins
step N [+MS]                     when N optimizer steps are done and nothing of the Nth is written down yet (MS ms after that)
operation N                      before the Nth change to a file in the run's folder (opened for writing, renamed, synced, ...)
cache N                          before the Nth change to a file in the cache: inside the first verification
file N REGEX                     before the Nth file operation that matches, such as "rename run/checkpoints/last"
file N+ REGEX                    before that and all that follow
photo N                          before the Nth photo is opened
batch N                          after the Nth forward of evaluations
scoring N                        in the thread that scores the Nth evaluation
What DO may be is in actions.py.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import actions
import training_rank

import paceline.api
import paceline.training.state
from paceline.distributed.comm.stop import StopVote
from paceline.training.evaluate import EvalPass

# Audit events of file operations -> their name here. Each is raised before the operation is done.
WATCHED = {
    "open": "open",
    "os.rename": "rename",
    "os.symlink": "symlink",
    "os.link": "link",
    "os.remove": "remove",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Moments:
    """Counts the moments of this process, and does what was ordered for one when it comes."""

    def __init__(self, strikes: list[list[str]], roots: dict[str, str]) -> None:
        self.counts: Counter[str] = Counter()
        self._roots = sorted(roots.items(), key=lambda item: -len(item[1]))
        self._orders = [(at.split(" ", 2), do, itertools.count(1)) for at, do in strikes]
        self._inside = threading.local()  # what an action does to files is no moment

    def come(self, kind: str, number: int | None = None) -> None:
        """One moment of `kind` (its `number`, or the next one)."""
        self.counts[kind] += 1
        number = self.counts[kind] if number is None else number
        for (wanted, *more), do, _ in self._orders:
            if wanted == kind and (not more or int(more[0]) == number):
                self._strike(do, float(more[1].strip("+")) / 1000 if len(more) > 1 else 0.0)

    def file_operation(self, text: str, *, path: str = "") -> None:
        """One file operation; `text`: its name and where, such as "open run/events.jsonl"."""
        if getattr(self._inside, "action", False):
            return
        for (wanted, *more), do, count in self._orders:
            if wanted == "file" and re.search(more[1], text):
                first, now = int(more[0].rstrip("+")), next(count)
                if now == first or (now > first and more[0].endswith("+")):
                    self._strike(do, 0.0, path)
        where = text.partition(" ")[2].partition("/")[0]
        if where in ("run", "cache"):
            self.come("operation" if where == "run" else "cache")
        elif where == "data" and text.startswith("read ") and text.endswith((".jpg", ".png")):
            self.come("photo")

    def place(self, path: str) -> str:
        """A path as file_operation names it: its root's name and what follows; empty outside of all roots."""
        for name, root in self._roots:
            if path.startswith(f"{root}/"):
                return f"{name}/{path[len(root) + 1 :]}"
        return ""

    def _strike(self, do: str, delay: float, path: str = "") -> None:
        if delay:
            threading.Thread(target=lambda: (time.sleep(delay), self._strike(do, 0.0)), daemon=True).start()
            return
        self._inside.action = True
        try:
            actions.carry_out(do, path)
        finally:
            self._inside.action = False


def watch_files(moments: Moments) -> None:
    """Let every file operation of this process be a moment."""

    def hook(event: str, found: tuple[Any, ...]) -> None:
        name = WATCHED.get(event)
        if name is None or not isinstance(found[0], str | bytes | os.PathLike):
            return
        # The path that appears: of a rename, a link and a symlink the second one.
        path = os.fsdecode(found[1] if name in ("rename", "symlink", "link") else found[0])
        folder = found[-1] if name in ("remove", "rmdir") else -1
        if not path.startswith("/"):
            path = f"{os.readlink(f'/proc/self/fd/{folder}') if folder > 0 else os.getcwd()}/{path}"
        place = moments.place(path)
        if name == "open" and not found[2] & WRITING:
            name = "read"
        if place and (name != "read" or place.startswith("data/")):
            moments.file_operation(f"{name} {place}", path=path)

    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if place := moments.place(path):
            moments.file_operation(f"sync {place}", path=path)
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(hook)


def watch_training(moments: Moments) -> None:
    """Let steps, forwards of evaluations and scorings be moments."""
    add, stopping_here, score = paceline.training.state.Meters.add, StopVote.stopping_here, EvalPass._run

    def added(self, losses, step):
        actions.losses = losses
        moments.come("step", step + 1)
        add(self, losses, step)

    def stopping(self):
        moments.come("batch")
        return stopping_here(self)

    def scoring(self, *arguments):
        try:
            moments.come("scoring")
        except BaseException as error:
            self._error = error
            return
        score(self, *arguments)

    paceline.training.state.Meters.add, StopVote.stopping_here, EvalPass._run = added, stopping, scoring


def main() -> int:
    """The command, its fault, and afterwards the counts."""
    fault = json.loads(os.environ.pop("FAULT"))
    actions.roots = {name: Path(folder) for name, folder in fault["roots"].items()}
    moments = Moments(fault["strikes"], fault["roots"])
    watch_training(moments)
    watch_files(moments)
    if not fault.get("report"):
        paceline.api.report_run = lambda *_: None  # it takes longer than the run
    moments.come("start")
    code = training_rank.main(sys.argv[1:])
    if file := fault.get("count"):
        Path(file).write_text(json.dumps(moments.counts))
    return code

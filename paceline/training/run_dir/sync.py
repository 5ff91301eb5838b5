"""A run's folder copied to a bucket in the background, checkpoint by checkpoint (--sync-to).

One thread does it, woken when a checkpoint is whole on disk. The newest is sent first; one that was written and deleted while
another was being sent is never sent. A checkpoint's index is sent last, after its events; then `last` and `best`, and only then is
deleted what the run's own retention has deleted here. A failure is reported now and then, tried again, and stops no training.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_bytes
from paceline._utils.names import CHECKPOINTS, MIRROR_FILE, PREDICTIONS
from paceline._utils.safe_read import open_plain
from paceline._utils.threads import Thread
from paceline.training.checkpoint.layout import BEST, INDEX, LAST, link_step, list_steps, parse_step, step_name
from paceline.training.run_dir.remote import EVENTS, TEXTS, RemoteRunFolder, list_remote_steps, read_owner

# Between a failure and the next try, unless a new checkpoint comes before; and between two warnings about failures.
AGAIN_SECONDS, WARN_SECONDS = 30.0, 300.0
# How long a run waits at its end: after a signal (a spot machine has two minutes), after its last step, and for the report.
STOPPED_SECONDS, ENDED_SECONDS, CLOSE_SECONDS = 100.0, 600.0, 30.0
_OURS = re.compile(rf"{CHECKPOINTS}/(step-\d+)/(?:[a-z_]+\.safetensors|[a-z]+\.json)")
_PREDICTED = re.compile(r"step-\d+\.json")


class SyncSuperseded(Exception):
    """Another process mirrors this run now."""


class FolderSync:
    """Copies one run's folder into a bucket's; rank 0 has one.

    mirrored    the result of open_mirror
    keep_every  as for checkpoints: multiples of this are copied even when newer ones are there; 0 for none
    Raises PacelineError where the bucket takes no objects, or has become another run's meanwhile.
    """

    def __init__(self, mirrored: RemoteRunFolder, folder: Path, *, name: str, keep_every: int = 0) -> None:
        self._bucket, self._folder, self._keep_every = mirrored.bucket, folder, keep_every
        self._claim = {
            **{"run": mirrored.run, "writer": secrets.token_hex(8), "name": name},
            **{"folder": str(folder), "host": socket.gethostname()},
        }
        self._before = list_steps(folder / CHECKPOINTS)  # not later ones, which may replace a damaged one
        self._whole: set[int] = set()  # steps whose checkpoint in the bucket is the one here
        self._there: set[str] | None = None  # names of all objects there; None: not listed yet
        self._sent: dict[str, tuple[int, int]] = {}  # text -> size and time with which it was copied
        self._change = threading.Condition()
        self._asked = self._tried = 0  # numbers of the newest copy that was requested, and of the newest that was tried
        self._failure, self._over = "", False  # why the last try failed; whether another process has taken over
        self._warnings: list[str] = []
        self._warned = -WARN_SECONDS
        self.failures, self.bytes = 0, 0
        atomic_write(folder / MIRROR_FILE, json.dumps({"run": mirrored.run}), sync=True)
        try:
            fresh = self._bucket.write(MIRROR_FILE, json.dumps(self._claim).encode(), new=not mirrored.there)
        except OSError as problem:
            raise PacelineError(f"--sync-to {self._bucket.url}: {problem.strerror or problem}") from None
        if not fresh:
            raise PacelineError(
                f"--sync-to {self._bucket.url}: another process has started to upload to this folder. Wait, or choose another folder."
            )
        # A daemon: a request that hangs must not keep the process from ending.
        self._thread = Thread(target=self._live, name="paceline-mirror", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Request a copy of what is new in the run's folder. Returns at once."""
        with self._change:
            self._asked += 1
            self._change.notify_all()

    def warnings(self) -> list[str]:
        """Lines about failures since the last call, one in some minutes at most."""
        with self._change:
            lines, self._warnings = self._warnings, []
        return lines

    def catch_up(self, seconds: float) -> dict[str, Any]:
        """Try once more, and wait for that no longer than `seconds`.

        return   facts for the run's end: bytes and failures so far; `missing`, where it is so: what is not mirrored, and why
        """
        with self._change:
            self._asked += 1
            number = self._asked
            self._change.notify_all()
            in_time = self._change.wait_for(lambda: self._tried >= number or self._over, seconds)
            facts = {"url": self._bucket.url, "bytes": self.bytes, "failures": self.failures}
            why = self._failure if in_time or self._over else f"not completed within {seconds:g} s"
        if why:
            newest = link_step(self._folder / CHECKPOINTS, LAST)
            what = "the latest events" if newest is None or newest in self._whole else step_name(newest)
            facts["missing"] = f"{what}: {why}"
        return facts

    def close(self, seconds: float = CLOSE_SECONDS) -> dict[str, Any]:
        """Copy the newest files, the report among them, and end the thread; -> as `catch_up`, of the whole mirror."""
        facts = self.catch_up(seconds)
        with self._change:
            self._over = True
            self._change.notify_all()
        return facts

    def _live(self) -> None:
        while True:
            with self._change:
                tries_again = bool(self._failure)
                self._change.wait_for(
                    lambda: self._asked > self._tried or self._over, AGAIN_SECONDS if tries_again else None
                )
                if self._over:
                    return
                number, failure = self._asked, ""
            try:
                self._copy()
            except SyncSuperseded as problem:
                failure, self._over = str(problem), True
            except OSError as problem:
                failure = problem.strerror or str(problem)
            except Exception as problem:  # whatever a bucket does, training continues
                failure = f"{type(problem).__name__}: {problem}".splitlines()[0]
            with self._change:
                self._tried, self._failure = number, failure
                if failure:
                    self._failed(failure)
                self._change.notify_all()

    def _failed(self, failure: str) -> None:
        self.failures += 1
        if self._over or time.monotonic() - self._warned >= WARN_SECONDS:
            self._warned = time.monotonic()
            after = "Uploads have stopped" if self._over else f"The upload is retried ({self.failures} failures so far)"
            self._warnings.append(f"warning: --sync-to {self._bucket.url}: {failure}. {after}; training continues.")

    def _copy(self) -> None:
        """Make the bucket like the folder."""
        self._check_owner()
        checkpoints = self._folder / CHECKPOINTS
        if self._there is None:
            self._take_stock()
        while (step := self._next(checkpoints)) is not None:
            self._copy_step(step, checkpoints)
        self._copy_texts()
        self._name(LAST, link_step(checkpoints, LAST))
        self._name(BEST, link_step(checkpoints, BEST))
        here, newest = set(list_steps(checkpoints)), link_step(checkpoints, LAST)
        if newest is not None and newest in self._whole:
            steps = {name: parse_step(ours[1]) for name in self._there or () if (ours := _OURS.fullmatch(name))}
            # Later ones are damaged, and stay until there is another, as here.
            self._delete({name for name, step in steps.items() if step is not None and step < newest and step not in here})

    def _next(self, checkpoints: Path) -> int | None:
        """The step to be copied next: the newest, the best, then those that are kept for good."""
        steps = reversed(list_steps(checkpoints))
        kept = [step for step in steps if self._keep_every and step % self._keep_every == 0]
        wanted = (link_step(checkpoints, LAST), link_step(checkpoints, BEST), *kept)
        return next((step for step in wanted if step is not None and step not in self._whole), None)

    def _take_stock(self) -> None:
        """List the bucket, and find the checkpoints there that are the same as here."""
        names = self._bucket.names()
        for step in set(list_remote_steps(names)) & set(self._before):
            index = f"{CHECKPOINTS}/{step_name(step)}/{INDEX}"
            with suppress(FileNotFoundError):  # retention was faster
                if self._bucket.read(index) == (self._folder / index).read_bytes():
                    self._whole.add(step)
        self._there = set(names)

    def _copy_step(self, step: int, checkpoints: Path) -> None:
        folder = f"{CHECKPOINTS}/{step_name(step)}"
        with ExitStack() as opened:
            try:  # all at once: a file that is open is read to its end, whoever deletes it meanwhile
                names = sorted(os.listdir(self._folder / folder))
                files = {name: opened.enter_context(open(self._folder / folder / name, "rb")) for name in names}
                index = files.pop(INDEX).read()
            except FileNotFoundError:
                return  # deleted as it should be: there is a newer one
            self._delete({f"{folder}/{INDEX}"} & (self._there or set()))
            for name, file in files.items():
                self._send(f"{folder}/{name}", file)
            self._copy_texts()
            if (best := link_step(checkpoints, BEST)) in self._whole:
                self._name(BEST, best)
            self._check_owner()
            self._send(f"{folder}/{INDEX}", index)
            self._whole.add(step)

    def _copy_texts(self) -> None:
        """Send the files that changed since they were copied. Events are read first and sent last: what they name is there before."""
        try:
            stamp, events = _stamp(self._folder / EVENTS), (self._folder / EVENTS).read_bytes()
        except FileNotFoundError:  # before the first
            stamp, events = (0, 0), b""
        predicted = self._folder / PREDICTIONS
        results = sorted(os.listdir(predicted)) if predicted.is_dir() else []
        for name in (*TEXTS, *(f"{PREDICTIONS}/{name}" for name in results if _PREDICTED.fullmatch(name))):
            path = self._folder / name
            if path.is_file() and self._sent.get(name) != (now := _stamp(path)):
                with os.fdopen(open_plain(path), "rb") as file:
                    self._send(name, file)
                self._sent[name] = now
        if events and self._sent.get(EVENTS) != stamp:
            self._send(EVENTS, events)
            self._sent[EVENTS] = stamp

    def _name(self, link: str, step: int | None) -> None:
        """Let `last` or `best` name a step whose checkpoint is whole there."""
        name, text = f"{CHECKPOINTS}/{link}", "" if step is None else step_name(step)
        if step in self._whole and self._sent.get(name) != (step, 0):
            self._send(name, text.encode())
            self._sent[name] = (step, 0)

    def _send(self, name: str, content: Any) -> None:
        size = len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size
        self._bucket.write(name, content)
        self.bytes += size
        if self._there is not None:
            self._there.add(name)

    def _delete(self, names: set[str]) -> None:
        """Delete objects, indexes first: without its index, a checkpoint is none."""
        if names:
            ordered = sorted(names, key=lambda name: (not name.endswith(f"/{INDEX}"), name))
            self._bucket.delete(ordered)
            self._there = (self._there or set()) - names

    def _check_owner(self) -> None:
        """Raises Superseded where another process mirrors this run now: it has resumed from this mirror."""
        owner = read_owner(self._bucket)
        if owner is None:  # somebody has emptied the bucket
            self._bucket.write(MIRROR_FILE, json.dumps(self._claim).encode(), new=True)
            self._there, self._sent = None, {}
            self._whole.clear()
            self._before = []
            raise OSError(errno.ENOENT, f"{MIRROR_FILE} was missing and is written again")
        elif owner["writer"] != self._claim["writer"]:
            raise SyncSuperseded(f"another process uploads to this folder ({owner['folder']} on {owner['host']})")


def format_sync(facts: Mapping[str, Any]) -> str:
    """A line about a mirror, by the facts of its end."""
    failed = f", {facts['failures']} failed attempts" if facts["failures"] else ""
    missing = f"; not uploaded: {facts['missing']}" if "missing" in facts else ""
    return f"uploaded to {facts['url']}: {format_bytes(facts['bytes'])}{failed}{missing}"


def _stamp(path: Path) -> tuple[int, int]:
    result = path.stat()
    return result.st_size, result.st_mtime_ns

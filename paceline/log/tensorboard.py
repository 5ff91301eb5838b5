"""TensorBoard as one more reader of the events: the same numbers as events.jsonl, written live.

What is written here is in events.jsonl too, so a file that cannot be written ends nothing: it is said once.
train/loss, train/lr, ... and eval/top1, eval/box_ap, ... over the optimiser step.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.log.events import numbers_of
from paceline.log.follower import Follower


class TensorBoard(Follower):
    """Writes the numbers of events into `folder`, such as RUN/tensorboard/. One process writes it: rank 0.

    purge_step  the step that a resumed run goes on from: what an earlier process wrote past it is hidden. None for a
                fresh run.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # Imported here: it takes half a second, which `paceline --help` does not have, and some of its own imports
        # warn about things that no user of ours can mend.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard.writer import SummaryWriter

            # TensorBoard hides steps >= purge_step; the checkpoint's own step stays.
            purge = None if purge_step is None else purge_step + 1
            others = set(threading.enumerate())
            self._writer: Any = SummaryWriter(str(folder), purge_step=purge)
        self._lost = False
        # Its thread writes the file, and hands an error of that over to the next call here; it need not print it too.
        self._threads = set(threading.enumerate()) - others
        self._hook, threading.excepthook = threading.excepthook, self._on_thread_error

    def write(self, event: Mapping[str, Any]) -> None:
        """Add one event as written to events.jsonl; kinds other than train and eval have nothing to draw."""
        if self._lost:
            return
        try:
            for name, value in numbers_of(event).items():
                self._writer.add_scalar(name, value, event["step"])
            if event["event"] == "eval":
                self._writer.flush()  # TensorBoard's own two minutes are longer than a small run
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """Write what is pending and close the file; a second call does nothing."""
        try:
            self._writer.close()
        except OSError as error:
            self._lose(error)
        if threading.excepthook == self._on_thread_error:
            threading.excepthook = self._hook

    def _lose(self, error: OSError) -> None:
        if not self._lost:
            self._lost = True
            print(f"paceline: TensorBoard's file cannot be written ({error.strerror or error})", file=sys.stderr)

    def _on_thread_error(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread not in self._threads:
            self._hook(arguments)

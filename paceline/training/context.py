"""What the training loop has: one rank's part of a run, ready to train, and its checkpoints. trainer.py makes both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.run import RunSpec
from paceline.config.run_length import Cadence
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.world import DistContext
from paceline.models.task import InputRank, Task
from paceline.training.checkpoint.background import CheckpointWriter
from paceline.training.checkpoint.layout import step_name
from paceline.training.eval_history import EvalHistory
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import CheckpointEvent
from paceline.training.logging.monitors import Monitors
from paceline.training.resume import make_cards, run_fingerprint
from paceline.training.state import EVALUATES, State

if TYPE_CHECKING:
    from paceline.training.run_dir.sync import FolderSync


@dataclass(frozen=True)
class Checkpointer:
    """The checkpoints of one run, on every rank: all take part in a snapshot, rank 0 writes it, and mirrors it."""

    run: RunSpec
    world: DistContext  # the ranks that train together
    recorder: EventLogger
    writer: CheckpointWriter | None  # rank 0 only
    mirror: FolderSync | None  # --sync-to, on rank 0

    def save(self, state: State, seconds: float, *, evaluates: bool) -> None:
        """Write a checkpoint in the background; every rank that trains calls it.

        seconds    of the run so far
        evaluates  whether an evaluation follows
        """
        facts = {"seconds": seconds, EVALUATES: evaluates, **run_fingerprint(self.run)}
        snapshot = state.snapshot(self.world, facts)
        if self.writer is None:
            return
        self.writer.wait()
        # The event comes first: after a kill, the event of a checkpoint that was never written is cut, but a missing event
        # would stay missing.
        self.recorder.record(state.step, seconds, CheckpointEvent(name=step_name(state.step)))
        self.writer.submit(state.step, replace(snapshot, cards=make_cards(self.run, state.step)))

    def evaluated(self, step: int, *, best: bool) -> None:
        """The result of `step`'s evaluation is known; best: whether it is the best so far."""
        if self.writer is not None:
            self.writer.evaluated(step, best=best)

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        if self.writer is not None:
            self.writer.wait()

    def close(self) -> None:
        """Wait until the last checkpoint is written; no other follows."""
        if self.writer is not None:
            self.writer.close()

    def report_mirror(self) -> None:
        """Print the mirror's warnings since the last call."""
        for line in self.mirror.warnings() if self.mirror is not None else ():
            self.recorder.warning(line)

    def finish_mirror(self, status: str) -> dict[str, Any]:
        """Wait, within bounds, until the mirror has the last checkpoint; -> its facts for the `end` event."""
        if self.mirror is None:
            return {}
        from paceline.training.run_dir.sync import ENDED_SECONDS, STOPPED_SECONDS

        self.recorder.doing("waiting for the upload to --sync-to")
        facts = self.mirror.catch_up(STOPPED_SECONDS if status == "interrupted" else ENDED_SECONDS)
        self.report_mirror()
        return {"mirror": facts}


@dataclass(frozen=True)
class TrainContext:
    """One rank's part of a run. The loop unpacks it; what the loop calls takes the parts that it uses."""

    run: RunSpec
    task: Task
    roles: RankRoles
    place: InputRank
    state: State
    standing: EvalHistory  # results of the evaluations so far
    checkpoints: Checkpointer
    recorder: EventLogger
    monitors: Monitors
    due: Cadence
    folder: Path

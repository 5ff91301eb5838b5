"""What a run that goes on keeps of its own run.json: system, number of threads, what was said of its submission."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config.errors import UserError
from paceline.config.run import fill, saved_system
from paceline.config.submission import Submission
from paceline.config.system import MOST_THREADS, System
from paceline.config.typed import checked
from paceline.machine.detect import cpu_cores


@dataclass(frozen=True)
class SavedRun:
    """A run as it was begun; of a fresh one nothing is kept.

    path   its folder, for messages
    facts  its run.json; None for a fresh run
    """

    path: Path
    facts: Mapping[str, Any] | None

    def system(self, wanted: System, *, given: Collection[str], world: int) -> System:
        """The system to run on: a resumed run keeps its own while the ranks are as many, so that its bits stay the same.

        given   what this command names by hand. Where it names a system, images of a forward are kept that fitted into as
                much memory (trying.py)
        """
        if self.facts is None or self.facts["world"] != world:
            return wanted
        saved = saved_system(self.facts, self.path)
        if saved.accelerator != wanted.accelerator:  # it moved to another kind of machine
            return wanted
        if "system" not in given:
            return saved
        if "system.images_per_forward" in given or saved.memory_gib != wanted.memory_gib:
            return wanted
        return replace(wanted, images_per_forward=saved.images_per_forward)

    def with_threads(self, system: System, *, given: bool, world: int) -> System:
        """`system` with the number of compute threads that a resumed run had: the bits of its sums follow it.

        given   whether this command names a number
        An automatic number that another number of ranks or another kind of machine brings stays automatic.
        """
        if self.facts is None or given or system.intra_op_threads or self.facts["world"] != world:
            return system
        if saved_system(self.facts, self.path).accelerator != system.accelerator:
            return system
        return replace(system, intra_op_threads=self.threads())

    def threads(self) -> int:
        """The compute threads of the run that is resumed; 0 where that is not known.

        Raises UserError for a number that no run can have had.
        """
        threads = (self.facts or {}).get("threads", {}).get("intra_op", 0)
        if type(threads) is not int or not 0 <= threads <= MOST_THREADS:
            raise UserError(f"{self.path}: run.json: threads.intra_op is {str(threads)[:60]}, which no run has had.")
        return threads

    def weights(self) -> str:
        """What the run began from, as its --weights named it. Raises RecipeError for what is no text."""
        return checked(
            str, (self.facts or {"controls": {}})["controls"].get("weights", ""), f"{self.path}: run.json: weights"
        )

    def say_threads(self, threads: int, say: Callable[[str], None]) -> None:
        """Name a change of the number of compute threads, and what it costs to keep it."""
        before, cores = self.threads(), cpu_cores()
        count = f"{threads} thread{'s'[: threads > 1]}"
        if before and threads != before:
            say(f"computes with {count}, {before} before: sums round differently from here on")
        elif before > cores:
            say(
                f"computes with {count}, as before, on {cores} core{'s'[: cores > 1]}: the same bits, and slower "
                f"(--system.intra-op-threads {cores} would change them)"
            )

    def submission(self, asked: Submission, say: Callable[[str], None]) -> Submission:
        """What MLPerf's log says of the submission: a log is one run's, so a resumed run keeps its own, and that is said."""
        if self.facts is None:
            return asked
        where = f"{self.path}: run.json: controls.mlperf"
        own = fill(Submission(), checked(dict, self.facts["controls"].get("mlperf", {}), where), where)
        plain = asdict(Submission())
        new = {name: value for name, value in asdict(asked).items() if value not in (plain[name], getattr(own, name))}
        if new:
            flags = ", ".join(f"--mlperf.{name.replace('_', '-')}" for name in new)
            kept = ", ".join(f"{name.replace('_', ' ')} {getattr(own, name) or 'not given'}" for name in new)
            say(f"{flags}: not taken, the log of this run was begun with {kept}; another needs a new run (--out)")
        return own

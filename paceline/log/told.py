"""What a tracker was told of a run: its own name for the run, and the steps that it has. RUN/wandb.json, RUN/mlflow.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.config.errors import UserError
from paceline.config.plain_file import read_entry
from paceline.config.run import MOST_BYTES, read_run
from paceline.config.sealed import parse
from paceline.config.whole import write_whole
from paceline.log.follower import Event


class Told:
    """Kept in a small file, so that a resumed run goes on under the same name and nothing is told twice.

    id   the tracker's name for this run; empty for a fresh one
    A run that is killed goes on from its checkpoint and takes steps again that the tracker has: those events are not new, and
    the tracker keeps what it was told first. A run without a checkpoint starts over, under another name.
    Raises UserError for a file that is none of ours.
    """

    def __init__(self, file: Path, resumed_at: int | None) -> None:
        self._file = file
        self.id, self._steps = "", {}
        if resumed_at is None:
            return
        try:
            facts = parse(read_entry(file, MOST_BYTES))
            self.id, self._steps = facts["id"], facts["steps"]
            if not isinstance(self.id, str) or not all(type(step) is int for step in self._steps.values()):
                raise ValueError("not as it was written")
        except FileNotFoundError:
            return  # followed from here on
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"{file}: cannot be read ({problem}). Remove it, and a new one begins at this step."
            ) from None

    def is_new(self, event: Event) -> bool:
        """Whether the tracker does not have this event's step yet, of this kind."""
        return event["step"] > self._steps.get(event["event"], -1)

    def note(self, run: str, event: Event | None = None) -> None:
        """The tracker calls the run so, and has this event."""
        self.id = run
        if event is not None:
            self._steps[event["event"]] = event["step"]
        write_whole(self._file, json.dumps({"id": self.id, "steps": self._steps}) + "\n")


def config_of(run: Path) -> dict[str, Any]:
    """What decided the run's result, from its run.json: recipe, plan and system, by their words."""
    facts = read_run(run)
    return {name: facts[name] for name in ("name", "recipe", "plan", "system_name", "system")}


def flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested facts by dotted names: ("recipe.optim.lr", 0.1)."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value

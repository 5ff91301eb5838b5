"""What people are told of a run's moments; how a line looks is console.py's."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.log.console import Console
from paceline.log.events import metrics_of
from paceline.log.follower import Event, Facts, Follower
from paceline.log.prose import captured_late, compiled_again, left_open, warm_up_text

# Of a train event: what should not have happened once the clock ran.
SAID_ONCE = {"recompilations": compiled_again, "late_captures": captured_late}


class OnConsole(Follower):
    """Tells the console."""

    def __init__(self, console: Console, facts: Facts) -> None:
        self._console, self._facts = console, facts
        self._warned: set[str] = set()  # of what a line was said
        console.plan(facts.total_steps, target=facts.target, global_batch=facts.global_batch)

    def passed(self, step: int, seconds: float) -> None:
        """Moves the live line."""
        self._console.stepped(step)

    def evaluation_begins(self, step: int) -> None:
        """The live line counts photos from here."""
        self._console.doing("evaluating", self._facts.val_images)

    def train(self, event: Event, *, eta_seconds: float) -> None:
        """Where training stands."""
        self._warn_of(event.get("approximated", {}), event["step"])
        for name, say in SAID_ONCE.items():
            if event.get(name) and name not in self._warned:
                self._warned.add(name)
                self._console.tell(say(event[name], event["step"]))
        self._console.train(
            event["step"],
            event["epoch"],
            event["loss"],
            event["lr"],
            event["images_per_second"],
            event["data_wait"],
            eta_seconds,
            event.get("flop_per_second", 0.0),
            event.get("peak_memory", 0),
        )

    def evaluation(self, event: Event, *, best: bool) -> None:
        """An evaluation's result."""
        self._warn_of(event.get("approximated", {}), event["step"])
        self._console.evaluation(event["step"], event["epoch"], metrics_of(event), event["eval_seconds"], best)

    def write(self, event: Event) -> None:
        """A checkpoint, the warm-up, or how a run goes on."""
        if event["event"] == "checkpoint":
            self._console.note_checkpoint(event["step"], event["name"])
        elif event["event"] == "warm_up":
            self._console.say(warm_up_text(event))
        elif event["event"] == "resume":
            world, after = event["world"], event.get("after", "").replace("_", " ")
            given_more = f": it had ended ({after}), and was given more" if after else ""
            self._console.say(
                f"resumed from {event['checkpoint']} on {world} rank{'s' if world > 1 else ''}{given_more}"
            )

    def end(self, event: Event, *, target_met: bool) -> None:
        """How it ended, below which nothing is drawn."""
        self._console.close()
        self._console.tell(f"{event['status'].replace('_', ' ')}: {event['reason']}")
        if discarded := event["discarded_steps"]:
            step = event["step"]
            self._console.tell(f"{discarded:,} steps trained while step {step:,} was being scored are discarded")

    def _warn_of(self, approximated: Mapping[str, int], step: int) -> None:
        """Say once of each kind that an accelerator left something open; the events have every number."""
        for name, count in approximated.items():
            if count and name not in self._warned:
                self._warned.add(name)
                self._console.tell(left_open(name, count, step))

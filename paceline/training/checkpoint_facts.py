"""The facts that every checkpoint of ours has beside its tensors, and what each can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.checkpoint.snapshot import Snapshot
from paceline.config.errors import CheckpointError

# Of a checkpoint: an evaluation of its step follows. What that finds, the run's events say (training/standing.py).
EVALUATES = "evaluates"


def _is_interval(value: Any) -> bool:
    """Whether this is what Meters.facts gives."""
    sums = value.get("sums") if isinstance(value, dict) else None
    numbers = isinstance(sums, dict) and all(type(number) in (int, float) for number in sums.values())
    return numbers and type(value.get("steps")) is int


# Facts of every checkpoint, and what each can be.
FACTS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: type(value) is int and value >= 0,
    "world": lambda value: type(value) is int and value >= 1,
    "seconds": lambda value: type(value) is float,
    "meters": _is_interval,
    EVALUATES: lambda value: value is None or type(value) is bool,
    "recipe": lambda value: type(value) is dict,
    "data_hash": lambda value: type(value) is str,
    "train_images": lambda value: type(value) is int,
}


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a checkpoint that is whole and yet none of ours: facts or tensors that are missing, or cannot be.

    Raises CheckpointError naming what.
    """
    for name, can_be in FACTS.items():
        if not can_be(snapshot.facts.get(name)):
            value = str(snapshot.facts.get(name, "missing"))[:60]
            raise CheckpointError(f"its {name} is {value}, which no checkpoint of ours has")
    if "model" not in snapshot.tensors or "optimiser" not in snapshot.tensors:
        raise CheckpointError("it lacks the model's tensors or the optimiser's")


def evaluates(facts: Mapping[str, Any]) -> bool:
    """Whether an evaluation of a checkpoint's step follows it."""
    # Earlier versions had two facts in this one's place, and rewrote them when the result was known.
    earlier = bool(facts.get("evaluation_pending")) or facts.get("evaluated_step") == facts["step"]
    return facts.get(EVALUATES, earlier)

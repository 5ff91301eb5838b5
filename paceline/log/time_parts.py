"""Where a run's time went: of a step and of an evaluation, by what its events have measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.log.prose import duration

# Of a kind of event: what it is of, and the field of its parts.
MEASURED = {"train": ("a step", "step_seconds"), "eval": ("an evaluation", "eval_parts")}


def where_time_goes(events: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Of a step and of an evaluation: how long it takes in all, and its parts in shares of that; medians over the events.

    return  "a step" -> ("0.085 s", "forward 46 %, backward 49 %, update 5 %"), the largest part first; only what was measured
    """
    found = {}
    for kind, (name, field) in MEASURED.items():
        parts = [event[field] for event in events if event["event"] == kind and event.get(field)]
        medians = {
            part: statistics.median(each.get(part, 0.0) for each in parts) for part in (parts[0] if parts else ())
        }
        if total := sum(medians.values()):
            largest = sorted((part for part in medians if medians[part]), key=medians.__getitem__, reverse=True)
            shares = ", ".join(f"{part} {100 * medians[part] / total:.0f} %" for part in largest)
            found[name] = (duration(total), shares)
    return found

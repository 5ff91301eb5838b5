"""Scores of an evaluation: top-k, COCO's numbers of boxes and masks, confusion; and when a quality target is met.

Computed on the host in numpy, top-k on the device. A rank's share is packed here and sent in training/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def meets_targets(targets: Sequence[tuple[str, float]], metrics: Mapping[str, float]) -> bool:
    """Whether there are targets and one evaluation's metrics meet every one of them."""
    return bool(targets) and all(name in metrics and metrics[name] >= value for name, value in targets)


def is_better(value: float, best: float | None) -> bool:
    """Whether `value` is above the best so far (every metric here is better when larger); NaN never is."""
    return value == value and (best is None or value > best)


def format_targets(targets: Sequence[tuple[str, float]]) -> str:
    """E.g. "top1 0.759"; empty without targets."""
    return " and ".join(f"{name} {value:g}" for name, value in targets)

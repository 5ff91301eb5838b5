"""Ratios of contenders' times, with the interval in which their median lies: all that a benchmark claims.

Both times of a ratio come from one round, so what slows a machine for a while slows both.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import comb

CONFIDENCE = 0.95


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """theirs / ours of each round: -> their "median", and "low", "high" and "coverage" of its interval."""
    each = [other / max(own, 1e-9) for other, own in zip(theirs, ours)]
    low, high, coverage = interval(each)
    return {"median": statistics.median(each), "low": low, "high": high, "coverage": coverage}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """-> two of the values between which the median of what they are drawn from lies, and the probability that it does.

    The innermost pair of order statistics x[k], x[n-1-k] that reaches CONFIDENCE, else the least and the largest (of five
    rounds: 0.94; of one: 0). No distribution is assumed: each side is wrong where at most k of n fair coins fall on it, so
    coverage is 1 - 2 P(Binomial(n, 1/2) <= k). Source: Conover, Practical Nonparametric Statistics, 3.2.
    """
    ordered, count = sorted(values), len(values)
    outside = [sum(comb(count, i) for i in range(k + 1)) / 2**count for k in range((count + 1) // 2)]
    place = max((k for k, share in enumerate(outside) if 1 - 2 * share >= CONFIDENCE), default=0)
    return ordered[place], ordered[-1 - place], max(0.0, 1 - 2 * outside[place])


def told(found: Mapping[str, float] | None) -> str:
    """A ratio in a table: "1.25 x (1.21 to 1.30)", of one round "1.25 x (one round)", "" where there is none."""
    if not found:
        return ""
    spread = f"{found['low']:.2f} to {found['high']:.2f}" if found["coverage"] else "one round"
    return f"{found['median']:.2f} x ({spread})"

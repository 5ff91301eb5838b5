"""The alpha-beta model of an all-reduce, fitted to measured times: t(bytes) = alpha + bytes * beta.

alpha is what an all-reduce costs however small it is (s); 1 / beta is its algorithm bandwidth (B/s), the message's bytes by its
time. Of W ranks each has to send at least 2 (W - 1) / W times the message, so the bandwidth of the links, the bus bandwidth, is
the algorithm bandwidth times that: it can be compared between numbers of ranks and with what the network is sold as.
Sources: Hockney 1994 for the model; NVIDIA's nccl-tests, doc/PERFORMANCE.md, for the two bandwidths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Fit(NamedTuple):
    """A fitted model.

    alpha  seconds of the smallest message
    beta   seconds a byte
    worst  largest relative error over the points it was fitted to: 0.5 is a time half as large again as the model's
    """

    alpha: float
    beta: float
    worst: float

    def seconds(self, count: float) -> float:
        """The model's time of an all-reduce of `count` bytes."""
        return self.alpha + count * self.beta


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """Least squares of the relative errors over (bytes, seconds); None for fewer than two sizes.

    Relative, because times span five orders of magnitude: absolute errors would leave alpha to chance.
    Neither alpha nor beta is ever below 0.
    """
    points = [(size, seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in points}) < 2:
        return None
    # Minimise the sum of ((alpha + beta x) / t - 1)^2, that is of (alpha u + beta v - 1)^2 with u = 1/t, v = x/t.
    uu = sum(1 / t**2 for _, t in points)
    uv = sum(x / t**2 for x, t in points)
    vv = sum((x / t) ** 2 for x, t in points)
    u, v = sum(1 / t for _, t in points), sum(x / t for x, t in points)
    determinant = uu * vv - uv * uv
    alpha, beta = (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant
    if beta < 0:
        alpha, beta = u / uu, 0.0
    elif alpha < 0:
        alpha, beta = 0.0, v / vv
    found = Fit(alpha, beta, 0.0)
    return found._replace(worst=max(abs(t / max(found.seconds(x), 1e-12) - 1) for x, t in points))


def bus_share(world: int) -> float:
    """Bus bandwidth over algorithm bandwidth of an all-reduce: 2 (W - 1) / W."""
    return 2 * (world - 1) / world

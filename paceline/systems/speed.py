"""How fast a rank computes: measured, given, or published for its chip. A step of b images takes b / R + t0 seconds.

t0 is what a step costs whatever its size: many small kernels, the optimiser, gaps between launches. R and t0 of a workload on a
chip were fitted to published rows of 8 and 64 devices alone; how wrong that is at 384 and more is kept beside them. Rows,
provenance and fit: results/estimate, scripts/fit_estimate.py. They are other programs' speeds: paceline's own are in results/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """b images on one rank take b / rate + fixed seconds, the exchange inside its node included."""

    rate: float  # R, images per second
    fixed: float  # t0, seconds
    basis: str  # where it comes from, in words
    slow: float = 0.0  # largest known error of a predicted rate below the published one, as a share: -0.12
    fast: float = 0.0  # the same above it: 0.2; both 0 = not known
    checked: str = ""  # on what the errors were seen, in words

    def seconds(self, images: float) -> float:
        """Of a forward, a backward and an update over `images` images of one rank."""
        return images / self.rate + self.fixed


# (workload, how the chip's name begins) -> fit.
PUBLISHED: dict[tuple[str, str], Speed] = {
    ("classification", "H100-SXM5"): Speed(
        7510, 3.81e-3, "NVIDIA's MXNet submission, 8 and 64 H100, MLPerf v3.0", -0.12, -0.05, "512 to 3,584 H100"
    ),
    ("classification", "A100-SXM4"): Speed(
        3523, 4.29e-3, "NVIDIA's MXNet submission, 8 and 64 A100, MLPerf v2.0", 0.05, 0.20, "1,024 and 4,216 A100"
    ),
    ("ssd", "A100-SXM4"): Speed(
        1637, 4.94e-3, "NVIDIA's MXNet submission, 8 and 64 A100, MLPerf v1.1", -0.03, 0.05, "512 and 1,024 A100"
    ),
    ("ssd", "V100-SXM"): Speed(
        630.0, 9.19e-3, "NVIDIA's PyTorch submission, DGX-1 and four DGX-2H, MLPerf v0.7", 0.24, 0.24, "1,024 V100"
    ),
    ("maskrcnn", "H100-SXM5"): Speed(
        231.6, 12.35e-3, "NVIDIA's PyTorch submission, 8 and 64 H100, MLPerf v3.0", -0.37, -0.37, "256 of 384 H100"
    ),
    ("maskrcnn", "A100-SXM4"): Speed(
        101.7, 18.37e-3, "NVIDIA's PyTorch submission, 8 and 64 A100, MLPerf v2.1", -0.32, -0.32, "256 of 384 A100"
    ),
}


def published_speed(workload: str, chip: str) -> Speed | None:
    """The fit for a workload on a chip; None where too little was published."""
    return next(
        (speed for (task, name), speed in PUBLISHED.items() if task == workload and chip.startswith(name)), None
    )


def given_speed(rate: float) -> Speed:
    """As --rate says: images per second of one rank, at this plan's images a step."""
    return Speed(rate, 0.0, f"--rate {rate:g} images/s a rank")


def measured_speed(images_per_second: float, images: float, published: Speed | None, what: str) -> Speed:
    """A run's own.

    images_per_second  of one rank
    images             of one of its steps
    published          whose share of fixed cost is taken, so that other sizes of step follow; None: the rate is taken as constant
    """
    share = published.fixed / published.seconds(images) if published else 0.0
    seconds = images / images_per_second
    fixed = share * seconds
    return Speed(images / (seconds - fixed), fixed, what)

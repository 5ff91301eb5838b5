"""How fast a rank computes: measured, given, or published for its chip. A step of b images takes b / R + t0 seconds.

t0 is what a step costs whatever its size: many small kernels, the optimiser, gaps between launches. R and t0 of a workload on a
chip were fitted to published rows of 8 and 64 devices alone; how wrong that is at 384 and more is kept beside them. Rows,
provenance and fit: results/estimate, scripts/fit_estimate.py. They are other programs' speeds: paceline's own are in results/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.config.recipe import Recipe
from paceline.machine.published_results import Result


@dataclass(frozen=True)
class Speed:
    """b images on one rank take b / rate + fixed seconds, the exchange inside its node included."""

    rate: float  # R, images per second
    fixed: float  # t0, seconds
    basis: str  # where it comes from, in words
    slow: float = 0.0  # largest known error of a predicted rate below the published one, as a share: -0.12
    fast: float = 0.0  # the same above it: 0.2; both 0 = not known
    checked: str = ""  # on what the errors were seen, in words
    nodes: int = 1  # of the machine that it was measured on: the exchange between so many is in it already
    others: bool = False  # another program's speed

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
        1637,
        4.94e-3,
        "NVIDIA's MXNet submission, 8 and 64 A100, MLPerf v1.1",
        0.05,
        0.66,
        "1,024 A100, and 512 of v0.7",
    ),
    ("ssd", "V100-SXM"): Speed(
        630.0, 9.19e-3, "NVIDIA's PyTorch submission, DGX-1 and four DGX-2H, MLPerf v0.7", 0.24, 0.24, "1,024 V100"
    ),
    ("maskrcnn", "H100-SXM5"): Speed(
        231.6, 12.35e-3, "NVIDIA's PyTorch submission, 8 and 64 H100, MLPerf v3.0", -0.37, -0.37, "256 of 384 H100"
    ),
    ("maskrcnn", "A100-SXM4"): Speed(
        101.7,
        18.37e-3,
        "NVIDIA's PyTorch submission, 8 A100, MLPerf v2.1, and 64, whose round is not noted",
        -0.32,
        -0.32,
        "256 of 384 A100",
    ),
}

# What makes these networks' cost: of (part of the recipe, field), the value. Others have a speed of their own.
NETWORKS: dict[str, tuple[tuple[str, str, object], ...]] = {
    "classification": (("model", "trunk", "resnet"), ("model", "depth", 50), ("model", "width", 64), ("input", "size", 224)),
    "ssd": (("model", "trunk", "resnet"), ("model", "depth", 34), ("model", "width", 64), ("input", "size", 300)),
    "maskrcnn": (
        ("model", "trunk", "resnet"), ("model", "depth", 50), ("model", "width", 64), ("model", "channels", 256),
        ("input", "short", (800,)), ("input", "long", 1333),
    ),
}  # fmt: skip


def published_speed(recipe: Recipe, chip: str) -> Speed | None:
    """The fit for a recipe's workload on a chip; None where too little was published, or for another network or input."""
    if not has_published_network(recipe):
        return None
    found = (speed for (task, name), speed in PUBLISHED.items() if task == recipe.task and chip.startswith(name))
    speed = next(found, None)
    return replace(speed, others=True) if speed else None


def has_published_network(recipe: Recipe) -> bool:
    """Whether a recipe trains the network that rates were published for, on photos of the same size."""
    return recipe.task in NETWORKS and all(
        getattr(getattr(recipe, part), name) == value for part, name, value in NETWORKS[recipe.task]
    )


def row_speed(result: Result, *, exactly: bool = False) -> Speed:
    """A published row alone: its rate, whatever the size of a step.

    exactly  the row is of the very plan: recipe, system, nodes and cut
    """
    what = "published for exactly this" if exactly else "one published row"
    return Speed(result.rate, 0.0, f"{what}, {result.source}", nodes=result.nodes, others=True)


def given_speed(rate: float) -> Speed:
    """As --rate says: images per second of one rank, at this plan's images a step."""
    return Speed(rate, 0.0, f"--rate {rate:g} images/s a rank")


def measured_speed(
    images_per_second: float, images: float, published: Speed | None, what: str, nodes: int = 1
) -> Speed:
    """A run's own.

    images_per_second  of one rank
    images             of one of its steps
    published          whose share of fixed cost is taken, so that other sizes of step follow; None: the rate is taken as constant
    """
    share = published.fixed / published.seconds(images) if published else 0.0
    seconds = images / images_per_second
    fixed = share * seconds
    return Speed(images / (seconds - fixed), fixed, what, nodes=nodes)

"""What the published programs' learning rates were, step by step, beside ours: results/schedules.

    python scripts/measure_schedules.py > results/schedules/schedules.txt

Each law below is the arithmetic of a published scheduler, told step by step in its own counting, from its source file; ours is
`lr_at`. Printed: the sum of all rates of a run beside theirs, and the largest difference as a share of the peak rate.
"""

from __future__ import annotations

from bisect import bisect, bisect_right
from collections.abc import Callable, Iterator
from functools import partial

from paceline.config.plan import BatchPlan, lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.recipes import RECIPES
from paceline.config.system import System

Law = Callable[[int], float]  # 0-based step -> rate


def mxnet_poly(step: int, *, base: float, per_epoch: int, warmup: int, epochs: int, first: int = 1) -> float:
    """PolySchedule of NVIDIA's MXNet ResNet, at update number step + first. With 2 its update on zero gradients counts as one."""
    t, w, total = step + first, warmup * per_epoch, epochs * per_epoch
    return base * t / w if t <= w else 1e-4 + (base - 1e-4) * (1 - min(1.0, (t - w) / (total - w))) ** 2


def habana_poly(step: int, *, base: float = 9.0, steps_per_epoch: int = 626, warmup: int = 3, decay: int = 36) -> float:
    """PolynomialDecayWithWarmup of Habana's model/optimizer.py; it is stepped before each update."""
    warmup_steps = warmup * (steps_per_epoch - 1)
    decay_steps = decay * (steps_per_epoch - 1) - warmup_steps + 1
    last = step + 1
    if last <= warmup_steps:
        return base * last / warmup_steps
    return (base - 1e-4) * (1 - max(1, last - warmup_steps) / decay_steps) ** 2 + 1e-4


def mxnet_ssd(step: int, *, base: float, per_epoch: int, warmup: int, falls: tuple[int, int]) -> float:
    """MLPerfLearningRateScheduler of the MXNet SSD: epochs and iterations are counted from 1."""
    rate, iteration = base * 0.1 ** bisect(falls, step // per_epoch), step + 1
    return rate - (warmup - iteration) * rate / warmup if warmup > iteration else rate


def gaudi_ssd(step: int, *, base: float, per_epoch: int, cosine: bool = False) -> float:
    """Habana's SSD model.py, whose global step begins at 0; cosine is that of 1.7 and later."""
    import math

    epoch = step / per_epoch
    if not cosine:
        return base * epoch / 5 if epoch < 5 else base * (1 if epoch < 40 else 0.1 if epoch < 50 else 0.01)
    if epoch < 7:
        return base * (epoch / 7) * 1.01
    if epoch < 15:
        return base * 1.01
    share = 0.5 * (1 + math.cos(math.pi * (min(epoch, 55) - 15) / 40))
    return base * (0.01 + share)


def maskrcnn_reference(step: int) -> float:
    """WarmupMultiStepLR of the reference, stepped before each forward."""
    last = step + 1
    factor = 1 / 3 * (1 - last / 500) + last / 500 if last < 500 else 1.0
    return 0.02 * factor * 0.1 ** bisect_right((60_000, 80_000), last)


def maskrcnn_nvidia(
    step: int, *, base: float, warmup: int, ramp: float, falls: tuple[int, int], biases: bool = False
) -> float:
    """step_optimizer_state of NVIDIA's v3.0: a rate is worked out after an update, for the next one; before the first it is 0."""
    last = step - 1
    if last < 0:
        return 0.0
    rate = (2 if biases else 1) * base - ((warmup - last) * ramp if last < warmup else 0.0)
    return rate * (1.0 if last <= falls[0] else 0.1 if last < falls[1] else 0.01)


def gluoncv(step: int, *, base: float, per_epoch: int, warmup: int, factor: float, falls: tuple[int, int]) -> float:
    """train_mask_rcnn.py: iterations from 0, the ramp up to and with `warmup`, falls at epochs."""
    if step <= warmup:
        share = step / warmup
        return base * (factor * (1 - share) + share)
    return base * 0.1 ** sum(step // per_epoch >= fall for fall in falls)


def laws() -> Iterator[tuple[str, int, str, Law]]:
    """Recipe, ranks, what the law is, and the law."""
    lars = partial(mxnet_poly, base=11.0, per_epoch=401, warmup=2, epochs=37)
    yield "resnet50-mlperf-3200", 8, "as written", lars
    yield "resnet50-mlperf-3200", 8, "its zero-gradient update counted", partial(lars, first=2)
    yield "resnet50-mlperf-57344", 3584, "its zero-gradient update counted", partial(
        mxnet_poly, base=23.0, per_epoch=23, warmup=32, epochs=78, first=2)  # fmt: skip
    yield "resnet50-gaudi2-2048", 8, "as written", habana_poly
    yield "ssd-mlperf-1024", 8, "as written", partial(mxnet_ssd, base=0.1875, per_epoch=115, warmup=601, falls=(44, 55))
    yield "ssd-gaudi", 1, "as written", partial(gaudi_ssd, base=0.012, per_epoch=917)
    yield "ssd-gaudi-cosine", 1, "as written", partial(gaudi_ssd, base=0.012, per_epoch=917, cosine=True)
    yield "maskrcnn", 8, "as written", maskrcnn_reference
    for name, world, facts in (
        ("maskrcnn-nvidia-96", 8, {"base": 0.12, "warmup": 625, "ramp": 1.92e-4, "falls": (12_000, 16_000)}),
        ("maskrcnn-nvidia-256", 64, {"base": 0.24, "warmup": 2300, "ramp": 0.24 / 2300, "falls": (6_125, 8_000)}),
        ("maskrcnn-nvidia-256-48nodes", 256, {"base": 0.24, "warmup": 1800, "ramp": 1.33e-4, "falls": (5_625, 7_500)}),
    ):
        yield name, world, "weights", partial(maskrcnn_nvidia, **facts)
        yield name, world, "biases", partial(maskrcnn_nvidia, **facts, biases=True)
    yield "maskrcnn-gluoncv", 8, "as written", partial(
        gluoncv, base=0.02, per_epoch=7330, warmup=1000, factor=0.03, falls=(8, 10))  # fmt: skip
    yield "maskrcnn-gluoncv-192", 192, "as written", partial(
        gluoncv, base=0.16, per_epoch=611, warmup=1600, factor=0.001, falls=(10, 14))  # fmt: skip


def planned(name: str, world: int) -> tuple[Recipe, BatchPlan]:
    """A recipe and its plan on its own data."""
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES[recipe.target_data]
    images = recipe.global_batch_size // world
    return recipe, make_plan(recipe, System(), world=world, most=images, train_images=train, val_images=val)


def compare(name: str, world: int, what: str, law: Law) -> tuple[float, float, int]:
    """-> ours / theirs of the rates summed over a run; largest difference as a share of the peak; the steps that differ by more than
    1e-9 of it."""
    recipe, plan = planned(name, world)
    rate = recipe.optim.bias_lr_factor if what == "biases" else 1.0
    ours = [rate * lr_at(recipe, plan, step) for step in range(plan.total_steps)]
    theirs = [law(step) for step in range(plan.total_steps)]
    apart = [abs(a - b) / (rate * recipe.optim.lr) for a, b in zip(ours, theirs, strict=True)]
    return sum(ours) / sum(theirs), max(apart), sum(share > 1e-9 for share in apart)


def main() -> None:
    """Print the table."""
    print(f"{'recipe':<29}{'their rate':<34}{'sum, ours/theirs':>18}{'largest difference':>20}{'steps':>8}")
    for name, world, what, law in laws():
        ratio, largest, steps = compare(name, world, what, law)
        print(f"{name:<29}{what:<34}{ratio:>18.6f}{largest:>20.2e}{steps:>8,}")


if __name__ == "__main__":
    main()

"""The learning rate over a run: the settings of a schedule, their rules, and the rate of each step."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline._utils.errors import RecipeError
from paceline.config.constraints import AboveZero, Fraction, Help, ZeroOrMore, format_value

Unit = Literal["epochs", "fraction", "steps"]
ScheduleName = Literal["cosine", "polynomial", "multistep", "constant"]
# Those that fall until they reach min_lr, at decay_end. A schedule that is in neither this list nor multistep has no such step.
FALLS_TO_END = ("cosine", "polynomial")


@dataclass(frozen=True)
class Schedule:
    """Configure the learning rate over the run, which `learning_rate` computes for each step.

    Attributes:
        name (str): decay after the warm-up: ``"cosine"``, ``"polynomial"``, ``"multistep"``, or ``"constant"``.
        unit (str): unit of the lengths below: ``"epochs"``, ``"fraction"`` (of the run), or ``"steps"``.
        warmup (float): length of the linear warm-up, in `unit`.
        warmup_start_factor (float): learning rate at the start of the warm-up, as a fraction of `lr`.
        warmup_step_offset (int): position of the first step on the warm-up ramp: -1, 0, or 1.
        decay_start, decay_end (float): start and end of a cosine or polynomial decay, in `unit`. `decay_end` 0: the end of the run.
        milestones (tuple[float, ...]): for ``"multistep"``, ascending times at which `lr` is multiplied by `gamma`, in `unit`.
        gamma (float): for ``"multistep"``, factor on `lr` at each milestone.
        min_lr (float): learning rate at the end of a cosine or polynomial decay.
    """

    name: Annotated[ScheduleName, Help("shape of the decay after the warm-up")] = "cosine"
    unit: Annotated[Unit, Help("unit of the lengths below: epochs, fractions of the run, or steps")] = "epochs"
    warmup: Annotated[ZeroOrMore, Help("length of the linear warm-up, in `unit`")] = 0.0
    warmup_start_factor: Annotated[Fraction, Help("learning rate at the start of the warm-up, as a fraction of lr")] = 0.0
    warmup_step_offset: Annotated[Literal[-1, 0, 1], Help("position of the first step on the warm-up ramp")] = 1
    decay_start: Annotated[ZeroOrMore, Help("start of a cosine or polynomial decay, in `unit`")] = 0.0
    decay_end: Annotated[ZeroOrMore, Help("end of the decay, in `unit`; 0: the end of the run")] = 0.0
    milestones: Annotated[
        tuple[AboveZero, ...], Help("multistep: times at which lr is multiplied by gamma, in `unit`")
    ] = ()
    gamma: Annotated[AboveZero, Help("multistep: factor on lr at each milestone")] = 0.1
    min_lr: Annotated[ZeroOrMore, Help("learning rate at the end of a cosine or polynomial decay")] = 0.0


def learning_rate(
    schedule: Schedule,
    step: int,
    *,
    peak: float,
    total_steps: float,
    warmup_steps: float = 0.0,
    hold_steps: float = 0.0,
    boundaries: tuple[float, ...] = (),
) -> float:
    """Return the learning rate of step `step`, counted from 0. The function has no state to save.

    Lengths are in steps. They may be fractional, because recipes state them in epochs. t = step + 1 is the number of the update as in
    MXNet, W is warmup_steps, and T is total_steps, at which the decay ends.

    The warm-up is linear from warmup_start_factor * peak at 0 to peak at W, and is evaluated at step + schedule.warmup_step_offset.
    The offset is 1 in MXNet, so the first step is already above the start. It is 0 in GluonCV and Habana: the first step has
    warmup_start_factor * peak. It is -1 in NVIDIA's Mask R-CNN: the first step has 0, the second warmup_start_factor * peak.
    The polynomial schedule always uses t. After the warm-up:
        polynomial: min_lr + (peak - min_lr) * (1 - (t - W) / (T - W))^2, so the update t = T has min_lr
        cosine: min_lr + (peak - min_lr) * (1 + cos(pi * (step - W) / (T - W))) / 2, so the step after the last has min_lr
        multistep: peak * gamma^(number of milestones at or before step), counted from the first step, including the warm-up
        constant: peak
    The peak is held up to hold_steps, which replaces W in both formulas if it is greater. At T and later, both stay at min_lr.

    References: PolySchedule of MLPerf's MXNet ResNet (polynomial). CosineAnnealingLR and MultiStepLR of torch.optim.lr_scheduler
    (cosine and multistep), counted from the first step as in torch and MXNet.
    """
    kind, min_lr = schedule.name, schedule.min_lr
    count = step + 1 if kind == "polynomial" else step
    ramp = count if kind == "polynomial" else step + schedule.warmup_step_offset
    if ramp < 0 < warmup_steps:
        return 0.0
    # The ramp ends where it meets the decay: polynomial reads both at t, so t = W is still the ramp's (and equals the peak).
    if ramp < warmup_steps or (kind == "polynomial" and ramp <= warmup_steps):
        return peak * (schedule.warmup_start_factor + (1 - schedule.warmup_start_factor) * ramp / warmup_steps)
    if kind == "multistep":
        return peak * schedule.gamma ** bisect_right(boundaries, step)
    if kind == "constant":
        return peak
    if count >= total_steps:
        return min_lr
    # With warmup_step_offset 1 the step after the ramp can lie before W, or W be all there is: the peak, not more.
    start = max(warmup_steps, hold_steps)
    done = (count - start) / (total_steps - start) if count > start else 0.0
    left = {"polynomial": (1 - done) ** 2, "cosine": (1 + math.cos(math.pi * done)) / 2}[kind]
    return min_lr + (peak - min_lr) * left


def check_schedule(schedule: Schedule) -> None:
    """Raises RecipeError, naming the flag, where settings do not fit together."""
    for flag in ("warmup", "decay-start", "decay-end"):
        value = getattr(schedule, flag.replace("-", "_"))
        if schedule.unit == "fraction" and value > 1:
            raise RecipeError(f"--schedule.{flag} {value:g}: must be in [0, 1], because --schedule.unit is fraction.")
    if any(later <= earlier for earlier, later in zip(schedule.milestones, schedule.milestones[1:])):
        raise RecipeError(f"--schedule.milestones {format_value(schedule.milestones)}: must be ascending.")
    if schedule.name == "polynomial" and schedule.warmup_step_offset != 1:
        raise RecipeError(
            f"--schedule.warmup-step-offset {schedule.warmup_step_offset}: must be 1 with "
            "--schedule.name polynomial, which counts warm-up and decay steps from 1."
        )

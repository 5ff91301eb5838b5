"""Learning rate as a pure function of the step: nothing to save, nothing to restore wrongly.

Letters: step counts from 0   t = step + 1, as MXNet counts updates   W warm-up steps   T steps at which the decay ends
W and T may be fractions, because recipes state them in epochs.
Sources: MLPerf's MXNet ResNet (PolySchedule) for poly2; torch.optim.lr_scheduler's CosineAnnealingLR and MultiStepLR
for cosine and steps, both counted from the first step as torch and MXNet do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal

ScheduleKind = Literal["cosine", "poly2", "steps", "constant"]


def learning_rate(
    step: int,
    *,
    kind: ScheduleKind,
    peak: float,
    warmup_steps: float = 0.0,
    warmup_from: float = 0.0,
    total_steps: float,
    hold_steps: float = 0.0,
    end_lr: float = 0.0,
    boundaries: tuple[float, ...] = (),
    factor: float = 0.1,
    warmup_first: Literal[-1, 0, 1] = 1,
) -> float:
    """The learning rate of 0-based step `step`.

    Warm-up: a straight line from warmup_from * peak at 0 to peak at W, read at step + warmup_first
    (1, as MXNet counts: the first step already has some; 0, as GluonCV and Habana: the first step has warmup_from * peak;
    -1, as NVIDIA's Mask R-CNN: the first step has 0, the second warmup_from * peak);
    poly2 reads it at t, whatever warmup_first says.
    After it:
    poly2     end_lr + (peak - end_lr) * (1 - (t - W) / (T - W))^2, so the update t = T has end_lr
    cosine    end_lr + (peak - end_lr) * (1 + cos(pi * (step - W) / (T - W))) / 2, so the step after the last has end_lr
    steps     peak * factor^(boundaries at or below step); boundaries count from the first step, warm-up included
    constant  peak
    hold_steps: up to this step the peak is held; in the two formulas it takes W's place where it lies beyond W.
    At and beyond T poly2 and cosine stay at end_lr.
    """
    count = step + 1 if kind == "poly2" else step
    ramp = count if kind == "poly2" else step + warmup_first
    if ramp < 0 < warmup_steps:
        return 0.0
    # The ramp ends where it meets the decay: poly2 reads both at t, so t = W is still the ramp's (and equals the peak).
    if ramp < warmup_steps or (kind == "poly2" and ramp <= warmup_steps):
        return peak * (warmup_from + (1 - warmup_from) * ramp / warmup_steps)
    if kind == "steps":
        return peak * factor ** bisect_right(boundaries, step)
    if kind == "constant":
        return peak
    if count >= total_steps:
        return end_lr
    # With warmup_first 1 the step after the ramp can lie before W, or W be all there is: the peak, not more.
    start = max(warmup_steps, hold_steps)
    done = (count - start) / (total_steps - start) if count > start else 0.0
    left = (1 - done) ** 2 if kind == "poly2" else (1 + math.cos(math.pi * done)) / 2
    return end_lr + (peak - end_lr) * left

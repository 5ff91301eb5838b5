"""An optimizer's step as the loop takes it: rates written into its numbers, then the step."""

from __future__ import annotations

from paceline.config.plan import StepRates
from paceline.training.optim.base import Optimizer
from paceline.training.optim.step_scalars import LossScaler, StepScalars


def take(optimizer: Optimizer, lr: float, *, previous_lr: float = 0.0, scaler: LossScaler | None = None) -> None:
    """One step with numbers of its own, floats."""
    numbers = StepScalars(optimizer.optim, "cpu")
    numbers.write(StepRates(lr, previous_lr))
    optimizer.step(numbers, scaler=scaler)

"""An optimiser's step as the loop takes it: rates written into its numbers, then the step."""

from __future__ import annotations

from paceline.config.plan import Rates
from paceline.training.optim.base import Optimiser
from paceline.training.optim.step_scalars import LossScaler, StepNumbers


def take(optimiser: Optimiser, lr: float, *, previous_lr: float = 0.0, scaler: LossScaler | None = None) -> None:
    """One step with numbers of its own, floats."""
    numbers = StepNumbers(optimiser.optim, "cpu")
    numbers.write(Rates(lr, previous_lr))
    optimiser.step(numbers, scaler=scaler)

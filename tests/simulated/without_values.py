"""Where kernels write nothing, losses and weights are whatever memory held: a run must not take them for a divergence."""

from __future__ import annotations

from typing import Any


def pass_for_finite() -> None:
    """Every loss is read as 1, and every weight is finite; the device is waited for and asked as ever."""
    from paceline.training.meters import NEVER, Meters
    from paceline.training.state import State

    read, finite = Meters.read, State.is_finite

    def ones(self: Any, *words: Any, **more: Any) -> Any:
        self.first_bad.copy_(self.first_bad.new_tensor(NEVER, device="cpu"))
        means, *rest = read(self, *words, **more)
        return (dict.fromkeys(means, 1.0), *rest)

    Meters.read = ones  # type: ignore[method-assign]
    State.is_finite = lambda self: bool(finite(self)) or True  # type: ignore[method-assign]

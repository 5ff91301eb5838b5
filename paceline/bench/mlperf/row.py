"""One line of the table that logs are turned into, whoever wrote them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number that a float has room for. JSON has NaN, 1e999 and whole numbers of any length too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class Row:
    """What one log tells; None is what it does not. Numbers that are not finite are left out: nothing can be told from them."""

    file: str
    written_by: str  # paceline, MLPerf submission, GluonCV, ...
    system: str = ""
    benchmark: str = ""
    status: str = ""  # success, aborted, or "" where the log has no such word
    accelerators: int | None = None
    global_batch: int | None = None
    minutes: float | None = None  # time to train: run_start to run_stop
    epochs: float | None = None  # trained, up to the evaluation that the quality is of
    images_per_second: float | None = None  # steady: of the median epoch, the first left out
    evaluations: int | None = None
    eval_seconds: float | None = None  # of all evaluations together
    quality: dict[str, float] = field(default_factory=dict)  # of the last evaluation

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int | float) and not is_number(value):
                object.__setattr__(self, entry.name, None)
        quality = {name: value for name, value in self.quality.items() if is_number(value)}
        object.__setattr__(self, "quality", quality)

    @property
    def per_accelerator(self) -> float | None:
        """Images a second of one accelerator."""
        if self.images_per_second is None or not self.accelerators:
            return None
        return self.images_per_second / self.accelerators

    def facts(self) -> dict[str, object]:
        """For JSON, and for CSV where each metric of the quality has a column."""
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        quality = found.pop("quality")
        return {**found, "images_per_second_per_accelerator": self.per_accelerator, "quality": quality}

"""One step's batches in place of a loader: to test whether a network can learn them, and to measure a step without input."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.batch import Batch
from paceline.input.loader import Loader


class Repeated:
    """One step's batches again and again, without further reading. wait_seconds: the time to make them."""

    def __init__(
        self, batches: Sequence[Batch], *, first_step: int, last_step: int | None, wait_seconds: float = 0.0
    ) -> None:
        self._batches = list(batches)
        self.wait_seconds = wait_seconds
        self._next_step, self._last_step = first_step, last_step

    @classmethod
    def first_of(cls, loader: Loader, *, first_step: int, last_step: int | None) -> Repeated:
        """A loader's first step, which it must have. The batches are copies, so the loader is closed."""
        with loader:
            _, batches = next(loader)
            copies = [batch.to(batch.images.device, copy=True) for batch in batches]
        return cls(copies, first_step=first_step, last_step=last_step, wait_seconds=loader.wait_seconds)

    def __enter__(self) -> Repeated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step, with the same batches."""
        if self._next_step == self._last_step:
            raise StopIteration
        self._next_step += 1
        return self._next_step - 1, self._batches

    def close(self) -> None:
        """Nothing is open."""

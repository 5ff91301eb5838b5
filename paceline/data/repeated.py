"""One step's batches in place of a loader: to see whether a network can learn them, and what a step costs without input."""

from __future__ import annotations

from paceline.batch.batch import Batch
from paceline.data.loader import Loader


class Repeated:
    """One step's batches again and again, without reading anything more: what a loader costs is then nothing.

    The batches are copies, so the loader that made them is closed; it must have at least one step.
    """

    def __init__(self, loader: Loader, *, first_step: int, last_step: int | None) -> None:
        with loader:
            _, batches = next(loader)
            self._batches = [batch.to(batch.images.device, copy=True) for batch in batches]
        self.wait_seconds = loader.wait_seconds
        self._next_step, self._last_step = first_step, last_step

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

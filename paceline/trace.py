"""`--profile 50:53`: a torch profiler trace of a range of steps, readable in chrome://tracing or Perfetto."""

from __future__ import annotations

from pathlib import Path

from paceline.config.run import profile_range


class Tracer:
    """Context around the loop; told of every step. Only rank 0 records."""

    def __init__(self, steps: str, folder: Path, *, active: bool) -> None:
        self.steps = profile_range(steps) if active else range(0)
        self.file = folder / "profile" / f"steps-{self.steps.start}-{self.steps.stop}.json"
        self._profiler = None

    def __enter__(self) -> Tracer:
        if self.steps and self.steps.start == 0:
            self._begin()
        return self

    def passed(self, step: int) -> None:
        """0-based step `step` is done: begin before the first of the range, write after its last."""
        if not self.steps:
            return
        if step + 1 == self.steps.start:
            self._begin()
        elif step + 1 == self.steps.stop:
            self._end()

    def _begin(self) -> None:
        from torch.profiler import profile

        # One cycle, all of it kept: torch 2.11 warns of anything else.
        self._profiler = profile(record_shapes=True, acc_events=True)
        self._profiler.__enter__()

    def _end(self) -> None:
        if self._profiler is None:
            return
        self._profiler.__exit__(None, None, None)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self.file))
        self._profiler = None

    def __exit__(self, *_) -> None:
        self._end()

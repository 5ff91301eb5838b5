"""`--profile`: record a range of steps for a profiler.

50:53        a file: torch's trace of steps 51, 52 and 53, readable in chrome://tracing or Perfetto; rank 0 writes it
nvtx:50:53   no file: NVIDIA's Nsight Systems is running around us and records these steps, each rank's own:
                 nsys profile --capture-range=cudaProfilerApi paceline train RECIPE --profile nvtx:50:53

In both, a step is a range "step 51", numbered as in the log, from the end of the step before. The range contains "forward",
"backward" and "update" (paceline/training/step.py) with their operations. CUPTI, which both use, serves one of them at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from paceline._utils.atomic_write import atomic_writer
from paceline.config.run import parse_profile_steps


class Tracer:
    """A context around the loop, which calls it after every step."""

    def __init__(self, requested: str, folder: Path, *, main: bool) -> None:
        """
        requested  as Controls.profile has it; empty: nothing is recorded
        folder   the run's
        main     whether this is rank 0
        """
        self.asked, self.nvtx = parse_profile_steps(requested)  # on every rank alike
        self.steps = self.asked if main or self.nvtx else range(0)
        self.file = folder / "profile" / f"steps-{self.steps.start}-{self.steps.stop}.json"
        self._window: ExitStack | None = None
        self._range = ExitStack()

    def __enter__(self) -> Tracer:
        return self

    def starts_at(self, step: int) -> None:
        """0-based step `step` is the first of this process; a resumed run may be inside its range already."""
        if step in self.steps:
            self._open()
            self._name(step)

    def passed(self, step: int) -> None:
        """0-based step `step` is done: begin before the first of the range, write after its last."""
        if not self.steps:
            return
        self._range.close()
        if step + 1 in self.steps:
            if self._window is None:
                self._open()
            self._name(step + 1)
        elif self._window is not None:
            self._close()

    def _open(self) -> None:
        self._window = ExitStack()
        if self.nvtx:
            torch.cuda.profiler.start()
            self._window.callback(torch.cuda.profiler.stop)
            self._window.enter_context(torch.autograd.profiler.emit_nvtx())
            return
        from torch.profiler import profile

        # One cycle, all of it kept: torch 2.11 warns of anything else.
        profiler = profile(record_shapes=True, acc_events=True)
        self._window.callback(lambda: self._write(profiler))
        self._window.enter_context(profiler)

    def _name(self, step: int) -> None:
        self._range.enter_context(torch.profiler.record_function(f"step {step + 1}"))

    def _write(self, profiler: torch.profiler.profile) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(self.file) as part:
            profiler.export_chrome_trace(str(part))

    def _close(self) -> None:
        self._range.close()
        if self._window is not None:
            self._window.close()
            self._window = None

    def __exit__(self, *_) -> None:
        self._close()

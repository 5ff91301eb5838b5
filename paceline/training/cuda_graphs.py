"""`--system.cuda-graph on`: a step is captured once for each kind of batches, and replayed: the host sends one command, not thousands.

A capture holds addresses, not values, and no Python. What changes from step to step must therefore be in tensors that keep their
addresses: batches are copied into tensors of the capture's own, rates into the step's numbers (training/optim/step_scalars.py), and
whatever else a step reads is loaded, averaged and restored by copying, never by rebinding, in evaluations, checkpoints and resumed
runs. Gradients are the one exception, and need no care: each capture makes its own, and drops them before its end.

Captures share one memory pool. Losses are in it too, so they are valid until the next step is taken.
Tests replay a step's operations in this file's order on a CPU (test_cuda_graphs.py). What one H200 showed is in results/gpu.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline._utils.errors import RecipeError
from paceline.config.system import System
from paceline.data.batch import Batch

Losses = dict[str, Tensor]
# Kinds of batches of one run: more than any ladder of input shapes has. Each costs seconds and memory.
MAX_CAPTURES = 16
# Steps that are thrown away before a capture, in which libraries choose kernels and allocate. torch's notes on CUDA graphs ask for
# 11 of data parallel, which looks at its own pace in the first ten.
WARM_UPS, WARM_UPS_OF_RANKS = 3, 11


class Capture(Protocol):
    """Records the work that a device is sent: CUDA's own, or a test's."""

    def aside(self) -> AbstractContextManager[None]:
        """Run on the capture stream; warm-up happens here too."""
        ...

    def __call__(self, work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        """Record what `work` sends, without running it; -> (a function that runs it, the tensors of its result)."""
        ...


class CudaGraphs:
    """Captures as CUDA graphs, all in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """See `Capture.aside`: a stream of its own, after all earlier work and before all later work."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            yield
        here.wait_stream(self.stream)

    def __call__(self, work: Callable[[], Losses]) -> tuple[Callable[[], None], Losses]:
        """See `Capture.__call__`."""
        graph = torch.cuda.CUDAGraph()
        # The loader's threads copy while this one captures: their work is no part of it, and no error.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            losses = work()
        return graph.replay, losses


def choose_capture(system: System, device: torch.device) -> Capture | None:
    """The capture of steps where the system asks for it; None: every step is sent again."""
    return CudaGraphs(device) if system.cuda_graph == "on" else None


class GraphedStep(ABC):
    """A step that is captured once for each kind of batches and replayed; without a capture, it is sent again each time."""

    late_captures = 0  # kinds of batches captured during training: their first step took seconds longer

    def __init__(self, capture: Capture | None, ranks: int, forwards: int) -> None:
        """
        ranks     that exchange gradients in a step
        forwards  batches of a step
        """
        self.capture, self.forwards = capture, forwards
        self.warm_ups = WARM_UPS if ranks == 1 else WARM_UPS_OF_RANKS
        self._own: dict[tuple, list[Batch]] = {}  # of each kind, the batches that replace the loader's
        self._known: dict[tuple, tuple[Callable[[], None], Losses]] = {}  # replays the step; its losses

    @property
    def captures(self) -> int:
        """Kinds of batches whose step is replayed."""
        return len(self._known)

    @abstractmethod
    def run_step(self, batches: Sequence[Batch]) -> Losses:
        """The step itself, on batches on the device; the host reads nothing of it."""

    @abstractmethod
    def discard(self, batches: Sequence[Batch]) -> None:
        """The step, and undo it."""

    def _take(self, batches: Sequence[Batch], replay: bool) -> Losses:
        """Take the step, replayed where `replay` asks for it and steps are captured. Raises RecipeError as `prepare`."""
        if self.capture is None or not replay:
            return self.run_step(batches)
        kind = _kind(batches)
        if kind not in self._known:
            self.late_captures += 1
            self.prepare(batches)
        for own, batch in zip(self._own[kind], batches):
            for mine, new in zip(_tensors(own), _tensors(batch)):
                mine.copy_(new, non_blocking=True)
        run_again, losses = self._known[kind]
        run_again()
        return dict(losses)

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Do what the first step on such batches does besides: compile, allocate, settle. Nothing changes.

        batches  may be fewer than a step's: then the first is used for all where a whole step is captured
        Each of several kinds is warmed up before any is captured: a capture keeps its memory.
        Raises RecipeError for one kind too many to be captured.
        """
        if self.capture is None:
            self.discard(batches)
            return
        batches = self._all(batches)
        kind = _kind(batches)
        if kind in self._own:
            return
        if len(self._own) >= MAX_CAPTURES:
            raise RecipeError(
                f"--system.cuda-graph: images of {tuple(batches[0].images.shape)} exceed the limit of {MAX_CAPTURES} captured batch "
                "shapes. Train with fewer input shapes, or set --system.cuda-graph off."
            )
        self._own[kind] = own = [batch.to(batch.images.device, copy=True) for batch in batches]
        with self.capture.aside():
            for _ in range(self.warm_ups):
                self.discard(own)

    def prepare(self, batches: Sequence[Batch]) -> None:
        """Capture steps on such batches, after their warm-up; without a capture, do nothing. No step is taken.

        Raises RecipeError as `warm_up`, and for a step that cannot be captured.
        """
        batches = self._all(batches)
        kind = _kind(batches)
        if self.capture is None or kind in self._known:
            return
        self.warm_up(batches)
        try:
            self._known[kind] = self.capture(partial(self.run_step, self._own[kind]))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            raise RecipeError(
                f"--system.cuda-graph: the step is not capturable ({str(problem).splitlines()[0]}). Set --system.cuda-graph off."
            ) from problem

    def close(self) -> None:
        """Release all captures before ranks disconnect: NCCL waits for ever to close a connection that a graph holds."""
        self._known.clear()

    def _all(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        return batches if len(batches) == self.forwards else [batches[0]] * self.forwards


def _kind(batches: Sequence[Batch]) -> tuple:
    return tuple((type(batch), *((part.shape, part.dtype) for part in _tensors(batch))) for batch in batches)


def _tensors(batch: Batch) -> list[Any]:
    return [getattr(batch, field.name) for field in fields(batch)]

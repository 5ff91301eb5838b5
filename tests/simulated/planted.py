"""Errors planted on the simulated device, each in a process that goes on: which of them it catches, as JSON.

    python tests/simulated/planted.py KIND ...      capture, landing, replay; on the device: through device.run

Beside each planted error stands the same work without it, which must pass: name -> [caught with the error, caught without].
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import device
import torch
from torch import Tensor

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "gpu"), str(TESTS.parent)]
CUDA = torch.device("cuda", 0)


# ---- captures
def host_read(x: Tensor) -> None:
    x.sum().item()


def shape_from_values(x: Tensor) -> None:
    x[x > 0].sum()


def host_constant(x: Tensor) -> None:
    x * torch.tensor([2.0], device=CUDA)


def wait(x: Tensor) -> None:
    torch.cuda.synchronize()


def pinned_memory(x: Tensor) -> None:
    x.copy_(PINNED, non_blocking=True)


def stream_left_open(x: Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x + 1


def joined_too_early(x: Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda.current_stream().record_event(event := torch.cuda.Event())
        x + 1
    torch.cuda.current_stream().wait_event(event)


def work_outside(x: Tensor) -> None:
    torch.cuda.current_stream().wait_event(OUTSIDE)


def looked_at_event(x: Tensor) -> None:
    event = torch.cuda.Event()
    event.record()
    event.query()


def leaf_of_the_default_stream(x: Tensor) -> None:
    # LEAF's gradient is added up on the stream where LEAF was used first: the default stream would wait.
    (LEAF * 2).sum().backward()


def nothing_wrong(x: Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x + 1
    torch.cuda.current_stream().wait_stream(side)
    x.mul_(2).sum()


CAPTURES = (
    host_read, shape_from_values, host_constant, wait, pinned_memory, stream_left_open, joined_too_early, work_outside,
    looked_at_event, leaf_of_the_default_stream,
)  # fmt: skip


def captured(body: Callable[[Tensor], None], graph: Any) -> bool:
    """Whether the device or torch objected."""
    watch, x = device.Watch(), torch.ones(8, device=CUDA)
    try:
        with torch.cuda.graph(graph):
            body(x)
    except RuntimeError:
        return True
    finally:
        watch.close()
    return bool(watch.broken_rules())


# ---- the loader's memory, copies late
def landing(plant: Callable[[], Any] | None) -> bool:
    """Whether batches differ from the CPU's."""
    from test_loader_on_cuda import CPU, copies

    with plant() if plant else mock.patch.object(torch, "planted", None, create=True):
        mine = copies(CUDA, slow=True)
    theirs = copies(CPU, slow=False)
    return not all(
        torch.equal(one, other) for step in zip(mine, theirs, strict=True) for one, other in zip(*step, strict=True)
    )


def instead(name: str, does: Callable[..., Any]) -> Callable[[], Any]:
    from paceline.data.loader.device_buffers import DeviceBuffer

    return lambda: mock.patch.object(DeviceBuffer, name, does)


@contextmanager
def no_wait_for_the_consumer() -> Iterator[None]:
    """The copies do not wait for what the consumer still reads."""
    from paceline.data.loader.device_buffers import DeviceBuffer

    bring = DeviceBuffer.copy_async

    def early(self: Any, batches: Any) -> Any:
        with mock.patch.object(self, "_given_back", torch.cuda.Event()):
            return bring(self, batches)

    with mock.patch.object(DeviceBuffer, "copy_async", early):
        yield


def landings() -> dict[str, Callable[[], Any]]:
    return {
        "the consumer does not wait for the copies": instead("publish", lambda self: None),
        "the host overwrites pinned memory that is not copied yet": instead("synchronize", lambda self: None),
        "the consumer gives back without a mark": instead("release", lambda self: None),
        "the copies do not wait for the consumer": no_wait_for_the_consumer,
    }


def freed_too_early(planted: bool) -> bool:
    """Whether memory that another stream still reads was overwritten, because nobody said that it reads."""
    gc.collect()
    torch.cuda.empty_cache()  # so that the allocator has no other block to give
    size = 8 << 20
    side, source = torch.cuda.Stream(), torch.full((size,), 1.0, device=CUDA)
    target = torch.zeros(size, device=CUDA)
    torch.cuda.synchronize()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(source, non_blocking=True)
    if not planted:
        source.record_stream(side)
    place = source.data_ptr()
    del source
    other = torch.full((size,), 2.0, device=CUDA)
    assert (other.data_ptr() == place) == planted
    torch.cuda.current_stream().synchronize()  # before the side stream has read
    side.synchronize()
    return float(target[0]) != 1.0


# ---- replays
@contextmanager
def rate_of_the_first_step() -> Iterator[None]:
    """Rates are written once: what a float in the captured step would be."""
    from paceline.training.optim.step_scalars import StepScalars

    write, written = StepScalars.write, set()

    def once(self: Any, rates: Any) -> None:
        if id(self) not in written:
            write(self, rates)
        written.add(id(self))

    with mock.patch.object(StepScalars, "write", once):
        yield


@contextmanager
def buffers_bound_anew() -> Iterator[None]:
    """After the capture the model's running statistics are other tensors, which the graph does not know."""
    from paceline.training.step import TrainStep

    call = TrainStep.__call__

    def then(self: Any, *words: Any) -> Any:
        found = call(self, *words)
        if self.captures:
            for module in self.state.model.modules():
                if getattr(module, "running_mean", None) is not None:
                    module.running_mean = module.running_mean.clone()
        return found

    with mock.patch.object(TrainStep, "__call__", then):
        yield


def replayed(plant: Callable[[], Any] | None) -> bool:
    """Whether a replayed run differs from one that is sent."""
    from test_replay_on_cuda import batches_of, trainer

    from paceline.config.plan import step_rates

    states = []
    for graph in (False, True):
        recipe, plan, state, take = trainer("classification", graph=graph)
        with plant() if plant and graph else mock.patch.object(torch, "planted", None, create=True):
            for step in range(4):
                take(batches_of(recipe, plan, step), step_rates(recipe, plan, step))
        states.append(state.model.state_dict())
    return not all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def main(kind: str) -> dict[str, list[bool]]:
    if kind == "capture":
        global PINNED, OUTSIDE, LEAF, KEPT
        PINNED, OUTSIDE = torch.ones(8).pin_memory(), torch.cuda.Event()
        OUTSIDE.record()
        LEAF = torch.ones(8, device=CUDA, requires_grad=True)
        KEPT = LEAF * 3  # keeps the node that adds up LEAF's gradient, with its stream
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        right = captured(nothing_wrong, torch.cuda.CUDAGraph())
        return {body.__name__.replace("_", " "): [captured(body, torch.cuda.CUDAGraph()), right] for body in CAPTURES}
    if kind == "landing":
        right = landing(None)
        # Threads are not always late where the error needs it: five tries.
        found = {name: [any(landing(plant) for _ in range(5)), right] for name, plant in landings().items()}
        return {**found, "memory freed while another stream reads it": [freed_too_early(True), freed_too_early(False)]}
    right = replayed(None)
    return {
        plant.__name__.replace("_", " "): [replayed(plant), right] for plant in (rate_of_the_first_step, buffers_bound_anew)
    }


if __name__ == "__main__":
    print(json.dumps({name: caught for kind in sys.argv[1:] for name, caught in main(kind).items()}), flush=True)
    os._exit(0)  # after an error in a backward, torch 2.15 may abort as the interpreter ends

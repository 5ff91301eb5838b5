"""The loader's memory on a GPU: batches stay whole however late a kernel reads them, and steps allocate nothing.

The same order is held on stand-in streams by tests/data/test_device_buffers.py. Run by scripts/gpu/campaign.py; CI has no GPU, so
these skip there.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_steps import batch_of, plan_of, small, state_of
from stand_ins import made_up
from torch import Tensor

from paceline.config.plan import step_rates
from paceline.config.system import System
from paceline.data.batch import Objects, detection_batch
from paceline.data.loader.loader import Loader
from paceline.data.loader.slots import MicroBatch
from paceline.distributed.device.timing import find_host_wait
from paceline.training.step import TrainStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SHAPES, STEPS = ((96, 128), (128, 96), (64, 64)), 24
SLOW = 20_000_000  # cycles of a GPU's clock: some ten milliseconds


def schedule(step: int) -> list[MicroBatch]:
    first = np.arange(4) + 100 * step
    return [MicroBatch(np.full(4, step), numbers, SHAPES[step % 3]) for numbers in (first, first + 50)]


def paint(epoch: int, index: int, out: np.ndarray) -> None:
    out[...] = (np.arange(out.size).reshape(out.shape) + 7 * index + epoch) % 251


def objects(index: int) -> Objects:
    return Objects(np.full((index % 5, 4), index, np.float32), np.full(index % 5, 1 + index))


def a_loader(device: torch.device, **more) -> Loader:
    options = {
        **made_up(paint, objects), "schedule": schedule, "last_step": STEPS, "threads": 4, "prefetch": 2,
        "image_shape": (128, 128, 3), "device": device,
        "make_batch": lambda images, labels, indices: detection_batch(images, labels, indices, least=8),
    }  # fmt: skip
    return Loader(**{**options, **more})


def copies(device: torch.device, *, slow: bool) -> list[list[Tensor]]:
    """All tensors of each step, as a kernel sees them that is sent while the step is the consumer's."""
    found = []
    with a_loader(device) as loader:
        for _, batches in loader:
            if slow:
                torch.cuda._sleep(SLOW)
            found.append([tensor.clone() for batch in batches for tensor in batch.tensors().values()])
    return [[tensor.cpu() for tensor in step] for step in found]


@pytest.mark.parametrize("slow", [True, False])
def test_a_kernel_sees_the_batch_of_its_own_step_however_late_it_runs(slow: bool) -> None:
    for mine, theirs in zip(copies(CUDA, slow=slow), copies(CPU, slow=False), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_steps_allocate_nothing_on_the_device_and_never_wait_for_it() -> None:
    with a_loader(CUDA) as loader:
        for _ in range(4):
            next(loader)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats(CUDA)["allocation.all.allocated"]
        assert find_host_wait(lambda: [next(loader) for _ in range(12)], CUDA) == ""
        assert torch.cuda.memory_stats(CUDA)["allocation.all.allocated"] == before


def test_one_loader_after_another_takes_the_same_memory() -> None:
    def reserved() -> int:
        with a_loader(CUDA) as loader:
            next(loader)
        return torch.cuda.memory_reserved(CUDA)

    reserved()
    assert reserved() == reserved()


def test_a_step_is_captured_while_the_loader_copies() -> None:
    recipe, system = small("classification"), System("cuda", precision="fp32", cuda_graph="on")
    plan = plan_of(recipe, system)
    take = TrainStep(state_of(recipe, plan, system, CUDA), plan, system, CUDA)
    steps = 0
    with a_loader(CUDA, last_step=None) as loader:
        for step, batches in loader:
            if step == 3:
                take.prepare([batch_of(recipe, plan.micro_batch_size, 0).to(CUDA)] * plan.micro_batches)
            seen = torch.stack([batch.indices for batch in batches]).flatten()
            assert seen.tolist() == np.concatenate([forward.indices for forward in schedule(step)]).tolist()
            steps += 1
            if steps == 12:
                break
    losses = take([batch_of(recipe, plan.micro_batch_size, 0).to(CUDA)] * plan.micro_batches, step_rates(recipe, plan, 0))
    assert take.captures == 1 and bool(losses["loss"].isfinite())

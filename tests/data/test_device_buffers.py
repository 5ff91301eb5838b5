"""Batches on a device whose copies run beside its kernels: kept memory, never overwritten before its last use, on stand-in streams."""

from __future__ import annotations

import threading
from typing import get_args

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from lazy_streams import Eager, LazyStreams
from stand_ins import made_up
from torch.utils import _python_dispatch

import paceline.data.loader.loader as loader_module
from paceline.data.batch import ALIGNMENT, DetectionBatch, Objects, RepeatBatch, count_bytes, detection_batch, view_tensors
from paceline.data.loader.device_buffers import DeviceBuffer, copy_stream
from paceline.data.loader.loader import Loader
from paceline.data.loader.slots import MicroBatch

CPU = torch.device("cpu")
SHAPE = (6, 8, 3)
SHAPES = ((6, 8), (8, 6), (2, 3), (5, 5))
STEPS = 11


def schedule(step: int) -> list[MicroBatch]:
    """Two forwards, of a shape that changes from step to step."""
    first = np.arange(3) + 100 * step
    return [MicroBatch(np.full(3, step), numbers, SHAPES[step % len(SHAPES)]) for numbers in (first, first + 10)]


def paint(epoch: int, index: int, out: np.ndarray) -> None:
    out[...] = (np.arange(out.size).reshape(out.shape) + 7 * index + epoch) % 251


def objects(index: int) -> Objects:
    """Some, or none."""
    return Objects(np.full((index % 3, 4), index, np.float32), np.full(index % 3, index + 1))


def boxed(images, labels, indices) -> DetectionBatch:
    return detection_batch(images, labels, indices, least=3)


def a_loader(**more) -> Loader:
    options = {
        **made_up(paint, objects), "schedule": schedule, "last_step": STEPS, "threads": 2, "prefetch": 2,
        "image_shape": SHAPE, "device": CPU, "make_batch": boxed,
    }  # fmt: skip
    return Loader(**{**options, **more})


@pytest.fixture(scope="module")
def expected() -> list[list[dict[str, torch.Tensor]]]:
    """Every batch's tensors, from a loader on the CPU."""
    with a_loader() as loader:
        return [[{k: t.clone() for k, t in batch.tensors().items()} for batch in batches] for _, batches in loader]


def seen(streams: LazyStreams, loader: Loader) -> list[list[dict[str, torch.Tensor]]]:
    """What kernels see that are sent while each step is the consumer's."""
    found: list[list[dict[str, torch.Tensor]]] = []
    with loader:
        for _, batches in loader:
            found.append([{} for _ in batches])
            for batch, copies in zip(batches, found[-1]):
                for name, tensor in batch.tensors().items():
                    streams.launch(lambda c=copies, n=name, t=tensor: c.update({n: t.clone()}))
    streams.finish()
    return found


def same(left, right) -> bool:
    for ours, theirs in zip(left, right, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    return True


@pytest.fixture
def stand_in(monkeypatch):
    """Makes streams, which loaders on the CPU then take for a device's."""
    # That somebody is in a mode torch notes for all threads alike: of several the last to leave may leave it noted, and nothing
    # would be compiled in this process any more (torch 2.9).
    for name in [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]:
        monkeypatch.setattr(_python_dispatch, name, False)

    def make(eager: Eager) -> LazyStreams:
        lazy = LazyStreams(eager)
        monkeypatch.setattr(loader_module, "get_stream_module", lambda device: lazy)
        return lazy

    return make


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("eager", get_args(Eager))
def test_kernels_see_the_batches_of_their_own_step_however_late_they_run(expected, stand_in, eager, prefetch):
    streams = stand_in(eager)
    assert same(seen(streams, a_loader(prefetch=prefetch, io_threads=prefetch - 1)), expected)


@pytest.mark.parametrize(
    ("gap", "eager"),
    [("publish", "consumer"), ("synchronize", "consumer"), ("synchronize", "nobody"), ("release", "copies")],
)  # fmt: skip
def test_each_wait_of_the_protocol_is_needed(expected, stand_in, gap, eager, monkeypatch):
    monkeypatch.setattr(DeviceBuffer, gap, lambda self: None)
    with pytest.raises(AssertionError):
        same(seen(stand_in(eager), a_loader()), expected)


def test_only_the_consumer_waits_for_its_own_work(stand_in):
    """A thread of the loader that did would be late with the next batch, which counts as waiting for input.

    One thread, so steps are finished in order. Where a later one is finished first, its copies come first on their stream, behind
    the work that used its memory before, and a thread that opens the next step waits for both.
    """
    streams = stand_in("nobody")
    with a_loader(prefetch=1, threads=1) as loader:
        for _ in loader:
            streams.launch(lambda: None)
        assert streams.waited_for_consumer == {threading.current_thread().name}
    streams.finish()


def test_a_closed_loaders_memory_is_used_again_after_the_consumers_last_work(expected, stand_in):
    streams, found = stand_in("copies"), {}
    with a_loader() as loader:
        _, (batch, _) = next(loader)
        streams.launch(lambda: found.update(images=batch.images.clone()))
    copying = copy_stream(streams, CPU)
    copying.send(lambda: batch.images.zero_())  # the next owner's copy
    streams.finish()
    assert torch.equal(found["images"], expected[0][0]["images"])


def test_batches_that_were_rendered_on_the_device_land_as_well(expected, stand_in):
    def render_batch(data, draws, shape):
        images = np.empty((len(draws), *shape, 3), np.uint8)
        for one, draw, out in zip(data, draws, images):
            made_up(paint)["render"](one, draw, out)
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    assert same(seen(stand_in("nobody"), a_loader(render_batch=render_batch)), expected)


def test_one_batch_repeated_outlives_its_loader(expected, stand_in):
    streams = stand_in("copies")  # what is not launched is done at once
    copied = RepeatBatch.first_of(a_loader(), first_step=0, last_step=2)
    streams.finish()
    for batch, wanted in zip(copied._batches, expected[0], strict=True):
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in batch.tensors().items())


def test_steps_allocate_nothing_where_the_largest_is_known_beforehand(stand_in):
    largest = [boxed(torch.empty(3, 6, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2), [objects(2)] * 3, torch.zeros(3))] * 2
    streams = stand_in("nobody")
    with a_loader(like=[batch.to("meta") for batch in largest], last_step=3 * STEPS) as loader:
        landings = [slot.landing for slot in loader._ring]
        first = [(each._memory.data_ptr(), each._pinned.data_ptr()) for each in landings]
        storages = {
            tensor.untyped_storage().data_ptr() for _, batches in loader for b in batches for tensor in vars(b).values()
        }
        assert [(each._memory.data_ptr(), each._pinned.data_ptr()) for each in landings] == first
    assert storages == {memory for memory, _ in first} and len(storages) == 3
    assert all(each.room == count_bytes([t for b in largest for t in vars(b).values()]) for each in landings)
    streams.finish()


def test_memory_grows_to_the_largest_step_and_no_further(stand_in):
    """Ten shapes do not cost ten times the memory."""
    streams = stand_in("nobody")
    with a_loader(prefetch=1) as loader:
        sizes = [loader._held.landing.room for _ in loader]
    assert max(sizes) == sizes[-1] == sizes[-2] and sizes[4:] == [max(sizes)] * (STEPS - 4)
    streams.finish()


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), max_size=4),
            st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.bool, torch.bfloat16]),
            st.randoms(use_true_random=False),
        ),
        max_size=6,
    )
)
def test_tensors_lie_in_a_flat_memory_as_they_lie_by_themselves(drawn):
    tensors = []
    for shape, dtype, random in drawn:
        order = random.sample(range(len(shape)), len(shape))
        tensors.append(torch.randint(0, 2, shape).to(dtype).permute(order))
    memory = torch.full((count_bytes(tensors),), 255, dtype=torch.uint8)
    views = view_tensors(tensors, memory)
    for view, tensor in zip(views, tensors):
        view.copy_(tensor)
    for view, tensor in zip(views, tensors, strict=True):
        assert view.dtype == tensor.dtype and torch.equal(view, tensor)  # none of them touches another
        assert not tensor.numel() or view.stride() == torch.empty_like(tensor).stride()
        assert view.data_ptr() == 0 or (view.data_ptr() - memory.data_ptr()) % ALIGNMENT == 0
    assert len(memory) < sum(tensor.nbytes + ALIGNMENT for tensor in tensors) or not tensors


def test_an_evaluation_that_has_nothing_in_a_step_lands_too(stand_in):
    """The loader is made in inference mode, whose tensors its threads could not write to; a step's first batches are empty."""

    def evaluation(step: int) -> list[MicroBatch]:
        numbers = np.arange(3 * (step % 2)) + 10 * step
        return [MicroBatch(np.zeros_like(numbers), numbers)]

    streams = stand_in("nobody")
    with torch.inference_mode():
        found = seen(streams, a_loader(schedule=evaluation, last_step=5))
    assert [step[0]["indices"].tolist() for step in found] == [[], [10, 11, 12], [], [30, 31, 32], []]

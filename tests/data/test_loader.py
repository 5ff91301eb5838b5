"""The loader: any number of threads gives the same batches, in order, from any step, and ends cleanly."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises
from stand_ins import InMemory, drawn, made_up, tiny_photo

import paceline.data.loader.loader as loader_module
import paceline.data.loader.slots as overdue
from paceline._utils.errors import DataError
from paceline.data.batch import Batch, RepeatBatch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, evaluation_shard, stream_positions
from paceline.data.loader.slots import MicroBatch, ReadWatchdog
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header

CPU = torch.device("cpu")
SHAPE = (5, 7, 3)


def _noise(epoch: int, index: int, out: np.ndarray) -> None:
    """Pixels from the sample's key; slower for some samples, so that threads finish out of order."""
    random = SampleRng(11, epoch, index)
    if index % 5 == 0:
        time.sleep(0.001)
    out[...] = np.frombuffer(random.bits().to_bytes(8, "little") * 14, np.uint8)[: out.size].reshape(out.shape)


NOISE = made_up(_noise)


def _stream(n: int, batch: int, forwards: int = 1):
    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        epochs, indices = batch_indices(n, stream_positions(step=step, global_batch_size=batch, forwards=forwards), seed=4)
        return list(zip(np.split(epochs, forwards), np.split(indices, forwards)))

    return schedule


def _collect(*, threads: int, first_step: int = 0, last_step: int | None = 6, forwards: int = 2, **more):
    options = {**NOISE, "schedule": _stream(23, 12, forwards), "device": CPU, "image_shape": SHAPE}
    found = []
    with Loader(**{**options, **more}, threads=threads, first_step=first_step, last_step=last_step) as loader:
        for step, batches in loader:
            found.append((step, [(b.images.clone(), b.labels, b.indices) for b in batches]))
    return found


def _equal(left, right) -> bool:
    assert [step for step, _ in left] == [step for step, _ in right]
    assert all(
        torch.equal(a, b)
        for (_, ours), (_, theirs) in zip(left, right)
        for one, two in zip(ours, theirs)
        for a, b in zip(one, two)
    )
    return True


class Clock:
    """In the place of the module time: it stands still but where a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = 0.0  # how far it goes whenever the consumer looks at it
        self.looked_at = threading.Event()  # by the consumer: threads take the time by monotonic()

    def perf_counter(self) -> float:
        now = self.now = self.now + self.pace
        self.looked_at.set()
        return now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The loader's own, and that of what is overdue."""
    made = Clock()
    for module in (loader_module, overdue):
        monkeypatch.setattr(module, "time", made)
    return made


def _loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader-")]


def test_batches_hold_the_samples_that_the_schedule_names_in_its_order():
    found = _collect(threads=3)
    assert [step for step, _ in found] == list(range(6))
    for step, batches in found:
        assert len(batches) == 2
        for (images, labels, indices), (epochs, wanted) in zip(batches, _stream(23, 12, 2)(step)):
            assert images.shape == (6, 3, 5, 7)
            assert images.dtype == torch.uint8
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert indices.tolist() == wanted.tolist()
            assert labels.tolist() == [index % 10 for index in wanted]
            for position, (epoch, index) in enumerate(zip(epochs, wanted)):
                expected = np.empty(SHAPE, np.uint8)
                _noise(int(epoch), int(index), expected)
                np.testing.assert_array_equal(images[position].permute(1, 2, 0).numpy(), expected)


def test_one_two_and_four_threads_give_the_same_pixels():
    one = _collect(threads=1)
    assert _equal(one, _collect(threads=2))
    assert _equal(one, _collect(threads=4, prefetch=5))
    with pytest.raises(AssertionError):
        _equal(one, _collect(threads=1, first_step=1, last_step=7))


@pytest.mark.parametrize(("threads", "io_threads", "prefetch"), [(1, 1, 1), (3, 2, 1), (2, 7, 4)])
def test_fetching_ahead_gives_the_same_batches(threads, io_threads, prefetch):
    fetching = {"threads": threads, "io_threads": io_threads, "prefetch": prefetch}
    assert _equal(_collect(threads=1), _collect(**fetching))
    assert _equal(_collect(threads=1, schedule=_shaped), _collect(**fetching, schedule=_shaped))


def test_as_many_reads_are_under_way_at_once_as_there_are_fetch_threads():
    """Four reads that wait for each other: one decoding thread that read by itself, or three fetch threads, never get past it."""
    meeting = threading.Barrier(4, timeout=10)

    class Waiting(InMemory):
        def read(self, i):
            meeting.wait()
            return super().read(i)

    records = Waiting([tiny_photo()])
    assert _equal(_collect(threads=1, io_threads=4, records=records), _collect(threads=1))
    meeting = threading.Barrier(4, timeout=0.2)
    with pytest.raises(threading.BrokenBarrierError):
        _collect(threads=1, io_threads=3, records=records)


def test_empty_steps_between_full_ones_pass_the_fetch_threads():
    """A step without samples is ready as it is opened, and its slot may hold a later step before a decoder looks for it."""

    def schedule(step):
        indices = np.arange(step % 3 // 2 * 5) + step
        return [(np.zeros_like(indices), indices)]

    for prefetch in (1, 2, 3):
        found = _collect(threads=2, io_threads=3, prefetch=prefetch, last_step=60, schedule=schedule)
        assert [batches[0][2].tolist() for _, batches in found] == [schedule(step)[0][1].tolist() for step in range(60)]


def test_bytes_are_fetched_ahead_by_the_ring_and_no_further():
    asked, go_on = [], threading.Event()

    class Counted(InMemory):
        at_once = 4

        def read_many(self, numbers):
            asked.extend(numbers)
            time.sleep(0.005)  # a decoder that would not wait would read it too
            return super().read_many(numbers)

    def paint(epoch, index, out):
        go_on.wait(10)

    def schedule(step):
        return [(np.zeros(10, np.int64), np.arange(10) + 10 * step)]

    options = {**made_up(paint), "records": Counted([tiny_photo()]), "schedule": schedule}
    with Loader(**options, threads=1, io_threads=3, prefetch=2, image_shape=SHAPE, device=CPU) as loader:
        deadline = time.monotonic() + 10
        while len(asked) < 30 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        assert sorted(asked) == list(range(30))  # three slots, and no sample is rendered yet
        go_on.set()
        assert [next(loader)[1][0].indices.tolist() for _ in range(4)] == [schedule(s)[0][1].tolist() for s in range(4)]
    assert not _loader_threads()


@pytest.mark.parametrize("io_threads", [0, 2])
def test_a_batch_renderer_that_loops_the_plain_one_gives_the_same_batches(io_threads):
    asked = []

    def render_batch(data, draws, shape):
        asked.append((len(data), len(draws), shape))
        images = np.empty((len(draws), *shape, 3), np.uint8)
        for one, draw, out in zip(data, draws, images):
            assert one == NOISE["records"].read(0)
            NOISE["render"](one, draw, out)
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    found = _collect(threads=3, io_threads=io_threads, schedule=_shaped, render_batch=render_batch)
    assert _equal(found, _collect(threads=1, schedule=_shaped))
    assert sorted(asked) == sorted((3, 3, forward.shape) for step in range(6) for forward in _shaped(step))


def test_starting_at_a_step_gives_the_same_batches_as_walking_there():
    whole = _collect(threads=2, last_step=9)
    assert _equal(whole[5:], _collect(threads=2, first_step=5, last_step=9))


def test_starting_late_asks_for_no_earlier_step():
    asked: list[int] = []
    stream = _stream(1000, 8)

    def schedule(step):
        asked.append(step)
        return stream(step)

    _collect(threads=2, first_step=10**9, last_step=10**9 + 3, forwards=1, schedule=schedule)
    assert asked == [10**9, 10**9 + 1, 10**9 + 2]


@examples(25)
@given(
    n=st.integers(0, 40),
    world=st.integers(1, 5),
    batch=st.integers(1, 9),
    threads=st.integers(1, 5),
    prefetch=st.integers(1, 4),
)
def test_an_evaluation_sees_every_image_once_whatever_the_cut(n, world, batch, threads, prefetch):
    seen: list[int] = []
    for rank in range(world):
        mine = evaluation_shard(n, rank, world)

        def schedule(step, mine=mine):
            part = np.array(mine[step * batch : (step + 1) * batch], dtype=np.int64)
            return [(np.zeros_like(part), part)]

        for _, batches in _collect(
            threads=threads,
            schedule=schedule,
            last_step=-(-len(mine) // batch),
            prefetch=prefetch,
            **made_up(lambda *_: None),
        ):
            seen += batches[0][2].tolist()
    assert sorted(seen) == list(range(n))


def test_a_step_without_samples_is_an_empty_batch():
    empty = np.zeros(0, np.int64)
    found = _collect(threads=2, last_step=3, schedule=lambda step: [(empty, empty)])
    assert [batches[0][0].shape for _, batches in found] == [(0, 3, 5, 7)] * 3


def test_labels_of_any_kind_reach_the_function_that_makes_the_batch():
    def make_batch(images, labels, indices):
        counts = torch.tensor([len(label) for label in labels])
        return Batch(images=images, labels=counts, indices=indices)

    listed = made_up(_noise, lambda index: [index] * (index % 3))
    found = _collect(threads=2, **listed, make_batch=make_batch)
    assert all(torch.equal(labels, indices % 3) for _, batches in found for _, labels, indices in batches)


def test_a_batch_on_the_cpu_stays_untouched_until_the_next_is_asked_for():
    with Loader(**NOISE, schedule=_stream(23, 12), threads=3, prefetch=1, image_shape=SHAPE, device=CPU) as loader:
        for step, batches in loader:
            before = batches[0].images.clone()
            time.sleep(0.01)  # time for the threads to fill all that they may
            assert torch.equal(before, batches[0].images)
            if step == 8:
                break


def test_the_rings_memory_is_allocated_once():
    with Loader(**NOISE, schedule=_stream(23, 12), threads=2, prefetch=2, image_shape=SHAPE, device=CPU) as loader:
        places = [next(loader)[1][0].images.data_ptr() for _ in range(12)]
    assert len(set(places)) == 3
    assert places[:9] == places[3:]


class Breaking(InMemory):
    """Record 17 cannot be read: a DataError, or the system's own."""

    error: Exception = DataError("train/n01/broken.jpg: cannot be read.\nReplace it.")

    def name(self, i: int) -> str:
        return "train/n01/broken.jpg"

    def read(self, i: int) -> bytes:
        if i == 17:
            raise self.error
        return super().read(i)


class TimingOut(Breaking):
    error = TimeoutError("timed out")


@pytest.mark.parametrize("records", [InMemory, Breaking, TimingOut])
@pytest.mark.parametrize(("threads", "io_threads"), [(1, 0), (4, 0), (2, 3)])
def test_a_broken_file_is_raised_at_the_consumer_at_once_and_named(threads, io_threads, records):
    def paint(epoch, index, out):
        if index == 17 and records is InMemory:
            raise DataError("train/n01/broken.jpg: the image cannot be decoded: truncated.\nReplace it.")

    def schedule(step):
        indices = np.arange(step * 10, step * 10 + 10)
        return [(np.zeros_like(indices), indices)]

    with Loader(
        **{**made_up(paint), "records": records([tiny_photo()])},
        schedule=schedule,
        threads=threads,
        io_threads=io_threads,
        prefetch=3,
        image_shape=SHAPE,
        device=CPU,
    ) as loader:
        with pytest.raises(DataError, match=r"train/n01/broken\.jpg"):
            for step, _ in loader:
                assert step == 0  # step 1 holds sample 17
        with pytest.raises(DataError, match=r"broken\.jpg"):  # and again, should it be asked again
            next(loader)
    assert not _loader_threads()


def test_an_error_in_the_schedule_reaches_the_consumer_too():
    def schedule(step):
        raise ValueError("no such step")

    with (
        Loader(**NOISE, schedule=schedule, threads=2, prefetch=1, image_shape=SHAPE, device=CPU) as loader,
        raises(ValueError, "step"),
    ):
        next(loader)
    assert not _loader_threads()


def test_closing_early_leaves_no_threads_even_when_they_wait_for_a_free_slot():
    loader = Loader(**NOISE, schedule=_stream(23, 12), threads=4, prefetch=1, image_shape=SHAPE, device=CPU)
    next(loader)
    time.sleep(0.05)  # the ring is full now, all threads wait
    assert len(_loader_threads()) == 4
    loader.close()
    assert not _loader_threads()
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(loader)


def test_an_exception_in_the_consumer_closes_the_loader():
    with (
        pytest.raises(KeyError),
        Loader(**NOISE, schedule=_stream(23, 12), threads=4, prefetch=2, image_shape=SHAPE, device=CPU) as loader,
    ):
        next(loader)
        raise KeyError("of the training step")
    assert not _loader_threads()


def test_waiting_for_data_is_counted_and_not_waiting_is_not(clock):
    allowed = threading.Semaphore(10)

    def slow(epoch, index, out):
        assert clock.looked_at.wait(10) and allowed.acquire(timeout=10)  # the consumer waits already
        clock.now += 1

    with Loader(**made_up(slow), schedule=_stream(23, 10), threads=1, prefetch=1, image_shape=SHAPE, device=CPU) as loader:
        next(loader)
        assert loader.wait_seconds == 10  # ten samples of a second, one thread
        allowed.release(10)
        while not loader._ring[1].ready:
            time.sleep(0.001)
        next(loader)
        assert loader.wait_seconds == 10
        allowed.release(10)  # of step 2, for which the thread is at work


def test_the_loader_sets_no_thread_counts():
    before = torch.get_num_threads()
    _collect(threads=3)
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_batches_are_those_of_a_cpu():
    device = torch.device("cuda", 0)
    kept = []
    with Loader(
        **NOISE, schedule=_stream(23, 12, 2), threads=3, last_step=9, prefetch=2, image_shape=SHAPE, device=device
    ) as loader:
        for step, batches in loader:
            kept.append((step, [tuple(t.clone() for t in (b.images, b.labels, b.indices)) for b in batches]))
    assert all(b[0].is_contiguous(memory_format=torch.channels_last) for _, batches in kept for b in batches)
    on_host = [(step, [tuple(t.cpu() for t in b) for b in batches]) for step, batches in kept]
    assert _equal(on_host, _collect(threads=1, last_step=9))


def test_one_step_repeated_has_the_same_batches_at_every_step_and_reads_once():
    reads = []

    def read(epoch: int, index: int, out: np.ndarray) -> None:
        reads.append(index)
        out[:] = index

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.zeros(2, np.int64), np.array([3, 4]) + 10 * step)]

    loader = Loader(
        **made_up(read), schedule=schedule, last_step=1, threads=2, image_shape=(2, 2, 3), device=torch.device("cpu")
    )
    with RepeatBatch.first_of(loader, first_step=5, last_step=8) as repeated:
        taken = [(step, batches[0].labels.tolist(), batches[0].images[:, 0, 0, 0].tolist()) for step, batches in repeated]
    assert taken == [(step, [3, 4], [3, 4]) for step in (5, 6, 7)]
    assert sorted(reads) == [3, 4]


def _shaped(step: int) -> list[MicroBatch]:
    """Two forwards of shapes that change from step to step, the second drawn by another function."""

    def forward(place: int, shape: tuple[int, int], draw=None) -> MicroBatch:
        indices = np.arange(3) + 10 * step + 3 * place
        return MicroBatch(np.full(3, step), indices, shape, draw)

    return [forward(0, [(5, 7), (7, 5), (2, 3)][step % 3]), forward(1, [(1, 1), (6, 5), (4, 8)][step % 3], _later)]


def _later(epoch: int, index: int, header: Header, name: str) -> SampleSpec:
    return drawn(epoch + 100, index, header, name, 7)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_forward_has_the_shape_and_the_draw_that_the_schedule_names(threads):
    for step, batches in _collect(threads=threads, schedule=_shaped):
        for (images, labels, indices), wanted in zip(batches, _shaped(step)):
            assert wanted.shape is not None and images.shape == (3, 3, *wanted.shape)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert indices.tolist() == wanted.indices.tolist()
            for position, index in enumerate(wanted.indices.tolist()):
                expected = np.empty((*wanted.shape, 3), np.uint8)
                _noise(step + (100 if wanted.draw else 0), index, expected)
                assert labels[position] == (7 if wanted.draw else index % 10)
                np.testing.assert_array_equal(images[position].permute(1, 2, 0).numpy(), expected)


def test_the_rings_memory_does_not_grow_with_the_shapes():
    with Loader(**NOISE, schedule=_shaped, threads=2, prefetch=2, image_shape=SHAPE, device=CPU) as loader:
        places = [next(loader)[1][0].images.data_ptr() for _ in range(12)]
    assert len(set(places)) == 3 and places[:9] == places[3:]


def test_a_shape_larger_than_the_loaders_is_refused():
    with (
        Loader(**NOISE, schedule=_shaped, threads=1, image_shape=(5, 6, 3), device=CPU) as loader,
        pytest.raises(AssertionError, match="largest"),
    ):
        for _ in range(3):
            next(loader)


@pytest.mark.parametrize("io_threads", [0, 2])
def test_a_photo_that_does_not_come_is_named_once_a_minute_and_given_up_at_last(monkeypatch, capsys, clock, io_threads):
    monkeypatch.setattr(loader_module, "JOIN_SECONDS", 0.05)
    for name, seconds in (("SAY_SECONDS", 0.02), ("FAIL_SECONDS", 0.3)):
        monkeypatch.setattr(overdue, name, seconds)
    go_on, others, end = threading.Event(), threading.Semaphore(0), ReadWatchdog.end
    monkeypatch.setattr(ReadWatchdog, "end", lambda self, thread: (end(self, thread), others.release()))

    class Hanging(InMemory):
        def read(self, i: int) -> bytes:
            if i == 3:
                for _ in range(6 if io_threads else 3):  # three samples are fetched, and decoded
                    assert others.acquire(timeout=10)
                clock.pace = 0.01
                go_on.wait()
            return super().read(i)

    stream = lambda step: [(np.zeros(4, np.int64), np.arange(4) + 4 * step)]  # noqa: E731
    with raises(DataError, "step 0", "three\x1b.jpg", "respond"):
        records = Hanging([tiny_photo()], ["0", "1", "2", "three\x1b.jpg"])
        more = {**NOISE, "records": records, "last_step": 1}
        _collect(threads=2, io_threads=io_threads, **more, schedule=stream)
    said = capsys.readouterr().err.splitlines()
    assert len(said) > 1 and check_text(said[0], "three\\x1b.jpg", "waiting")
    go_on.set()


def test_slow_photos_that_do_come_are_not_complained_of(monkeypatch, capsys, clock):
    monkeypatch.setattr(overdue, "SAY_SECONDS", 0.02)
    monkeypatch.setattr(overdue, "FAIL_SECONDS", 0.02)

    def slow(epoch, index, out):
        clock.now += 0.015
        clock.looked_at.clear()
        assert clock.looked_at.wait(10)  # the consumer looks meanwhile

    _collect(threads=1, **made_up(slow), last_step=1, schedule=_stream(30, 24))
    assert clock.now > 0.3 and capsys.readouterr().err == ""

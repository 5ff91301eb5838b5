"""The loader: threads that decode straight into a ring of preallocated batches, in one process per rank.

Decoders and resizers release the GIL, so threads share the work without copying a pixel between processes, and nothing is pickled,
forked or put in /dev/shm. A batch's content depends on its samples' keys alone, never on which thread made which part or in what
order. One loader serves a whole run: it has no epochs, so nothing pauses between them.

Letters: B samples of one step on this rank, H and W pixels of the network's input.

Life of a slot of the ring: free -> a thread opens it with a step's schedule -> threads take chunks of its samples: bytes from the
records, header, draw, render (input/draw.py) -> the last to finish makes its batches (and starts their copy to the device) -> the
consumer takes it -> free. With fetch threads, those open slots and read the bytes ahead of the others, as many as the ring has slots
for: a slow store then idles no core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from paceline.accelerators import streams_of
from paceline.batch import Batch, labelled_batch
from paceline.config.classification import Exif
from paceline.config.errors import DataError
from paceline.config.printable import some
from paceline.input.draw import DrawSample, Render, RenderBatch, render, with_others
from paceline.input.ring import Cursor, Schedule, Slot
from paceline.store import overdue
from paceline.store.header import read_header
from paceline.store.landing import Landing, copy_stream
from paceline.store.overdue import NAMED, Watch
from paceline.store.records import Records
from paceline.threads import Thread, failure_in_thread

JOIN_SECONDS = 10.0  # a thread finishes the sample it is at within a second, or hangs

# (images (n, 3, H, W) uint8, labels of length n, indices (n,) int64) -> the batch of one forward; images are on the host
# unless a RenderBatch made them, all else is.
MakeBatch = Callable[[Tensor, list[Any], Tensor], Batch]


class Loader:
    """Yields (step, [Batch of each forward]) for first_step, first_step + 1, ... in order.

        with Loader(...) as loader:
            for step, batches in loader:

    exif         whether headers are of the photos as displayed or as stored
    draw, schedule, make_batch   see their types
    render       one sample, on one of the threads
    render_batch a forward's samples at once, instead; called by one thread when the last of a step is drawn, on a CUDA device with the
                 loader's own stream as the current one
    first_step, last_step   the steps first_step .. last_step - 1; last_step None: without end. Starting costs the same at any step.
    threads      loader threads; they never set a thread count and call nothing that would start more
    fetch_threads  further threads that read bytes ahead; 0: the loader threads read
    prefetch     steps made ready ahead of the one in use
    image_shape  (H, W, 3): of every image, or the largest where the schedule gives the shapes of its forwards
    device       of the batches. To a CUDA device they are copied from pinned memory on the loaders' own stream, and the consumer's
                 current stream waits for that copy
    like         a step's batches as large as any, on whatever device: on a CUDA device all memory is then allocated here

    Images are (n, 3, H, W) uint8 in channels_last memory. A batch is the ring's own memory, on every device, valid until the next step
    is requested or the loader is closed: copy what must live longer. Work sent to a CUDA device before that reads it whole, if it was
    sent to the stream that is current at the next request, or one that joined it.

    An exception in a thread is raised at the consumer's next request, even when earlier steps are ready. `close` (or leaving the with
    block) stops and joins all threads; it may be called again. `wait_seconds` is the time the consumer has waited for data so far.

    A sample that does not come within a minute, while the consumer waits, is named on stderr once a minute, and after
    overdue.FAIL_SECONDS it is a DataError. The thread that waits for it is then abandoned: nothing can end a read that hangs.
    """

    def __init__(
        self,
        *,
        records: Records,
        draw: DrawSample,
        schedule: Schedule,
        exif: Exif = "ignore",
        render: Render = render,
        render_batch: RenderBatch | None = None,
        first_step: int = 0,
        last_step: int | None = None,
        threads: int,
        fetch_threads: int = 0,
        prefetch: int = 2,
        image_shape: tuple[int, int, int],
        device: torch.device,
        make_batch: MakeBatch = labelled_batch,
        like: Sequence[Batch] = (),
    ) -> None:
        assert threads > 0 and prefetch > 0, "the plan gives at least one thread and one prefetched step"
        self.wait_seconds = 0.0
        self._records = records
        self._exif: Exif = exif
        self._draw, self._render, self._render_batch = draw, render, render_batch
        self._schedule = schedule
        self._make_batch = make_batch
        self._last_step = last_step
        self._image_shape = image_shape
        self._device = device
        self._streams = streams_of(device)
        self._stream = copy_stream(self._streams, device) if self._streams is not None else None
        self._watch = Watch(threads + fetch_threads)

        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._stopping = False
        # One more than prefetched: the consumer holds one while it works.
        self._ring = [
            Slot(Landing(device, self._streams) if self._streams is not None else None) for _ in range(prefetch + 1)
        ]
        with self._on_own_stream():
            for slot in self._ring:
                if slot.landing is not None:
                    slot.landing.make_room(like)
        self._held: Slot | None = None
        self._next_step = first_step

        self._fetching: Cursor | None = None
        opens = self._open
        if fetch_threads:
            self._fetching = Cursor(first_step, last_step, self._open, lambda _: records.at_once)
            opens = self._opened
        # Small enough that threads finish a step together, large enough that distribution costs nothing.
        self._decoding = Cursor(first_step, last_step, opens, lambda n: min(16, max(1, n // (4 * threads))))

        # Daemons, so that a loader left open does not keep a failing interpreter alive.
        stages = [(self._decode, "loader")] * threads + [(self._fetch, "loader-fetch")] * fetch_threads
        self._threads = [
            Thread(target=self._work, args=(stage, i), name=f"{name}-{i}", daemon=True)
            for i, (stage, name) in enumerate(stages)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # the machine allows no more threads
            self.close()
            raise

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step; returns the memory of the one before to the ring."""
        if self._held is not None and self._held.landing is not None:
            self._held.landing.give_back()
        with self._changed:
            if self._held is not None:
                self._held.free = True
                self._held.batches = []
                self._held = None
                self._changed.notify_all()
            step = self._next_step
            if self._error is None and step == self._last_step:
                raise StopIteration
            began = reported = time.perf_counter()
            while not (self._error or self._stopping or self._ring[step % len(self._ring)].ready):
                self._changed.wait(overdue.SAY_SECONDS / 4)
                if time.perf_counter() - reported >= overdue.SAY_SECONDS:
                    reported = time.perf_counter()
                    self._watch.tell_overdue(step, self._records.name)
            self.wait_seconds += time.perf_counter() - began
            if self._error is not None:
                raise self._error
            if self._stopping:
                raise RuntimeError("the loader was closed")
            slot = self._ring[step % len(self._ring)]
            slot.ready = False
            self._held = slot
            self._next_step += 1
            batches = slot.batches
        if slot.landing is not None:
            slot.landing.hand_over()
        return step, batches

    def close(self) -> None:
        """Stop and join the threads; each finishes at most the sample it is at."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._stream is not None:
            # The next allocation of the ring's memory is on this stream, after all that the consumer has sent.
            self._stream.wait_stream(self._streams.current_stream(self._device))
        self._ring = []

    def _work(self, stage: Callable[[int], None], number: int) -> None:
        try:
            if self._streams is not None:
                self._streams.set_device(self._device)  # else a new thread would pin its memory through device 0
            stage(number)
        except BaseException as error:  # the consumer raises it
            with self._changed:
                self._error = self._error or failure_in_thread(error)
                self._stopping = True
                self._changed.notify_all()

    def _fetch(self, number: int) -> None:
        assert self._fetching is not None
        while (chunk := self._fetching.take()) is not None:
            slot, start, stop = chunk
            indices = slot.indices[start:stop]
            self._watch.begin(number, indices)
            fetched = self._read(indices)
            self._watch.end(number)
            with self._changed:
                if self._stopping:
                    return
                slot.data[start:stop] = fetched
                self._changed.notify_all()

    def _decode(self, number: int) -> None:
        while (chunk := self._decoding.take()) is not None:
            slot, start, stop = chunk
            for at in range(start, stop):
                if self._fetching is not None and not self._arrived(slot, at):
                    return
                if self._stopping:
                    return
                index = slot.indices[at]
                self._watch.begin(number, (index,))
                data = slot.data[at]
                if data is None:
                    (data,) = self._read([index])
                name = self._records.name(index)
                header = read_header(data, name, self._exif)
                draw = slot.draw_with[at](slot.epochs[at], index, header, name)
                if draw.others:
                    draw = with_others(draw, self._read, self._exif)
                slot.drawn[at] = draw
                if self._render_batch is None:
                    self._render(data, draw, slot.pixels[at])
                    data = None
                slot.data[at] = data
                self._watch.end(number)
            self._finish(slot, stop - start)

    def _read(self, indices: Sequence[int]) -> list[bytes]:
        try:
            found = self._records.read_many(indices)
        except OSError as error:  # of a container that raises no DataError itself; a time-out is one too
            raise DataError(
                f"{some(map(self._records.name, indices), NAMED)}: cannot be read ({error.strerror or error})."
            ) from error
        assert len(found) == len(indices), "read_many returns one entry for each index"
        return found

    def _open(self, step: int) -> tuple[Slot, int] | None:
        """Fill the step's slot as soon as it is free."""
        slot = self._ring[step % len(self._ring)]
        with self._changed:
            while not (slot.free or self._stopping):
                self._changed.wait()
            if self._stopping:
                return None
            slot.free, slot.step = False, -1
        if slot.landing is not None:
            slot.landing.wait_until_copied()
        slot.fill(self._schedule(step), self._image_shape[:2], self._draw)
        if self._render_batch is None:
            slot.allocate(prod(self._image_shape), self._device.type == "cuda")
        samples = len(slot.indices)
        with self._changed:
            slot.step = step
            self._changed.notify_all()
        if not samples:  # a rank may have nothing to evaluate in a step
            self._finish(slot, 0)
        return slot, samples

    def _opened(self, step: int) -> tuple[Slot, int] | None:
        """The step's slot once the fetch threads have opened it."""
        slot = self._ring[step % len(self._ring)]
        with self._changed:
            while slot.step < step and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return None
            # The slot may be at a later step: this one had no samples, and may have been taken already.
            return slot, len(slot.indices) if slot.step == step else 0

    def _arrived(self, slot: Slot, at: int) -> bool:
        """Wait for a sample's bytes; False when the loader is stopping."""
        with self._changed:
            while slot.data[at] is None and not self._stopping:
                self._changed.wait()
            return not self._stopping

    def _finish(self, slot: Slot, samples: int) -> None:
        """Count samples as drawn and rendered; with the last one the step is ready."""
        with self._changed:
            slot.remaining -= samples
            if slot.remaining:
                return
        with self._on_own_stream():
            batches = self._batches(slot)
            if slot.landing is not None:
                batches = slot.landing.bring(batches)
            elif self._device.type != "cpu":
                batches = [batch.to(self._device) for batch in batches]
        slot.data, slot.drawn = [], []
        with self._changed:
            slot.batches = batches
            slot.ready = True
            self._changed.notify_all()

    def _batches(self, slot: Slot) -> list[Batch]:
        indices, batches = torch.tensor(slot.indices, dtype=torch.int64), []
        edges = [0, *accumulate(slot.sizes)]
        for number, shape in enumerate(slot.shapes):
            mine = slice(edges[number], edges[number + 1])
            drawn: Any = slot.drawn[mine]
            if self._render_batch is None:
                images = slot.images[number].permute(0, 3, 1, 2)
            else:
                images = self._render_batch(slot.data[mine], drawn, shape)  # pyright: ignore[reportArgumentType]
            batches.append(self._make_batch(images, [draw.label for draw in drawn], indices[mine]))
        return batches

    def _on_own_stream(self) -> AbstractContextManager:
        """Inside, work is sent to the loader's own stream, where it has one."""
        return nullcontext() if self._stream is None else self._streams.stream(self._stream)

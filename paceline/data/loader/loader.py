"""The loader: worker processes that render straight into a ring of preallocated batches, for one rank.

The workers (paceline/data/workers) take chunks of samples from a pipe, and map the ring's memory, so no pixel is copied and none needs
the lock of this process's interpreter; labels come back through pipes. A batch's content depends on its samples' keys alone, never
on which worker made which part or in what order. One loader serves a whole run: it has no epochs, so nothing pauses between them.
What cannot be sent to other processes (a workload in a file of the user's) is rendered by threads of this process, in the same ring.

Life of a slot of the ring: free -> a thread opens it with a step's schedule -> workers take chunks of its samples: bytes from the
records, header, draw, render (data/transforms/sample.py) -> with the last chunk its batches are made (and their copy to the device
starts) -> the consumer takes it -> free. With fetch threads, those open slots and read the bytes ahead of the workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline._utils.threads import Thread, failure_in_thread
from paceline.config.resnet import Exif
from paceline.data.batch import Batch, labeled_batch
from paceline.data.index.records import RecordReader
from paceline.data.loader import slots
from paceline.data.loader.device_buffers import DeviceBuffer, copy_stream, get_stream_module
from paceline.data.loader.slots import FETCHED, IDLE, KEPT, Cursor, ReadWatchdog, RenderJob, Schedule, Slot
from paceline.data.transforms.sample import DrawSample, Render, RenderBatch, decode_and_transform, read_many, sample_spec
from paceline.data.workers.crew import Workers
from paceline.data.workers.jobs import NotPicklableError, SharedBytes, pickle_message

MAX_SLOTS = 100  # slots that worker processes can share: each has two descriptors, and a message carries at most 253
NICE = 10  # of workers: a thread that wants their core too gets nine tenths of it
JOIN_SECONDS = 10.0  # a thread finishes the sample it is at within a second, or hangs

# (images (n, 3, H, W) uint8, labels of length n, indices (n,) int64), all on the host but a RenderBatch's images -> a forward's batch
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
    threads      workers; they call nothing that would start more threads
    processes    whether they are processes; where the job cannot be sent to these they are threads all the same: see `why_threads`
    io_threads  threads that read bytes ahead; 0: the workers read
    prefetch     steps kept ready ahead of the one in use
    image_shape  (H, W, 3): of every image, or the largest where the schedule gives the shapes of its forwards
    device       of the batches. To a CUDA device they are copied from pinned memory on the loaders' own stream, and the consumer's
                 current stream waits for that copy
    like         a step's batches as large as any, on whatever device: on a CUDA device all memory is then allocated here

    Images are (n, 3, H, W) uint8 in channels_last memory. A batch is the ring's own memory, on every device, valid until the next step
    is requested or the loader is closed: copy what must live longer. Work sent to a CUDA device before that reads it whole, if it was
    sent to the stream that is current at the next request, or one that joined it.

    An exception in a thread is raised at the next request, even when earlier steps are ready. `close` stops and joins all threads;
    it may be called again. `wait_seconds` is how long the consumer has waited for data so far. A sample that does not come within a
    minute is named on stderr once a minute, and after slots.FAIL_SECONDS it is a DataError.
    """

    def __init__(
        self,
        *,
        records: RecordReader,
        draw: DrawSample,
        schedule: Schedule,
        exif: Exif = "ignore",
        render: Render = decode_and_transform,
        render_batch: RenderBatch | None = None,
        first_step: int = 0,
        last_step: int | None = None,
        threads: int,
        processes: bool = False,
        io_threads: int = 0,
        prefetch: int = 2,
        image_shape: tuple[int, int, int],
        device: torch.device,
        make_batch: MakeBatch = labeled_batch,
        like: Sequence[Batch] = (),
    ) -> None:
        assert threads > 0 and prefetch > 0, "the plan gives at least one thread and one prefetched step"
        self.wait_seconds = 0.0
        self._records, self._schedule, self._make_batch = records, schedule, make_batch
        self._exif: Exif = exif
        self._draw, self._render, self._render_batch = draw, render, render_batch
        self._last_step, self._next_step = last_step, first_step
        self._image_shape, self._device = image_shape, device
        self._streams = get_stream_module(device)
        self._stream = copy_stream(self._streams, device) if self._streams is not None else None

        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._stopping = False
        self._held: Slot | None = None
        self._workers: Workers | None = None
        self.why_threads = ""
        # One more than prefetched: the consumer holds one while it works.
        with self._on_own_stream():
            if processes:
                self._start_workers(threads, prefetch + 1)
            if self._workers is None:
                self._ring = [self._slot(number) for number in range(prefetch + 1)]
            for slot in self._ring:
                if slot.landing is not None:
                    slot.landing.make_room(like)
        stages = self._stages(threads, io_threads)
        self._watch = ReadWatchdog(len(stages), None if self._workers is None else self._seen)
        self._threads = [  # daemons: a loader left open keeps no failing interpreter alive
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
            self._held.landing.release()
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
                self._changed.wait(slots.SAY_SECONDS / 4)
                if time.perf_counter() - reported >= slots.SAY_SECONDS:
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
            slot.landing.publish()
        return step, batches

    def close(self) -> None:
        """Stop and join the threads; each finishes at most the sample it is at."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._workers is not None:
            self._workers.stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread.ident is not None:  # else it was never started
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._stream is not None:
            # The next allocation of the ring's memory is on this stream, after all that the consumer has sent.
            self._stream.wait_stream(self._streams.current_stream(self._device))
        if self._workers is not None and not any(thread.is_alive() for thread in self._threads):
            self._workers.close()
            self._workers = None
            for slot in self._ring:
                slot.close()
        self._ring = []

    def _slot(self, number: int, *, shared: bool = False) -> Slot:
        return Slot(number, DeviceBuffer(self._device, self._streams) if self._streams is not None else None, shared=shared)

    def _start_workers(self, count: int, slots: int) -> None:
        """Start worker processes and make the ring that they share, or set `why_threads`."""
        if not hasattr(os, "memfd_create") or slots > MAX_SLOTS:
            self.why_threads = f"worker processes require Linux, and --system.prefetch-steps below {MAX_SLOTS}"
            return
        self._ring, seen = [self._slot(number, shared=True) for number in range(slots)], SharedBytes("seen")
        seen.grow(16 * count)
        self._seen = np.frombuffer(seen.memory, np.int64).reshape(count, 2)  # type: ignore[arg-type]
        self._seen[:] = IDLE
        descriptors = [*(each for slot in self._ring for each in slot.descriptors()), seen.descriptor]
        self._job = RenderJob(self._records, self._exif, self._draw, self._render)
        try:
            # A step's kernels are sent by one thread, which must not wait for a core. On a CPU the step itself is spread over all.
            self._workers = Workers(self._job, count, descriptors, nice=NICE * (self._device.type != "cpu"))
        except NotPicklableError as reason:
            self.why_threads = str(reason)
            for slot in self._ring:
                slot.close()
        seen.close()

    def _stages(self, threads: int, io_threads: int) -> list[tuple[Callable[[int], None], str]]:
        """What each thread of this process does, and its name."""
        first, last = self._next_step, self._last_step
        # Workers finish a step together, and are given work seldom.
        parts = self._workers.size if self._workers is not None else 4 * threads
        chunk: Callable[[int], int] = lambda n: min(16, max(1, n // parts))  # noqa: E731
        self._fetching: Cursor | None = None
        if self._workers is not None:
            # Records that only this process can read are read by threads of it.
            self._reads_ahead = io_threads > 0 or not self._records.portable
            size = (lambda _: self._records.at_once) if self._reads_ahead else chunk
            self._decoding = Cursor(first, last, self._open, size)
            return [(self._collect, "loader")] + [(self._dispatch, "loader-fetch")] * max(1, io_threads)
        opens = self._open
        if io_threads:
            self._fetching = Cursor(first, last, self._open, lambda _: self._records.at_once)
            opens = self._opened
        self._decoding = Cursor(first, last, opens, chunk)
        return [(self._decode, "loader")] * threads + [(self._fetch, "loader-fetch")] * io_threads

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

    def _dispatch(self, number: int) -> None:
        """Give the workers a step's chunks as soon as its slot is free, with their bytes if they are read here."""
        assert self._workers is not None
        flags = FETCHED * self._reads_ahead + KEPT * (self._render_batch is not None)
        while (chunk := self._decoding.take()) is not None:
            slot, start, stop = chunk
            if self._reads_ahead:
                indices = slot.indices[start:stop]
                self._watch.begin(number, indices)
                slot.keep(start, read_many(self._records, indices))
                self._watch.end(number)
            self._workers.give(slot.number, slot.step, start, stop, *slot.sizes_of_memory(), flags)

    def _collect(self, _: int) -> None:
        """Take what the workers have made."""
        assert self._workers is not None
        for task, made, error in self._workers.results():
            number, _, start, stop = task[:4]
            if error is not None:
                raise error
            slot = self._ring[number]
            if self._render_batch is None:
                slot.labels[start:stop] = made
            else:
                slot.drawn[start:stop] = made
                slot.data[start:stop] = slot.kept(start, stop)
            self._finish(slot, stop - start)

    def _fetch(self, number: int) -> None:
        assert self._fetching is not None
        while (chunk := self._fetching.take()) is not None:
            slot, start, stop = chunk
            indices = slot.indices[start:stop]
            self._watch.begin(number, indices)
            fetched = read_many(self._records, indices)
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
                    (data,) = read_many(self._records, [index])
                draw = sample_spec(data, self._records, slot.draw_with[at], slot.epochs[at], index, self._exif)
                slot.labels[at] = draw.label
                if self._render_batch is None:
                    self._render(data, draw, slot.pixels[at])
                    data = None
                else:
                    slot.drawn[at] = draw
                slot.data[at] = data
                self._watch.end(number)
            self._finish(slot, stop - start)

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
            slot.landing.synchronize()
        slot.fill(self._schedule(step), self._image_shape[:2], self._draw)
        if self._render_batch is None:
            slot.allocate(prod(self._image_shape), self._device.type == "cuda")
        if self._workers is not None:
            kept = self._reads_ahead or self._render_batch is not None
            lengths = self._records.places.lengths[slot.indices].tolist() if kept else []
            slot.write(pickle_message(slot.samples(), self._job.shared), lengths)
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
                batches = slot.landing.copy_async(batches)
            elif self._device.type != "cpu":
                batches = [batch.to(self._device) for batch in batches]
        slot.data, slot.drawn, slot.labels = [], [], []
        with self._changed:
            slot.batches = batches
            slot.ready = True
            self._changed.notify_all()

    def _batches(self, slot: Slot) -> list[Batch]:
        indices, batches = torch.tensor(slot.indices, dtype=torch.int64), []
        edges = [0, *accumulate(slot.sizes)]
        for number, shape in enumerate(slot.shapes):
            mine = slice(edges[number], edges[number + 1])
            if self._render_batch is None:
                images = slot.images[number].permute(0, 3, 1, 2)
            else:
                images = self._render_batch(slot.data[mine], slot.drawn[mine], shape)  # pyright: ignore[reportArgumentType]
            batches.append(self._make_batch(images, slot.labels[mine], indices[mine]))
        return batches

    def _on_own_stream(self) -> AbstractContextManager:
        """Inside, work is sent to the loader's own stream, where it has one."""
        return nullcontext() if self._stream is None else self._streams.stream(self._stream)

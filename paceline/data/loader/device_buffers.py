"""Where one slot's batches land on an accelerator whose copies run beside its kernels: memory that is kept from step to step.

A step's life here: `copy_async` copies it, on the loader's stream -> `publish`: the consumer's stream waits for the copies -> the
consumer asks for the next step and gives this one back, `release`: its stream marks that it is done -> the next `copy_async` waits for
that mark on the loader's stream, so no kernel sees its batch change, and no host waits for it.

What is small (labels, boxes, ...) is gathered in pinned memory first, because a copy from pageable memory stops the host: one
copy for all of it, and one for the images of each forward, which are rendered into pinned memory (data/loader/slots.py).

Nothing is allocated while steps run: once by `make_room` where the caller knows the largest step beforehand, else by the first
of a size. So other threads may capture a graph beside these (with capture_error_mode="thread_local"), and no lock is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from paceline.data.batch import Batch, count_bytes, view_tensors


def get_stream_module(device: torch.device) -> Any:
    """torch's module of a device on which copies run beside kernels, in streams that events order; None: copies are synchronous.

    Only CUDA's: others have streams too, on which this is untested.
    """
    return torch.cuda if device.type == "cuda" else None


@cache
def copy_stream(streams: Any, device: torch.device) -> Any:
    """The stream of this process that all loaders copy on: an allocator keeps memory by streams, so what one loader gives back, the
    next one takes.
    """
    return streams.Stream(device)


class DeviceBuffer:
    """One slot's memory and marks. Whoever holds the slot may call it.

    streams  torch's module of the device (`get_stream_module`); `make_room` and `copy_async` are called with the loader's
             stream as the current one, so the device's memory belongs to that stream
    """

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device, self._streams = device, streams
        self._copied = streams.Event()
        # Waited for by the host where it is far ahead, which shall not keep a core busy.
        self._given_back = streams.Event(blocking=True)
        self._pinned, self._memory = self._allocate(0, pinned=True), self._allocate(0)

    @property
    def room(self) -> int:
        """Bytes on the device."""
        return self._memory.numel()

    def make_room(self, batches: Sequence[Batch]) -> None:
        """Allocate what a step of such batches needs, on whatever device they are; memory that is enough is kept."""
        small, images = _parts(batches)
        gathered = count_bytes(small)
        if self._pinned.numel() < gathered:
            self._pinned = self._allocate(gathered, pinned=True)
        if self._memory.numel() < (needed := gathered + count_bytes(images)):
            self._memory = self._allocate(needed)

    @torch.inference_mode(False)  # an evaluation's consumer is in that mode, in which the loader's threads are not
    def _allocate(self, size: int, *, pinned: bool = False) -> Tensor:
        if pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def copy_async(self, batches: Sequence[Batch]) -> list[Batch]:
        """-> the same batches in this memory, once the copies sent here are done.

        Images are in pinned memory, or on the device already where they were rendered there; all else is anywhere on the host.
        """
        # Before anything else: what outgrew its memory gives it back to this stream, where the next owner's work comes later.
        self._streams.current_stream(self._device).wait_event(self._given_back)
        self.make_room(batches)
        small, images = _parts(batches)
        gathered = count_bytes(small)
        for positions, tensor in zip(view_tensors(small, self._pinned), small):
            positions.copy_(tensor)
        self._memory[:gathered].copy_(self._pinned[:gathered], non_blocking=True)
        landed = view_tensors(images, self._memory[gathered:])
        for positions, tensor in zip(landed, images):
            positions.copy_(tensor, non_blocking=True)
        self._copied.record(self._streams.current_stream(self._device))
        rest = iter(view_tensors(small, self._memory))
        return [
            replace(batch, images=pixels, **{name: next(rest) for name in batch.tensors() if name != "images"})
            for batch, pixels in zip(batches, landed)
        ]

    def synchronize(self) -> None:
        """Before the host overwrites the pinned memory, also that of the images."""
        self._copied.synchronize()

    def publish(self) -> None:
        """The consumer is about to use what was brought last: its stream waits for the copies."""
        self._streams.current_stream(self._device).wait_event(self._copied)

    def release(self) -> None:
        """The consumer has sent all work that uses what was brought last.

        The host waits here for what it gave back a whole ring earlier. Else it would wait for it later, where no slot is free,
        and that would count as waiting for input.
        """
        self._given_back.synchronize()
        self._given_back.record(self._streams.current_stream(self._device))


def _parts(batches: Sequence[Batch]) -> tuple[list[Tensor], list[Tensor]]:
    """All tensors but the images, by batch and field; and the images of each batch."""
    small = [tensor for batch in batches for name, tensor in batch.tensors().items() if name != "images"]
    return small, [batch.images for batch in batches]

"""Photos of many requests gathered into batches: what waits together goes through the network together, on one thread.

A batch is closed when it is full, or when its first photo has waited long enough; while one is computed, the next gathers. Its
photos together have no more pixels than the largest single photo that is decoded, so many large ones take no more memory than it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._utils.errors import DataError
from paceline.data.transforms.image_io import MAX_PIXELS, read_header
from paceline.inference.image_paths import FailedImage

if TYPE_CHECKING:
    from paceline.inference.predictor import Predictor
    from paceline.inference.results import PredictionResult


class QueueFull(Exception):
    """So many photos wait already that these find no place."""


@dataclass(frozen=True, eq=False)
class QueuedImage:
    """A photo that waits for its answer."""

    photo: bytes
    pixels: int
    since: float  # seconds, of time.monotonic
    answer: asyncio.Future[PredictionResult | FailedImage]


class BatchQueue:
    """The queue, and the thread that answers what is in it. Belongs to one event loop, in which `run` is a task."""

    def __init__(self, predictor: Predictor, *, most: int, wait: float, queue: int) -> None:
        """most: photos of one forward   wait: seconds that a photo waits for others   queue: photos that may wait"""
        self._predictor, self._most, self._wait, self.queue = predictor, most, wait, queue
        self._waiting: deque[QueuedImage] = deque()
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-inference")

    @property
    def room(self) -> int:
        """How many more photos may wait now."""
        return max(0, self.queue - len(self._waiting))

    async def answers(self, photos: Sequence[bytes]) -> list[PredictionResult | FailedImage]:
        """The photos' results in their order. Photos whose header shows that they cannot be read, or are too large, do not wait.

        Raises Full where the others find no place. Canceled, it takes those out of the queue that are not being computed.
        """
        sizes = await asyncio.to_thread(lambda: [_pixels_of(photo) for photo in photos])
        if sum(isinstance(size, int) for size in sizes) > self.room:
            raise QueueFull
        loop, now = asyncio.get_running_loop(), time.monotonic()
        futures: list[asyncio.Future[PredictionResult | FailedImage]] = []
        for photo, size in zip(photos, sizes):
            futures.append(loop.create_future())
            if isinstance(size, FailedImage):
                futures[-1].set_result(size)
            else:
                self._waiting.append(QueuedImage(photo, size, now, futures[-1]))
        self._tell()
        try:
            return list(await asyncio.gather(*futures))
        finally:
            if not all(future.done() for future in futures):
                for future in futures:
                    future.cancel()
            self._waiting = deque(one for one in self._waiting if not one.answer.cancelled())
            self._tell()

    async def run(self) -> None:
        """Answer until canceled; what is being computed then is waited for."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._some.wait()
                await self._gathered()
                batch = self._next()
                photos = [one.photo for one in batch]
                results = await loop.run_in_executor(self._thread, self._answered, photos)
                for one, result in zip(batch, results):
                    if one.answer.done():  # its client has gone
                        continue
                    if isinstance(result, Exception):
                        one.answer.set_exception(result)
                    else:
                        one.answer.set_result(result)
        finally:
            self._thread.shutdown()

    async def _gathered(self) -> None:
        """Until the first photo has waited long enough, or a batch is full."""
        while self._waiting and not self._enough.is_set():
            left = self._waiting[0].since + self._wait - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._enough.wait(), left)
            except asyncio.TimeoutError:
                continue

    def _next(self) -> list[QueuedImage]:
        batch: list[QueuedImage] = []
        pixels = 0
        while self._waiting and len(batch) < self._most:
            pixels += self._waiting[0].pixels
            if batch and pixels > MAX_PIXELS:
                break
            batch.append(self._waiting.popleft())
        self._tell()
        return batch

    def _tell(self) -> None:
        for event, number in ((self._some, 1), (self._enough, self._most)):
            event.set() if len(self._waiting) >= number else event.clear()

    def _answered(self, photos: list[bytes]) -> list[PredictionResult | FailedImage | Exception]:
        """On the thread. Where a batch fails, each of its photos stands alone, so that one of them spoils no other's answer."""
        try:
            return list(self._predictor.stream(photos, batch=len(photos)))
        except Exception as error:
            return [error] if len(photos) == 1 else [self._answered([photo])[0] for photo in photos]


def _pixels_of(photo: bytes) -> int | FailedImage:
    """By its header alone; nothing is decoded."""
    try:
        header = read_header(photo, "the given photo")
    except DataError as problem:
        return FailedImage("", str(problem).partition("\n")[0].rstrip("."))
    return header.height * header.width

"""Which photos share a forward, whose answers come back, and what a full queue, a lost client and a broken forward do."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator

import pytest
from PIL import Image

from paceline.inference.image_paths import FailedImage
from paceline.inference.serve import app
from paceline.inference.serve.app import BatchQueue, QueueFull


def photo(side: int) -> bytes:
    """A photo that is known by its side."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


class Sides:
    """Answers with a photo's side, and keeps the sides of each batch; the thread waits while `held` is clear."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.held = threading.Event()
        self.held.set()
        self.broken: int | None = None

    def predict_iter(self, photos: list[bytes], *, batch: int) -> Iterator[int]:
        assert batch == len(photos)
        assert self.held.wait(30)
        sides = [Image.open(io.BytesIO(one)).width for one in photos]
        self.batches.append(sides)
        if self.broken in sides:
            raise RuntimeError("broken forward")
        yield from sides


def played(play, **settings) -> Sides:
    """Carry out `play(batches, sides)` beside a running queue."""
    sides = Sides()

    async def all_of_it() -> None:
        batches = BatchQueue(sides, **{"most": 3, "wait": 0.0, "queue": 8, **settings})  # type: ignore[arg-type]
        running = asyncio.create_task(batches.run())
        try:
            await asyncio.wait_for(play(batches, sides), 30)
        finally:
            sides.held.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(all_of_it())
    return sides


async def asked(batches: BatchQueue, *sides: int) -> list[asyncio.Task]:
    """Requests of one photo each, in this order, all of them in the queue."""
    tasks = []
    for side in sides:
        before = batches.room
        tasks.append(asyncio.create_task(batches.answers([photo(side)])))
        while batches.room == before and not tasks[-1].done():
            await asyncio.sleep(0.001)
    return tasks


async def busy_with_one(batches: BatchQueue, sides: Sides) -> asyncio.Task:
    """The thread is held in a forward of one photo, so that what comes then gathers."""
    sides.held.clear()
    task = asyncio.create_task(batches.answers([photo(1)]))
    await asyncio.sleep(0.05)
    while batches.room < batches.queue:
        await asyncio.sleep(0.001)
    return task


def test_what_comes_during_a_forward_shares_the_next_and_everyone_gets_his_own_answer():
    async def play(batches, sides):
        first = await busy_with_one(batches, sides)
        others = await asked(batches, 4, 2, 3, 5)
        sides.held.set()
        assert await asyncio.gather(first, *others) == [[1], [4], [2], [3], [5]]

    assert played(play).batches == [[1], [4, 2, 3], [5]]


def test_a_photo_waits_for_others_until_the_batch_is_full_and_not_longer():
    async def play(batches, sides):
        tasks = await asked(batches, 2, 3, 4)  # full: the long wait is over
        assert await asyncio.gather(*tasks) == [[2], [3], [4]]

    assert played(play, wait=25.0).batches == [[2, 3, 4]]

    async def alone(batches, sides):
        assert await batches.answers([photo(7)]) == [7]

    assert played(alone, wait=0.02).batches == [[7]]


def test_several_photos_of_one_request_come_in_their_order_and_an_unreadable_one_takes_no_place():
    async def play(batches, sides):
        first, second, third = await batches.answers([photo(5), b"no photo", photo(6)])
        assert (first, third) == (5, 6) and isinstance(second, FailedImage)
        assert "image format" in second.reason

    assert played(play).batches == [[5, 6]]


def test_beyond_the_queue_there_is_no_place_and_later_there_is():
    async def play(batches, sides):
        first = await busy_with_one(batches, sides)
        waiting = await asked(batches, *range(2, 10))
        assert batches.room == 0
        with pytest.raises(QueueFull):
            await batches.answers([photo(3)])
        sides.held.set()
        await asyncio.gather(first, *waiting)
        assert await batches.answers([photo(3)]) == [3]

    played(play)


def test_the_photos_of_a_client_who_has_gone_are_not_computed_and_give_their_place_back():
    async def play(batches, sides):
        first = await busy_with_one(batches, sides)
        gone, stays = await asked(batches, 2, 3)
        gone.cancel()
        await asyncio.sleep(0)
        while batches.room != batches.queue - 1:
            await asyncio.sleep(0.001)
        sides.held.set()
        assert await first == [1] and await stays == [3]

    assert played(play).batches == [[1], [3]]


def test_a_photo_that_breaks_the_forward_fails_alone():
    async def play(batches, sides):
        sides.broken = 3
        first = await busy_with_one(batches, sides)
        good, bad, other = await asked(batches, 2, 3, 4)
        sides.held.set()
        await first
        assert await good == [2] and await other == [4]
        with pytest.raises(RuntimeError, match="broken forward"):
            await bad
        assert await batches.answers([photo(5)]) == [5]  # the thread lives

    played(play)


def test_large_photos_do_not_share_a_forward(monkeypatch):
    monkeypatch.setattr(app, "MAX_PIXELS", 200)

    async def play(batches, sides):
        first = await busy_with_one(batches, sides)
        others = await asked(batches, 10, 11, 9, 2)  # 100 + 121 pixels are too many; 121 + 81 too
        sides.held.set()
        assert await asyncio.gather(first, *others) == [[1], [10], [11], [9], [2]]

    assert played(play).batches == [[1], [10], [11], [9, 2]]

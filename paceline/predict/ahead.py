"""Work on threads, some items ahead of the one that is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from paceline.machine.detect import cpu_cores

# More threads than this read no faster than one device computes.
MOST_THREADS = 8

Item = TypeVar("Item")
Done = TypeVar("Done")


def in_order(items: Iterable[Item], work: Callable[[Item], Done], *, ahead: int) -> Iterator[Done]:
    """`work` of each item, on threads, in the items' order; at most `ahead` results wait to be taken.

    What `work` raises is raised where its result would have come; the threads end with the generator.
    """
    pending: deque[Future[Done]] = deque()
    threads = max(1, min(MOST_THREADS, cpu_cores()))
    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-photos") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

"""A stand-in for torch.cuda's streams and events on CPU tensors: what is sent to a stream is carried out later, and in the order of
all streams that events allow and that is worst for a protocol with a gap.

Copies with non_blocking=True and everything given to `launch` are sent; all else happens at once, as on a host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Whose work is carried out as soon as it may be; all else only when somebody waits for it.
Eager = Literal["copies", "consumer", "nobody"]


class Mark:
    """A place in a stream's work."""

    passed = False


class LazyStreams:
    """In the place of the module torch.cuda."""

    def __init__(self, eager: Eager) -> None:
        self.eager: Eager = eager
        self.lock = threading.RLock()
        self.streams: list[LazyStream] = []
        self.consumers = LazyStream(self)
        self.here = threading.local()
        self.waited_for_consumer: set[str] = (
            set()
        )  # names of the threads that could not go on before some of the consumer's work

    def Stream(self, device: torch.device) -> LazyStream:
        return LazyStream(self)

    def Event(self, blocking: bool = False) -> LazyEvent:
        return LazyEvent(self)

    def set_device(self, device: torch.device) -> None:
        """There is one."""

    def current_stream(self, device: torch.device | None = None) -> LazyStream:
        return getattr(self.here, "stream", self.consumers)

    @contextmanager
    def stream(self, stream: LazyStream) -> Iterator[None]:
        before, self.here.stream = self.current_stream(), stream
        try:
            with Sent(stream):
                yield
        finally:
            self.here.stream = before

    def launch(self, work: Callable[[], Any]) -> None:
        """Send work to the consumer's stream, as a kernel is."""
        self.consumers.send(work)

    def carry_out(self, until: Mark | None = None) -> None:
        """Eager work; with a mark, whatever there is until it is passed. Raises AssertionError where it never will be."""
        with self.lock:
            while until is None or not until.passed:
                # The consumer's come first in the list.
                ready = [stream for stream in self.streams if stream.may_go_on()]
                if until is None:
                    wanted = {"copies": self.streams[1:], "consumer": self.streams[:1], "nobody": []}[self.eager]
                    ready = [stream for stream in ready if stream in wanted]
                if not ready:
                    assert until is None, "every stream waits for another"
                    return
                if until is not None and ready[-1] is self.consumers:
                    self.waited_for_consumer.add(threading.current_thread().name)
                ready[-1].go_on()

    def finish(self) -> None:
        """All that was sent."""
        with self.lock:
            for stream in self.streams:
                self.carry_out(stream.mark())


class LazyStream:
    def __init__(self, module: LazyStreams) -> None:
        self.module, self.work = module, deque()
        with module.lock:
            module.streams.append(self)

    def send(self, work: Callable[[], Any] | Mark) -> None:
        with self.module.lock:
            self.work.append(work)
        self.module.carry_out()

    def mark(self) -> Mark:
        mark = Mark()

        def pass_it() -> None:
            mark.passed = True

        self.send(pass_it)
        return mark

    def wait_event(self, event: LazyEvent) -> None:
        if event.mark is not None:  # one that was never recorded is waited for by nobody
            self.send(event.mark)

    def wait_stream(self, other: LazyStream) -> None:
        self.send(other.mark())

    def may_go_on(self) -> bool:
        return bool(self.work) and (not isinstance(self.work[0], Mark) or self.work[0].passed)

    def go_on(self) -> None:
        work = self.work.popleft()
        if not isinstance(work, Mark):
            work()


class LazyEvent:
    def __init__(self, module: LazyStreams) -> None:
        self.module = module
        self.mark: Mark | None = None

    def record(self, stream: LazyStream) -> None:
        self.mark = stream.mark()

    def synchronize(self) -> None:
        if self.mark is not None:
            self.module.carry_out(self.mark)


class Sent(TorchDispatchMode):
    """Sends this thread's copies with non_blocking=True to a stream."""

    def __init__(self, stream: LazyStream) -> None:
        super().__init__()
        self.to = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and (args[2:] == (True,) or (kwargs or {}).get("non_blocking")):
            self.to.send(lambda: args[0].copy_(args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))

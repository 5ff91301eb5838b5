"""How a job is sent to worker processes: pickled once, into memory that all of them map."""

from __future__ import annotations

import importlib.util
import io
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from paceline._utils.user_code import SITE

Task = tuple[int, ...]
ALIGNMENT = 64


class WorkerJob(Protocol):
    """What workers run."""

    shared: Sequence[Any]  # objects that `unpickle_message` finds again by their place, in messages to this job

    @property
    def module(self) -> str:
        """What the template imports, once for all workers."""
        ...

    def start(self, number: int, descriptors: Sequence[int]) -> Callable[[Task], Any]:
        """Begin in worker `number`; return the function that carries out tasks. descriptors: the caller's, open in this process."""
        ...


class NotPicklableError(Exception):
    """A job that only this process can run; the text says why."""


class SharedBytes:
    """Memory that other processes map by its descriptor; it may grow."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(f"paceline-{name}")
        self.memory: mmap.mmap | None = None

    def grow(self, size: int) -> bool:
        """Map at least `size` bytes; return whether the mapping is another one. The old one is valid as long as it is used."""
        if size <= (0 if self.memory is None else len(self.memory)):
            return False
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        return True

    def close(self) -> None:
        """Close the descriptor, once. The memory stays until nothing uses it."""
        self.memory = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class _JobPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any], buffers: list[pickle.PickleBuffer] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=None if buffers is None else buffers.append)
        self._places = {id(one): index for index, one in enumerate(shared)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._places.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.memmap):
            return obj.view(np.ndarray).__reduce_ex__(5)
        if isinstance(obj, type | FunctionType) and not _importable(obj.__module__):
            raise NotPicklableError(f"{obj.__module__}.{obj.__qualname__} cannot be imported by other processes")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]


@cache
def _importable(module: str) -> bool:
    if module == "__main__" or module.startswith(SITE):  # a file that only this process has run
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def pickle_message(message: Any, shared: Sequence[Any]) -> bytes:
    """Return a message to a job; of its `shared` objects only their places are in it."""
    file = io.BytesIO()
    _JobPickler(file, shared, None).dump(message)
    return file.getvalue()


def unpickle_message(content: bytes, shared: Sequence[Any]) -> Any:
    """Return the message, in a worker."""
    return _Unpickler(io.BytesIO(content), shared).load()


def dump_job(job: WorkerJob) -> SharedBytes:
    """Return a job and the environment in shared memory: their pickle, and the job's arrays behind it."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    try:
        _JobPickler(file, (), buffers).dump((job, dict(os.environ)))
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise NotPicklableError(str(reason)) from reason
    parts = [memoryview(file.getbuffer()), *(buffer.raw() for buffer in buffers)]
    sizes = np.array([len(parts), *map(len, parts)], np.int64).tobytes()
    content = SharedBytes("job")
    content.grow(len(sizes) + sum(len(part) + ALIGNMENT for part in parts))
    assert content.memory is not None
    at = len(sizes)
    content.memory[:at] = sizes
    for part in parts:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        content.memory[at : at + len(part)] = part
        at += len(part)
    return content


def load_job(descriptor: int) -> tuple[Any, dict[str, str]]:
    """Return the job and the environment of `dump_job`, in a worker. Arrays are read-only views of the shared memory."""
    memory = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    count = int(np.frombuffer(memory, np.int64, count=1)[0])
    sizes, parts = np.frombuffer(memory, np.int64, count=count, offset=8).tolist(), []
    at = 8 * (count + 1)
    for size in sizes:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        parts.append(memory[at : at + size])
        at += size
    return pickle.loads(parts[0], buffers=parts[1:])

"""The template: a process that forks the workers, from its start to its end."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline.data.workers.jobs import load_job

TASK = struct.Struct("<8q")
ENDED = struct.Struct("<qq")  # a worker's number, and its wait status
PR_SET_PDEATHSIG = 1
SLICE_NS = 100_000_000  # the longest that Linux takes
MAX_DESCRIPTORS = 253  # of one message: Linux's limit
# Sent to all processes of a terminal or a job; what they mean is for the process that has the workers.
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
# A new template runs this; the arguments are its descriptor and sys.path.
BOOT = "import sys; sys.path[:] = sys.argv[2:]; from paceline.data.workers.template import serve; serve(int(sys.argv[1]))"


class Template:
    """This process's side of the template."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock, self._keys = threading.Lock(), 0
        self.owner = os.getpid()
        with theirs:
            if _may_fork():
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore"
                    )  # Python warns of threads: the template waits for none and takes no lock of theirs
                    self.process = os.fork()
                if not self.process:
                    _only(theirs.fileno())
            else:
                theirs.set_inheritable(True)
                words = [sys.executable, "-c", BOOT, str(theirs.fileno()), *sys.path]
                self.process = os.posix_spawn(sys.executable, words, os.environ)

    def key(self) -> int:
        """Return a new number for a job's workers."""
        with self._lock:
            self._keys += 1
            return self._keys

    def send(self, message: tuple[Any, ...], descriptors: Sequence[int] = ()) -> None:
        """Send one message. A template that is gone is found by `Workers.results`."""
        with self._lock, suppress(OSError):
            socket.send_fds(self._socket, [pickle.dumps(message)], descriptors)

    def load(self, module: str) -> None:
        """Import a module in the template, ahead of the first job that needs it."""
        self.send(("load", module))

    def close(self) -> None:
        """End the template, and all workers."""
        self._socket.close()

    def alive(self) -> bool:
        """Whether the template is this process's, and answers."""
        if self.owner != os.getpid():
            return False
        return not wait([self._socket], 0)  # it never sends: readable means that it ended


_template: Template | None = None
_starting = threading.Lock()


def start_template() -> Template:
    """Return this process's template, started now if there is none. Call it early: a new one needs as long as `import torch`."""
    global _template
    with _starting:
        if _template is None or not _template.alive():
            if _template is not None:
                _template.close()
            _template = Template()
            atexit.register(_template.close)
        return _template


def start_early(module: str) -> None:
    """Start the template and let it import a module, while this process does something else."""
    if hasattr(os, "memfd_create"):
        start_template().load(module)


def _may_fork() -> bool:
    if torch := sys.modules.get("torch"):
        return torch.accelerator.current_accelerator(check_available=True) is None
    return not {"onnxruntime", "openvino"} & set(sys.modules)  # which may have started CUDA without torch


def _only(descriptor: int) -> None:
    """Become the template in a process that was just forked: of its files only this one stays open, and what it prints to."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        # Not closed: objects of the process that was forked still own these numbers, and would close what gets them next.
        for other in map(int, os.listdir("/proc/self/fd")):
            if other > 2 and other not in (descriptor, null):
                os.dup2(null, other)
        serve(descriptor)
    finally:
        os._exit(1)


def serve(descriptor: int) -> None:
    """Be the template: start and stop workers until the other end of the socket is closed. Never returns."""
    import faulthandler
    import gc

    faulthandler.disable()  # it would write to a descriptor that is closed, or another one by now
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, tuple[int, int, int]] = {}  # process -> its job, its number, where its end is reported
    gc.freeze()  # else a worker's first collection would copy what it shares with the template
    while True:
        ready = wait([control, woken])  # select.select takes no descriptor from 1024 on
        if woken in ready:
            os.read(woken, 4096)
            _reap(children)
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 2**20, MAX_DESCRIPTORS)
        if not data:
            for child in children:
                os.kill(child, signal.SIGKILL)
            os._exit(0)
        what, key, *rest = pickle.loads(data)
        if what == "load":
            importlib.import_module(key)
            continue
        if what == "stop":
            for child, (job, _, _) in children.items():
                if job == key:
                    os.kill(child, signal.SIGKILL)
            continue
        importlib.import_module(rest[1])  # once, for all workers
        child = os.fork()
        if not child:
            for other in (control.fileno(), woken, wake, *(report for _, _, report in children.values())):
                with suppress(OSError):
                    os.close(other)
            number, _, cores, nice = rest
            tasks, results, _, job = descriptors[:4]
            _work(number, cores, nice, tasks, results, job, descriptors[4:])
        for position, other in enumerate(descriptors):
            if position != 2:
                os.close(other)
        children[child] = key, rest[0], descriptors[2]


def _reap(children: dict[int, tuple[int, int, int]]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        _, number, report = children.pop(child)
        with suppress(OSError):  # nobody listens any more
            os.write(report, ENDED.pack(number, status))
        os.close(report)


def _work(number: int, cores: list[int], nice: int, tasks: int, results: int, job: int, descriptors: list[int]) -> None:
    """Be a worker, to the end of the process."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setaffinity(0, cores)
        os.nice(nice)
        _long_slices()
        sent, begun = Connection(results, readable=False), None
        while content := os.read(tasks, TASK.size):
            task, value, error = TASK.unpack(content), None, None
            try:
                if begun is None:
                    if torch := sys.modules.get("torch"):
                        torch.set_num_threads(1)
                    result, environment = load_job(job)
                    os.environ.clear()
                    os.environ.update(environment)
                    begun = result.start(number, descriptors)
                value = begun(task)
            except BaseException as failure:
                error = _sendable(failure)
            sent.send_bytes(pickle.dumps((task, value, error), protocol=5))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _long_slices() -> None:
    """Ask Linux 6.12 or newer to let this process compute longer at a time than others, and begin later.

    Where workers are more than cores, each change between them empties a core's caches.
    """
    # sched_setattr; on other machines call -1, which fails harmlessly
    call = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine, -1)
    # struct sched_attr: size, SCHED_BATCH, flags, nice, priority, nanoseconds of a slice, deadline, period
    wanted = struct.pack("=IIQiIQQQ", 48, os.SCHED_BATCH, 0, os.nice(0), 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(call, 0, wanted, 0)  # an older Linux leaves the slice as it is


def _sendable(error: BaseException) -> Exception:
    """An error that can be pickled, of the kind that decides how the command ends."""
    for kind in (DataError, RecipeError, PacelineError):
        if isinstance(error, kind):
            return kind(str(error))
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    import traceback

    return RuntimeError(f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}")

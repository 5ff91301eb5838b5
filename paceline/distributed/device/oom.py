"""When the machine runs out of memory or of threads: telling such errors apart, saying them in a sentence, seeing one coming.

torch, numpy, Python and the C libraries each say it in their own way, most of them as a RuntimeError; the kinds are told
by their texts. The sources of those: c10 (CPUAllocator.cpp, CUDACachingAllocator.cpp, error.h), threading.py, dlopen(3).
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline._utils.errors import RecipeError, ResourceError
from paceline._utils.platform import get_soft_limit
from paceline._utils.text import format_count
from paceline._utils.threads import failure_in_thread
from paceline.config.plan import BatchPlan, resplit
from paceline.config.run import RunSpec
from paceline.distributed.device.compiler import explain_recompile_limit

MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "alloc_failed",
    "failed to map segment",
)
THREAD_SIGNS = ("can't start new thread", "resource temporarily unavailable", "thread creation failed")
# What a connection between ranks says of its end has the same words at times, and its cause is another rank.
CONNECTIONS = ("gloo", "nccl")
# What oneDNN says when its code generator gets no memory, and other things: a sign only where addresses are limited.
LIMITED_SIGNS = ("could not create a primitive",)
GIB = 2**30
# Addresses that a thread takes beside its stack: glibc gives each a heap of its own.
THREAD_HEAP = 2**26
# Libraries that are loaded during a run (the report's, TensorBoard's), and kernels that are compiled.
LATER_BYTES = GIB // 2


def explain_shortage(error: BaseException, run: RunSpec | None = None) -> ResourceError | None:
    """What to say where `error` is the machine's lack of memory or threads; None for any other.

    run  what is trained, for the advice
    """
    if isinstance(error, ResourceError):
        return error
    text = (str(error).splitlines() or [""])[0]
    kind = _kind(error, str(error).lower())
    if kind is None:
        return None
    if kind == "threads":
        said, fewer = "this process was refused another thread", "" if run is None else " --system.loader-threads"
        advice = f"give it fewer{fewer} (the result is the same), or raise the limits (`ulimit -u`, `ulimit -v`)"
    else:
        said, advice = "not enough memory", "use a machine with more, or a smaller --input.size or --model"
        if run is not None:
            said += f" beside forwards of {format_count(run.plan.images_per_forward, 'image')}"
            # Half of it: whoever gives the command again waits for the answer.
            if (smaller := plan_smaller_forwards(run, run.plan.images_per_forward // 2)) is not None:
                images = smaller.images_per_forward
                advice = f"go on with --system.images-per-forward {images} (the result is the same)"
        if get_address_limit() is not None:
            advice += ", or raise the limit of addresses (`ulimit -v`)"
    return ResourceError(f"{said}: {advice}. ({type(error).__name__}: {text})")


@contextmanager
def explained_failures(run: RunSpec | None = None) -> Iterator[None]:
    """A lack of memory or threads inside becomes a Shortage; SystemExit, which nothing here may raise, a failure."""
    try:
        yield
    except (Exception, SystemExit) as error:
        failure = explain_shortage(error, run) or explain_recompile_limit(error) or failure_in_thread(error)
        if failure is error:
            raise
        raise failure from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is the machine's lack of memory."""
    return _kind(error, str(error).lower()) == "memory"


def plan_smaller_forwards(run: RunSpec, most: int) -> BatchPlan | None:
    """The run's plan with forwards of at most so many images, which leave the recipe as it is; None where there is none."""
    try:
        return resplit(run.plan, most)
    except RecipeError:
        return None


def check_address_limit(step_bytes: int, threads: int) -> None:
    """Before the first step: refuse a limit of addresses (`ulimit -v`) that training will run into.

    Where it is met, in the middle of native code, libraries crash without a word.
    step_bytes  what a step takes
    threads     that will be started
    Raises PacelineError naming both numbers.
    """
    limit = get_address_limit()
    if limit is None:
        return
    stack = get_soft_limit("RLIMIT_STACK") or 2**21
    libraries = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    wanted = libraries + step_bytes + threads * (stack + THREAD_HEAP) + LATER_BYTES
    if wanted > limit:
        raise RecipeError(
            f"ulimit -v: this process may use {limit / GIB:.1f} GiB of addresses, and training will take about "
            f"{wanted / GIB:.1f} (libraries alone {libraries / GIB:.1f}). Raise it, "
            f"ulimit -v {-(-wanted // 2**30) * 2**20} or more, or lift it: ulimit -v unlimited"
        )


def get_address_limit() -> int | None:
    """Bytes that this process may map (`ulimit -v`); None without a limit."""
    return get_soft_limit("RLIMIT_AS")


def _kind(error: BaseException, text: str) -> str | None:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN):
        return "memory" if error.errno == errno.ENOMEM else "threads"
    if not isinstance(error, RuntimeError | ImportError) or any(name in text for name in CONNECTIONS):
        return None
    if any(sign in text for sign in THREAD_SIGNS):
        return "threads"
    limited = LIMITED_SIGNS if get_address_limit() is not None else ()
    return "memory" if any(sign in text for sign in (*MEMORY_SIGNS, *limited)) else None

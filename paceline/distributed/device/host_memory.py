"""Main memory: how much this process could still take, what the C library keeps of it, and what to say when it, or threads, ran out.

A step allocates and frees the same gigabytes as the step before. glibc's own rule gives them back to the system, which hands them out
again page by page, each one cleared, to the one thread that asks: a sixth of ResNet-50's step (results/kept-memory).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.errors import RecipeError, ResourceError
from paceline._utils.platform import get_soft_limit
from paceline._utils.text import format_count
from paceline._utils.threads import failure_in_thread
from paceline.config.plan import BatchPlan, resplit
from paceline.config.run import RunSpec
from paceline.distributed.device.compiler import explain_recompile_limit

if TYPE_CHECKING:
    import torch


MEMINFO, CGROUPS, GROUPS_OF_PROCESS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1  # is what lies free at the end of the heap given back
# As large as glibc takes it. Larger tensors come from the system and go back to it: kept, they made a full-size Mask R-CNN half as
# fast again, but its heap grew by half too, because they are of another size in every step.
LARGEST_KEPT = 32 * 2**20
# A person's own choice, which stays.
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def read_meminfo(file: Path = MEMINFO) -> dict[str, int]:
    """Name -> its number, in KiB or a count; {} where there is no such file (not Linux)."""
    try:
        return {name: int(number) for name, number in re.findall(r"^([^:\n]+): *(\d+)", file.read_text(), re.MULTILINE)}
    except OSError:
        return {}


def get_free_memory(
    meminfo: Path = MEMINFO, cgroups: Path = CGROUPS, groups_of_process: Path = GROUPS_OF_PROCESS
) -> int | None:
    """Bytes, page cache that can be given up included; None where it is unknown (not Linux).

    meminfo, cgroups, groups_of_process  where Linux has them, for tests
    """
    memory = read_meminfo(meminfo)
    if "MemAvailable" not in memory:
        return None
    free = [memory["MemAvailable"] * 1024]
    try:
        named = [line.split(":", 2) for line in groups_of_process.read_text().splitlines()]
    except OSError:
        named = []
    for _, controllers, path in (parts for parts in named if len(parts) == 3):
        # Version 2 has one tree; version 1 a tree for memory. A container often sees its own group as the root.
        root = cgroups if not controllers else cgroups / "memory" if "memory" in controllers.split(",") else None
        if root is None:
            continue
        group = root / path.strip("/")
        while group != root.parent:
            left = _left_in(group)
            free += [] if left is None else [left]
            group = group.parent
    return max(0, min(free))


def _left_in(group: Path) -> int | None:
    """Bytes up to a control group's limit; None where it has none, or is not seen from here."""
    for limit_name, used_name, file_pages in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = ((group / name).read_text().strip() for name in (limit_name, used_name))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and used.isdigit():
            return int(limit) - int(used) + int(stat.get(file_pages, 0))
    return None


def set_malloc_trim_threshold(device: torch.device, environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep what tensors on a CPU give back, for good; -> whether it does.

    Not where another device computes, where the environment says how memory is kept, and with a C library other than glibc.
    """
    chosen = any(name in environ for name in CHOSEN) or "glibc.malloc." in environ.get("GLIBC_TUNABLES", "")
    if device.type != "cpu" or chosen or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # The first of them alone would be worse than none: with either, the threshold no longer follows what is freed.
    return bool(library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and library.mallopt(M_TRIM_THRESHOLD, NEVER))


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
        said, fewer = "the operating system rejected a new thread", "threads" if run is None else "--system.num-workers"
        advice = f"Use fewer {fewer} (the results do not change), or raise the limits (`ulimit -u`, `ulimit -v`)"
    else:
        said, advice = "not enough memory", "Use a machine with more memory, or a smaller --input.image-size or --model"
        if run is not None:
            said += f" for micro-batches of {format_count(run.plan.micro_batch_size, 'image')}"
            # Half of it, because a second failure would cost the user another start.
            if (smaller := plan_smaller_forwards(run, run.plan.micro_batch_size // 2)) is not None:
                images = smaller.micro_batch_size
                advice = f"Resume with --system.micro-batch-size {images} (the results do not change)"
        if get_address_limit() is not None:
            advice += ", or raise the limit of the address space (`ulimit -v`)"
    return ResourceError(f"{said} ({type(error).__name__}: {text}). {advice}.")


@contextmanager
def explained_failures(run: RunSpec | None = None) -> Iterator[None]:
    """A lack of memory or threads inside becomes a ResourceError; SystemExit, which nothing here may raise, a failure."""
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
            f"ulimit -v: the address space is limited to {limit / GIB:.1f} GiB, and training needs about "
            f"{wanted / GIB:.1f} GiB ({libraries / GIB:.1f} GiB for libraries). Raise the limit to at least "
            f"`ulimit -v {-(-wanted // 2**30) * 2**20}`, or remove it: `ulimit -v unlimited`"
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

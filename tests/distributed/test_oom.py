"""Lack of memory and of threads: told from other errors by what libraries really say, and seen coming."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import check_text, raises

import paceline._utils.threads
from paceline._utils.errors import PacelineError, RecipeError, ResourceError
from paceline._utils.threads import Thread
from paceline.distributed.device.host_memory import check_address_limit, explain_shortage, explained_failures

ROOT = Path(__file__).resolve().parents[2]


def raised(action) -> Exception:
    with pytest.raises(Exception) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        raised(lambda: torch.empty(2**50)),
        raised(lambda: np.empty(2**55, np.uint8)),
        raised(lambda: bytearray(2**60)),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("x.so: failed to map segment from shared object"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_library_s_want_of_memory_is_one(error):
    found = explain_shortage(error)
    assert isinstance(found, ResourceError) and check_text(str(found), "memory")
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")]
)
def test_a_refused_thread_is_one_too(error):
    check_text(str(explain_shortage(error)), "thread", str(error))


@pytest.mark.parametrize(
    "error",
    [
        PacelineError("out of memory"),
        RuntimeError("shapes differ"),
        OSError(errno.ENOENT, "gone"),
        KeyError("bad_alloc"),
        RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error: Resource temporarily unavailable"),
    ],
    ids=repr,
)
def test_other_errors_are_none(error):
    assert explain_shortage(error) is None
    with pytest.raises(type(error)) as caught, explained_failures():
        raise error
    assert caught.value is error


def test_exiting_is_a_failure():
    with raises(RuntimeError, "MainThread", "SystemExit: 0"), explained_failures():
        sys.exit(0)


def test_a_thread_that_never_begins_is_an_error_and_no_wait_without_end(monkeypatch):
    monkeypatch.setattr(threading, "_start_new_thread", lambda *arguments: 0)
    monkeypatch.setattr(threading, "_start_joinable_thread", lambda *arguments, **more: 0, raising=False)
    monkeypatch.setattr(paceline._utils.threads, "LOOKS", 2)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Thread(target=print, daemon=True).start()


def test_a_limit_of_addresses_that_a_step_does_not_fit_is_refused():
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    check_address_limit(2**60, threads=4)  # no limit, no refusal
    resource.setrlimit(resource.RLIMIT_AS, (used + 8 * 2**30, before[1]))
    try:
        check_address_limit(2**30, threads=4)
        with raises(RecipeError, "ulimit -v"):
            check_address_limit(8 * 2**30, threads=4)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


LIBRARY = """
import ctypes, sys, threading
from paceline.training.logging.stdout_guard import guard_exit
guard_exit()
guard_exit()
if sys.argv[1] == "library":
    thread = threading.Thread(target=ctypes.CDLL(None).exit, args=(1,))
    thread.start()
    thread.join()
sys.exit(7)
"""


@pytest.mark.parametrize(("who", "code"), [("library", 3), ("python", 7)])
def test_a_library_that_calls_exit_has_last_words_and_an_end_in_good_order_has_none(who, code):
    done = subprocess.run([sys.executable, "-c", LIBRARY, who], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code
    assert done.stderr.count("a library") == (who == "library")

"""Memory that tensors give back is had again without the system: counted in pages that it hands out."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from by_night import ONE_MORE

from paceline.distributed.device.host_memory import set_malloc_trim_threshold

MIB = 2**20
# 40 tensors of 8 MiB, twice: pages handed out in the second round.
ROUNDS = f"""
import resource, torch
from paceline.distributed.device.host_memory import set_malloc_trim_threshold
print(set_malloc_trim_threshold(torch.device("cpu")))
def fill():
    tensors = [torch.zeros(8 * {MIB}, dtype=torch.uint8).add_(1) for _ in range(40)]
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize())
"""
needs_glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")


def handed_out(monkeypatch, **environment: str) -> tuple[bool, int]:
    """-> whether memory is kept, and bytes that the system handed out in the second round."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True)
    kept, size = done.stdout.split()
    return kept == "True", int(size)


@needs_glibc
def test_what_tensors_gave_back_is_had_again_without_the_system(monkeypatch):
    kept, size = handed_out(monkeypatch)
    assert kept and size < 100 * MIB  # of 320; the heap has holes


@needs_glibc
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("MALLOC_TRIM_THRESHOLD_", "131072", marks=ONE_MORE),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
    ],
)
def test_a_persons_own_choice_stays(monkeypatch, name, value):
    kept, size = handed_out(monkeypatch, **{name: value})
    assert not kept and size > 300 * MIB


def test_the_host_of_an_accelerator_is_left_alone():
    assert not set_malloc_trim_threshold(torch.device("meta"))

"""stdout while a group is founded: gloo's lines are gone, all else stays."""

from __future__ import annotations

import os

import pytest

from paceline.distributed.comm.gloo import suppress_gloo_output


def write(text: str) -> None:
    """As a C++ library does, past Python."""
    os.write(1, text.encode())


def test_what_a_library_prints_inside_is_gone_and_all_else_arrives(capfd):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    write("before ")
    with suppress_gloo_output("gloo", prints=True):
        write("[Gloo] Rank 0 is connected ")
    with pytest.raises(ValueError, match="of the block"), suppress_gloo_output("gloo", prints=True):
        raise ValueError("of the block")
    with suppress_gloo_output("nccl", prints=True):
        write("NCCL INFO ")
    with suppress_gloo_output("gloo", prints=False):
        write("newer ")
    write("after")
    assert capfd.readouterr().out == "before NCCL INFO newer after"
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


def test_a_closed_stdout_stays_closed(capfd):
    kept = os.dup(1)
    os.close(1)
    try:
        with suppress_gloo_output("gloo", prints=True):
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(1)
    finally:
        os.dup2(kept, 1)
        os.close(kept)

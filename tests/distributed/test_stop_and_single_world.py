"""Stop requests in one process, the world of one rank, and small pure parts of the rendezvous."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from messages import raises

from paceline.distributed.comm import stop as stop_module
from paceline.distributed.comm.failure import is_secondary
from paceline.distributed.comm.interfaces import (
    describe_interfaces,
    find_interface_towards,
    is_address_of_this_host,
    list_interfaces,
)
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.rendezvous import format_ranks
from paceline.distributed.comm.stop import StopRequest, StopVote, catch_stop
from paceline.distributed.comm.world import open_distributed

CPU = torch.device("cpu")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_only_asks_to_stop_and_the_handler_before_comes_back(number):
    before = signal.getsignal(number)
    with catch_stop() as request:
        assert request.reason() == ""
        os.kill(os.getpid(), number)
        assert request.reason() == "signal"
    assert signal.getsignal(number) is before


def test_a_second_interrupt_means_it():
    before = signal.getsignal(signal.SIGINT)  # ignored where a shell started this in the background
    with pytest.raises(KeyboardInterrupt), catch_stop() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.reason() == "signal"
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_only_the_file_is_looked_at(tmp_path):
    reasons = []

    def run() -> None:
        with catch_stop(tmp_path / "STOP") as request:
            (tmp_path / "STOP").touch()
            reasons.append(request.reason())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert reasons == ["STOP file"]


def test_the_stop_file_is_looked_for_once_a_second_at_most(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(stop_module.time, "monotonic", lambda: now)
    request = StopRequest(tmp_path / "STOP")
    assert request.reason() == ""
    (tmp_path / "STOP").touch()
    now = 100.9
    assert request.reason() == ""
    now = 101.0
    assert request.reason() == "STOP file"


def test_a_signal_outweighs_a_time_budget_and_not_the_other_way():
    request = StopRequest()
    request.request_stop("time budget")
    assert request.reason() == "time budget"
    request.request_stop("signal")
    request.request_stop("time budget")
    assert request.reason() == "signal"


def test_alone_the_vote_is_the_request_at_the_same_step():
    with open_distributed(SINGLE, device=CPU) as world:
        request = StopRequest()
        vote = StopVote(world, request)
        assert not vote.vote() and not vote.stopping_here() and not vote.agree(False)
        request.request_stop("signal")
        assert vote.stopping_here() and vote.agree(True) and vote.vote() and vote.reason == "signal"
        vote.close()


def test_a_world_of_one_does_nothing_and_says_the_same():
    with open_distributed(SINGLE, device=CPU) as world:
        assert (world.rank, world.world, world.local_rank, world.is_main) == (0, 1, 0, True)
        assert not dist.is_initialized()
        tensor = torch.ones(3)
        assert world.sum_(tensor) is tensor and tensor.tolist() == [1, 1, 1]
        world.broadcast_([tensor])
        world.barrier()
        assert world.gather_bytes(b"abc") == [b"abc"]
        assert world.new_groups(1) is None
        with raises(ValueError, "1 ranks", "groups of 2"):
            world.new_groups(2)
        world.post("key", "value")
        assert world.wait_for("key") == "value"
        with pytest.raises(KeyError):
            world.wait_for("never posted")


def test_alone_an_exception_passes_through_unchanged():
    with pytest.raises(ZeroDivisionError), open_distributed(SINGLE, device=CPU):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "ranks, text", [([2], "rank 2"), ([1, 3], "ranks 1, 3"), ([8, 9, 10, 15], "ranks 8-10, 15"), ([0, 1], "ranks 0, 1")]
)
def test_ranks_are_named_in_runs(ranks, text):
    assert format_ranks(ranks) == text


def test_broken_connections_are_told_from_errors_of_ones_own():
    closed = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    assert is_secondary(closed) and is_secondary(dist.DistNetworkError("reset"))
    wrapped = ValueError("while averaging")
    wrapped.__cause__ = closed
    assert is_secondary(wrapped)
    assert not is_secondary(RuntimeError("CUDA out of memory")) and not is_secondary(KeyError("x"))


def test_this_hosts_interfaces_are_known():
    assert list_interfaces()["lo"] == "127.0.0.1" and "lo 127.0.0.1" in describe_interfaces()
    assert find_interface_towards("127.0.0.1") == "lo"
    assert is_address_of_this_host("127.0.0.1") and not is_address_of_this_host("198.51.100.1")

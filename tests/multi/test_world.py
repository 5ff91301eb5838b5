"""Several processes: they find each other, talk, stop together, and end together when one of them fails."""

from __future__ import annotations

import re
import signal
import socket

import pytest
import torch.distributed as dist
from messages import check_line
from small_run import wait_until
from zygote import Ended, by_hand

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


def codes(ended: list[Ended]) -> list[int]:
    return [rank.code for rank in ended]


@pytest.mark.parametrize("world", [2, 3])
def test_sums_broadcasts_and_bytes_of_uneven_length_arrive(zygote, tmp_path, port, world):
    ended = zygote.run(tmp_path, [by_hand(rank, world, port) for rank in range(world)], "talk")
    assert codes(ended) == [0] * world, ended
    assert [rank.text.strip() for rank in ended] == [
        f"rank {rank} of {world} talked (torchrun) hosts {world if rank == 0 else 0}" for rank in range(world)
    ]


def test_groups_hold_consecutive_ranks(zygote, tmp_path, port):
    ended = zygote.run(tmp_path, [by_hand(rank, 4, port) for rank in range(4)], "halves")
    assert codes(ended) == [0] * 4, ended


def test_many_ranks_may_connect_lazily(zygote, tmp_path, port):
    environs = [by_hand(rank, 2, port, TORCH_GLOO_LAZY_INIT="1") for rank in range(2)]
    assert codes(zygote.run(tmp_path, environs, "talk")) == [0, 0]


def test_three_of_four_ranks_name_the_missing_one(zygote, tmp_path, port):
    environs = [by_hand(rank, 4, port, TIMEOUT="3") for rank in (0, 1, 3)]
    ended = zygote.run(tmp_path, environs, "talk")
    assert codes(ended) == [2, 2, 2]
    for rank in ended:
        assert check_line(rank.text, "rank 2 (of 4)", "3 s", f"127.0.0.1:{port}")
        assert "connected: ranks 0, 1, 3 on" in rank.text and "lo 127.0.0.1" in rank.text
        assert "Traceback" not in rank.text


def test_without_rank_0_the_others_say_which_address_they_tried(zygote, tmp_path, port):
    (ended,) = zygote.run(tmp_path, [by_hand(1, 2, port, TIMEOUT="1")], "talk")
    assert ended.code == 2
    check_line(ended.text, "rank 0", "1 s", f"127.0.0.1:{port} ([Errno 111] Connection refused)")
    assert "lo 127.0.0.1" in ended.text and "Traceback" not in ended.text


def test_a_rank_0_that_dies_in_the_roll_call_is_named_by_those_who_came(zygote, tmp_path, port):
    job = zygote.start(tmp_path, [by_hand(rank, 3, port, TMPDIR=str(tmp_path)) for rank in (0, 1)], "talk")
    wait_until(lambda: _is_there(port, 1), "rank 1 in the roll call")
    job.send(signal.SIGKILL, rank=0)
    ended = job.wait()
    assert codes(ended) == [-9, 2]
    check_line(ended[1].text, f"rank 1 (of 3) on {socket.gethostname()}", "store", f"127.0.0.1:{port}")
    assert "Traceback" not in ended[1].text


def _is_there(port: int, rank: int) -> bool:
    """Whether a rank has signed in."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    return client.check([f"paceline/127.0.0.1:{port}.0/here/{rank}"])


def test_a_rank_that_is_there_twice_is_refused(zygote, tmp_path, port):
    environs = [by_hand(rank, 3, port, TIMEOUT="4") for rank in (0, 1, 1)]
    ended = zygote.run(tmp_path, environs, "talk")
    assert codes(ended) == [2, 2, 2]
    assert sum("rank 1" in rank.text and "MASTER_PORT" in rank.text for rank in ended) == 1


def test_a_port_that_another_program_has_is_refused_with_the_way_out(zygote, tmp_path, port):
    with socket.create_server(("", port)):
        (ended,) = zygote.run(tmp_path, [by_hand(0, 2, port, TIMEOUT="2")], "talk")
    assert ended.code == 2 and check_line(ended.text, "rank 0", f"port {port}") and "MASTER_PORT" in ended.text


@pytest.mark.parametrize("who, how", [(0, "raise"), (1, "raise"), (1, "voting")])
def test_an_exception_on_one_rank_ends_all_with_its_traceback_alone(zygote, tmp_path, port, who, how):
    ended = zygote.run(tmp_path, [by_hand(rank, 3, port) for rank in range(3)], "hang", str(who), how)
    assert codes(ended) == [3, 3, 3]
    assert ended[who].text.count("Traceback") == 1 and "KeyError: 'no such layer'" in ended[who].text
    for rank in {0, 1, 2} - {who}:
        assert "Traceback" not in ended[rank].text
        if how != "voting":
            assert check_line(ended[rank].text, f"rank {rank}", f"rank {who} (of 3)", "KeyError: 'no such layer'")
        assert len(re.findall(rf"rank {rank}: \w+.*rank {who} \(of 3\)", ended[rank].text)) == 1


def test_a_users_error_on_one_rank_ends_all_without_a_traceback(zygote, tmp_path, port):
    ended = zygote.run(tmp_path, [by_hand(rank, 2, port) for rank in range(2)], "hang", "1", "user")
    assert codes(ended) == [2, 2]
    assert "photos/cat.jpg: truncated" in ended[1].text
    assert not any("Traceback" in rank.text for rank in ended)


@pytest.mark.parametrize("who", [0, 2])
def test_a_killed_rank_is_named_by_the_others(zygote, tmp_path, port, who):
    ended = zygote.run(tmp_path, [by_hand(rank, 3, port) for rank in range(3)], "hang", str(who), "kill")
    assert codes(ended) == [-9 if rank == who else 3 for rank in range(3)]
    for rank in {0, 1, 2} - {who}:
        assert f"heard: rank {who} (of 3) failed:" in ended[rank].text
        assert "Traceback" not in ended[rank].text


def test_a_rank_killed_while_nobody_talks_is_noticed_by_its_silence(zygote, tmp_path, port):
    environs = [by_hand(rank, 2, port, STALE="2") for rank in range(2)]
    # rank 0 sleeps for 60 s; only the missing beats can tell it
    ended = zygote.run(tmp_path, environs, "mixed", "1")
    assert codes(ended) == [3, -9]
    assert "from rank 1" in ended[0].text


def test_the_rank_that_serves_the_store_leaves_last(zygote, tmp_path, port):
    assert codes(zygote.run(tmp_path, [by_hand(rank, 3, port) for rank in range(3)], "slow to leave")) == [0, 0, 0]


def test_a_rank_that_rests_for_a_few_seconds_is_not_lost(zygote, tmp_path, port):
    assert codes(zygote.run(tmp_path, [by_hand(rank, 2, port) for rank in range(2)], "rest")) == [0, 0]


def test_silence_towards_each_other_is_no_failure(zygote, tmp_path, port):
    environs = [by_hand(rank, 2, port, STALE="1.5") for rank in range(2)]
    assert codes(zygote.run(tmp_path, environs, "pause", "4")) == [0, 0]


@pytest.mark.parametrize("how, reason", [("SIGTERM", "signal"), ("SIGUSR1", "signal"), ("file", "STOP file")])
def test_all_ranks_stop_after_the_same_step(zygote, tmp_path, port, how, reason):
    stop = str(tmp_path / "STOP")
    ended = zygote.run(tmp_path, [by_hand(rank, 3, port, STOP_FILE=stop) for rank in range(3)], "steps", "1", how)
    assert codes(ended) == [0, 0, 0], ended
    said = {re.sub(r"^rank \d+ ", "", rank.text.strip()) for rank in ended}
    assert len(said) == 1
    step = int(re.fullmatch(rf"stopped at step (\d+): {reason}", said.pop())[1])  # type: ignore[index]
    if reason == "signal":
        assert step in (6, 7)


def test_a_signal_reaches_the_other_shards_of_an_evaluation(zygote, tmp_path, port):
    ended = zygote.run(tmp_path, [by_hand(rank, 2, port) for rank in range(2)], "uneven")
    assert codes(ended) == [0, 0], ended


def test_interrupted_ranks_leave_in_good_order(zygote, tmp_path, port):
    ended = zygote.run(tmp_path, [by_hand(rank, 2, port) for rank in range(2)], "leave")
    assert [(rank.code, rank.text) for rank in ended] == [(75, ""), (75, "")]

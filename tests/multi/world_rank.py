"""One rank of the tests in test_world.py: `python world_rank.py MODE [ARGUMENT]`, with a launcher's variables set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import torch

from paceline._utils.errors import PacelineError
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.stop import StopVote, catch_stop
from paceline.distributed.comm.world import DistContext, open_distributed


def talk(world: DistContext) -> None:
    """Every kind of message once; any wrong answer fails the rank."""
    rank, size = world.rank, world.world
    total = world.sum_(torch.full((2, 3), float(rank + 1)))
    assert total.tolist() == [[size * (size + 1) / 2] * 3] * 2
    images = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    world.sum_(images)
    assert images.is_contiguous(memory_format=torch.channels_last) and images.unique().tolist() == [size * (size - 1) / 2]
    weights = [
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last) * (rank == 0),
        torch.tensor(rank == 0),
    ]
    world.broadcast_(weights)
    assert weights[0].flatten().tolist() == list(range(24)) and weights[0].stride() == (24, 1, 8, 2) and weights[1]
    gathered = world.gather_bytes(bytes([rank]) * (rank * 1000))  # rank 0 sends nothing
    assert gathered == ([bytes([r]) * (r * 1000) for r in range(size)] if rank == 0 else None)
    if rank == size - 1:
        world.post("score", "0.75")
    assert world.wait_for("score", poll_seconds=0.02) == "0.75"
    pair = world.new_groups(size)
    again = world.new_groups(size)
    assert pair is again and world.new_groups(1) is None
    if pair is not None:
        here = torch.ones(1)
        torch.distributed.all_reduce(here, group=pair)
        assert here.item() == size
    world.barrier()


def halves(world: DistContext) -> None:
    """Groups of two among four."""
    group = world.new_groups(2)
    ranks = torch.tensor([float(world.rank)])
    torch.distributed.all_reduce(ranks, group=group)
    assert ranks.item() == (1.0 if world.rank < 2 else 5.0)


def steps(world: DistContext, who: int, how: str) -> None:
    """Steps of 20 ms until the vote; one rank is asked to stop at its step 5."""
    stop_file = Path(os.environ["STOP_FILE"]) if world.rank == who else None
    with catch_stop(stop_file) as request:
        vote = StopVote(world, request)
        step = 0
        while not vote.vote():
            step += 1
            time.sleep(0.02)
            if step == 5 and world.rank == who:
                if how == "file":
                    stop_file.touch()  # type: ignore[union-attr]
                else:
                    os.kill(os.getpid(), getattr(signal, how))
        vote.close()
    print(f"rank {world.rank} stopped at step {step}: {vote.reason}", flush=True)


def told(world: DistContext) -> None:
    """Steps of 20 ms until the file STOP_FILE is there; then rank 0 posts and the others read."""
    print(f"rank {world.rank} ready", flush=True)
    with catch_stop(Path(os.environ["STOP_FILE"])) as request, closing(StopVote(world, request)) as vote:
        while not vote.vote():
            vote.stopping_here()
            time.sleep(0.02)
        reason = vote.reason
    if world.is_main:
        time.sleep(0.5)
        world.post("score", "0.75")
    print(f"rank {world.rank} read {world.wait_for('score')} after a {reason}", flush=True)


def uneven(world: DistContext) -> None:
    """An evaluation whose shards differ; rank 1 is asked to stop, rank 0 hears of it without a collective."""
    with catch_stop() as request:
        vote = StopVote(world, request)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        batches = 0
        for _ in range(3 if world.rank == 1 else 100_000):
            if vote.stopping_here():
                break
            batches += 1
            time.sleep(0.005)
        cut_short = batches < (3 if world.rank == 1 else 100_000)
        assert vote.agree(cut_short) and vote.reason == "signal"
        assert not vote.agree(False)
        vote.close()
    print(f"rank {world.rank} agreed", flush=True)


def hang(world: DistContext, who: int, how: str) -> None:
    """Rank `who` fails in some way while the others wait in a collective, or sleep."""
    world.barrier()
    if how == "voting":
        vote_until_failure(world, who)
    if world.rank == who:
        if how == "user":
            raise PacelineError("photos/cat.jpg: truncated")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("no such layer")
    assert world.watch is not None
    world.watch.before_exit.append(lambda reason: print(f"rank {world.rank} heard: {reason}", flush=True))
    world.barrier()


def vote_until_failure(world: DistContext, who: int) -> None:
    """Rank `who` fails while the answer to its last vote needs the others, who are slower."""
    with catch_stop() as request, closing(StopVote(world, request)) as vote:
        for step in range(1000):
            vote.vote()
            if world.rank == who and step == 2:
                raise KeyError("no such layer")
            time.sleep(0.05 if world.rank == who else 0.5)


def mixed(world: DistContext, who: int) -> None:
    """Rank `who` is killed while the others do long work without any collective."""
    world.barrier()
    if world.rank == who:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def slow_to_leave(world: DistContext) -> None:
    """The last rank takes two seconds to say that it leaves."""
    watch = world.watch
    assert watch is not None
    if world.rank == world.world - 1:
        finish = watch.finish
        watch.finish = lambda: (time.sleep(2.0), finish())[1]  # type: ignore[method-assign]


def rest(world: DistContext) -> None:
    """The last rank is frozen for three seconds, which is no failure yet."""
    world.barrier()
    if world.rank == world.world - 1:
        subprocess.Popen(["sh", "-c", f"sleep 3; kill -s CONT {os.getpid()}"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def main() -> None:
    mode, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    launch = read_launch(os.environ)
    timeout = float(os.environ.get("TIMEOUT", "60"))
    folder = Path(os.environ["SECRET_FOLDER"]) if "SECRET_FOLDER" in os.environ else None
    while "LATE" in os.environ and not Path(os.environ["LATE"]).exists():
        time.sleep(0.01)
    stale = float(os.environ.get("STALE", "20"))
    try:
        with open_distributed(
            launch, device=torch.device("cpu"), secret_folder=folder, timeout_seconds=timeout, stale_seconds=stale
        ) as world:
            if mode == "talk":
                talk(world)
                print(f"rank {world.rank} of {world.world} talked ({launch.kind}) hosts {len(world.hosts)}", flush=True)
            elif mode == "halves":
                halves(world)
            elif mode == "steps":
                steps(world, int(arguments[0]), arguments[1])
            elif mode == "told":
                told(world)
            elif mode == "uneven":
                uneven(world)
            elif mode == "hang":
                hang(world, int(arguments[0]), arguments[1])
            elif mode == "slow to leave":
                slow_to_leave(world)
            elif mode == "rest":
                rest(world)
            elif mode == "mixed":
                mixed(world, int(arguments[0]))
            elif mode == "pause":  # all ranks silent towards each other for longer than the stale limit
                time.sleep(float(arguments[0]) * world.rank)
                world.barrier()
            elif mode == "leave":
                raise SystemExit(75)
    except PacelineError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()

"""The communication bench: what is sent, the fitted model, what is refused. Real ranks: tests/multi/test_bench_comm_ranks.py."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
import torchvision
from tiny_runs import command, refused
from torch.nn.parallel import DistributedDataParallel

from paceline.cli.commands.bench import BenchCommFlags, _measure_comm
from paceline.config.system import System
from paceline.distributed.comm.benchmark import (
    MIB,
    CommMessage,
    _is_right,
    bus_factor,
    fit_latency,
    gradient_buckets,
    make_messages,
)
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.messages import Messages
from paceline.distributed.comm.world import DistContext
from paceline.models.registry import WORKLOADS, gradient_sizes

NETWORKS = {name: gradient_sizes(name) for name in WORKLOADS}


def test_gradients_are_as_large_as_the_published_networks_say():
    # 25,557,032 parameters: torchvision's ResNet-50; 51.2 MB in half precision, as a published system's own check sends.
    assert sum(gradient_sizes("classification")) == 25_557_032
    half = {m.about: m.bytes for m in make_messages(25, NETWORKS) if m.number == "fp16"}
    assert half["classification gradient"] == pytest.approx(51.2e6, rel=0.01)
    assert half["detection gradient"] == pytest.approx(40e6, rel=0.01)  # "about 40 MB", says a published log of its SSD


def test_messages_are_cut_into_buckets_that_hold_the_whole_gradient():
    found = make_messages(25, NETWORKS)
    whole = {m.about: m.bytes for m in found if m.kind == "all-reduce" and m.number == "fp32"}
    cut = [m for m in found if m.kind == "buckets"]
    assert len(cut) == 3
    for message in cut:
        name = message.about.split()[0]
        assert message.bytes == whole[f"{name} gradient"] and f"in {len(message.sizes)} buckets" in message.about
        assert all(4 * size >= 25 * MIB for size in message.sizes[1:-1]) and 4 * message.sizes[0] >= MIB
    (one,) = [m for m in make_messages(1000, NETWORKS) if m.about.startswith("detection in")]
    assert len(one.sizes) == 1 and one.about == "detection in 1 bucket"  # none stays small where a size was asked for


@pytest.fixture
def alone():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("limit", [None, 2])
def test_buckets_are_those_that_data_parallel_sends(alone, limit):
    network = torchvision.models.resnet18(num_classes=10)
    parallel = DistributedDataParallel(network) if limit is None else DistributedDataParallel(network, bucket_cap_mb=limit)
    sent: list[int] = []

    def note(_, bucket):  # torch compares annotations with its types, and would not know them as text
        sent.append(bucket.buffer().numel())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    parallel.register_comm_hook(None, note)
    for _ in range(2):  # buckets are put together anew after the first backward
        sent.clear()
        parallel(torch.randn(2, 3, 32, 32)).sum().backward()
    sizes = [parameter.numel() for parameter in network.parameters()]
    # Where a size is asked for, torch takes it for the first bucket too.
    ours = gradient_buckets(sizes, 25 * MIB) if limit is None else gradient_buckets(sizes, limit * MIB, first=limit * MIB)
    # Within a block, torch meets the shortcut's parameters at another time than we say: the buckets' ends may differ by one.
    assert len(ours) == len(sent) and sum(ours) == sum(sent) > 11e6
    assert all(abs(one - other) < 600_000 for one, other in zip(ours, sent)), (ours, sent)


def test_the_fit_finds_the_model_that_made_the_times():
    sizes = [8, 4096, 120_000, 1e6, 5e7, 1e8]
    found = fit_latency([(size, 30e-6 + size * 0.5e-9) for size in sizes])
    assert found is not None
    assert found.alpha == pytest.approx(30e-6) and found.beta == pytest.approx(0.5e-9) and found.worst < 1e-9
    assert found.seconds(1e9) == pytest.approx(0.50003)
    noisy = fit_latency([(size, (30e-6 + size * 0.5e-9) * (1.2 if place % 2 else 0.8)) for place, size in enumerate(sizes)])
    assert noisy is not None and 0.15 < noisy.worst < 0.6 and noisy.alpha == pytest.approx(30e-6, rel=0.3)


def test_the_fit_of_odd_times_has_no_negative_part_and_of_one_size_there_is_none():
    falling, through_0 = fit_latency([(8, 2e-3), (1e6, 1e-3)]), fit_latency([(1e3, 1e-9), (1e6, 1e-3), (1e9, 1.2)])
    assert falling is not None and falling.beta == 0 and 1e-3 <= falling.alpha <= 2e-3
    assert through_0 is not None and through_0.alpha == 0 and through_0.beta > 0
    assert fit_latency([(8, 1e-3), (8, 2e-3)]) is None and fit_latency([]) is None
    assert bus_factor(2) == 1 and bus_factor(8) == pytest.approx(1.75)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_sum_that_lacks_a_rank_or_does_nothing_is_wrong(ranks, size):
    part, message = torch.zeros(size, dtype=torch.float16), CommMessage("all-reduce", "", (size,), "fp16")
    others = [torch.arange(size) + rank for rank in range(ranks)]

    def right(adds: Iterable[int], rank: int = 1) -> bool:
        world = DistContext(rank, ranks, rank, ranks, torch.device("cpu"), Messages(dist.HashStore(), b"", rank))
        return _is_right(world, message, [part], lambda: part.copy_(sum(others[other] % 3 for other in adds)))

    assert right(range(ranks)) and right(range(ranks), rank=0)
    if size >= 3:
        assert not any(right(set(range(ranks)) - {lost}) for lost in range(ranks))
        assert not right([1])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nproc-per-node", "1"], "--nproc-per-node 1"),
        (["--nproc-per-node", "-2"], "--nproc-per-node -2"),
        (["--nproc-per-node", "9999"], "--nproc-per-node 9999"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--ddp-bucket-mib", "-1"], "--ddp-bucket-mib"),
        (["--system", "h100x9"], "h100x9"),
        (["--system", "h100x8", "--nproc-per-node", "8"], "CUDA"),
        (["--nproc-per-nod", "2"], "--nproc-per-node"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_rank_is_started(capsys, words, named):
    refused(command(capsys, "bench", "comm", *words), named)


def test_one_rank_of_a_launcher_and_another_number_of_ranks_are_refused(capsys, monkeypatch):
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}.items():
        monkeypatch.setenv(name, value)
    refused(command(capsys, "bench", "comm"), "bench comm")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    refused(command(capsys, "bench", "comm", "--nproc-per-node", "3"), "--nproc-per-node 3 ... 2")


@pytest.mark.parametrize(("out", "folder"), [("", "."), ("found/comm.json", "found")])
def test_ranks_find_the_secret_beside_the_answer_or_in_the_working_directory(out, folder, tmp_path, monkeypatch):
    def opened(launch, *, device, secret_folder):
        raise InterruptedError(secret_folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.distributed.comm.world.open_distributed", opened)
    with pytest.raises(InterruptedError) as found:
        _measure_comm(BenchCommFlags(output=out), System("cpu"), SINGLE)
    assert found.value.args == (tmp_path / folder,)

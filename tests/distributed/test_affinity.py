"""Binding a process: what launchers left to its ranks is dealt out, all threads move, thread counts follow, adapters are named."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from messages import raises
from sysfs_machines import add_adapter, add_device, even_machine, lay_out

import paceline.distributed.device.affinity as placing
from paceline._utils.errors import RecipeError
from paceline._utils.platform import get_allowed_cpus
from paceline._utils.reporter import SILENT, Lines
from paceline.config.system import System
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.messages import Messages
from paceline.distributed.comm.world import DistContext
from paceline.distributed.device.affinity import assign_cores, bind_cores, bind_threads, choose_adapter, get_node_name
from paceline.distributed.device.setup import set_threads
from paceline.distributed.device.topology import format_cpu_list, topology_from_sheet

EXCLUSIVE = System(cpu_bind="exclusive")
MACHINE = topology_from_sheet(2, 4, 2)  # hardware threads 0 to 7, and 8 to 15 beside them
ALONE = DistContext(0, 1, 0, 1, torch.device("cpu"), Messages(torch.distributed.HashStore(), b"key", 0))


def dealt(masks, system=EXCLUSIVE, near=()) -> list[tuple[str, int]]:
    found = [assign_cores(MACHINE, masks, near, system, rank) for rank in range(len(masks))]
    return [(format_cpu_list(cores), share) for cores, share in found]


def test_ranks_that_the_launcher_left_alone_share_all_cores():
    assert dealt([set(range(16))] * 2) == [("0-3,8-11", 8), ("4-7,12-15", 8)]


def test_a_rank_that_the_launcher_bound_keeps_what_it_has_and_nothing_is_divided_twice():
    assert dealt([{0, 8}, {1, 9}]) == [("0,8", 2), ("1,9", 2)]
    assert dealt([{0, 8}, {1, 9}], replace(EXCLUSIVE, cpu_bind="no-smt")) == [("0", 1), ("1", 1)]


def test_ranks_that_the_launcher_bound_to_a_socket_each_share_theirs():
    low, high = {*range(4), *range(8, 12)}, {*range(4, 8), *range(12, 16)}
    assert dealt([low, high, low, high], near=(0, 1, 0, 1)) == [
        ("0-1,8-9", 4),
        ("4-5,12-13", 4),
        ("2-3,10-11", 4),
        ("6-7,14-15", 4),
    ]


def test_cores_that_overlap_in_part_are_refused():
    with raises(RecipeError, "local rank 0 to cores 0-3", "local rank 1 to cores 3-5", "overlap", "--bind-to none"):
        dealt([{0, 1, 2, 3}, {3, 4, 5}])


@pytest.mark.parametrize("share, wanted", [(12, 12), (0, max(1, len(get_allowed_cpus()) // 8))])
def test_a_bound_rank_s_threads_are_its_share_not_an_eighth_of_it(share, wanted, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    try:
        assert set_threads(System(), replace(ALONE, local_world=8), SILENT, share) == {"intra_op": wanted, "loader": wanted}
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def here():
    before = get_allowed_cpus()
    yield before
    bind_threads(before)


def masks_of_threads() -> set[str]:
    """What the kernel lets each thread of this process run on."""
    status = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # an earlier test's thread, ended meanwhile
            status.append((task / "status").read_text())
    return {line.split()[1] for text in status for line in text.splitlines() if line.startswith("Cpus_allowed_list")}


def test_threads_that_are_there_and_those_to_come_are_bound_and_let_go_again(tmp_path, here):
    if len(here) < 2:
        pytest.skip("one core cannot be divided")
    low, high = sorted(here)[:2]
    lay_out(tmp_path, [((cpu, cpu + 100) if cpu == low else (cpu,), 0, 0) for cpu in here])
    end, said = threading.Event(), []
    threads = [threading.Thread(target=end.wait)]
    threads[0].start()
    try:
        bind_threads({low, high})
        with bind_cores(replace(EXCLUSIVE, cpu_bind="node"), ALONE, Lines(said.append), root=tmp_path) as placed:
            threads.append(threading.Thread(target=end.wait))
            threads[1].start()
            assert masks_of_threads() == {format_cpu_list({low, high})} and placed.share == 2
        bind_threads({low})
        with bind_cores(EXCLUSIVE, ALONE, Lines(said.append), root=tmp_path) as placed:
            assert masks_of_threads() == {str(low)} and placed.share == 1
            assert placed.facts == {"cpu_binding": {"bind": "exclusive", "cores": [str(low)], "given": str(low)}}
        assert masks_of_threads() == {str(low)}
        assert said == [
            f"CPU binding (node): rank 0 on {format_cpu_list({low, high})}",
            f"CPU binding (exclusive): rank 0 on {low}",
        ]
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_off_touches_nothing_and_leaves_nothing_in_run_json(monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("bound although it is off"))
    with bind_cores(System(), ALONE, Lines(lambda _: pytest.fail("nothing is said"))) as placed:
        assert placed.share == 0 and placed.facts == {}


def test_an_operating_system_that_binds_nothing_is_named(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    with raises(RecipeError, "--system.cpu-bind exclusive", "operating system"), bind_cores(EXCLUSIVE, ALONE, SILENT):
        pass


def test_adapters_are_named_to_nccl_and_ucx_unless_somebody_did_already(tmp_path, monkeypatch):
    lay_out(tmp_path, even_machine(1, 2))
    for number in range(2):
        add_device(tmp_path, f"0000:0{number}:00.0", f"pci0000:00/switch{number}", 0)
        add_adapter(tmp_path, f"mlx5_{number}", f"0000:1{number}:00.0", f"pci0000:00/switch{number}", 0)
    monkeypatch.setattr(placing, "find_device_addresses", lambda *_: ["0000:00:00.0", "0000:01:00.0"])
    second = replace(SINGLE, local_rank=1, local_world=2)
    wanted = {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "UCX_NET_DEVICES": "mlx5_1:1"}
    system, environ = System("cuda", cpu_bind="exclusive", fabric="ib"), {}
    assert choose_adapter(system, second, environ, root=tmp_path) == wanted == environ
    mine = {"NCCL_IB_HCA": "mlx5_7"}
    assert choose_adapter(system, second, mine, root=tmp_path) == {"UCX_NET_DEVICES": "mlx5_1:1"}
    assert mine["NCCL_IB_HCA"] == "mlx5_7"
    for other in (replace(system, cpu_bind="off"), replace(system, fabric="tcp"), replace(system, fabric="roce")):
        assert choose_adapter(other, second, {}, root=tmp_path) == {}


def test_nodes_of_slurm_on_one_machine_are_told_apart(monkeypatch):
    names = []
    for name in ("n1", "n2"):
        monkeypatch.setenv("SLURMD_NODENAME", name)
        names.append(get_node_name())
    monkeypatch.delenv("SLURMD_NODENAME")
    assert len({*names, get_node_name()}) == 3

"""What a node tells of itself: of this machine, and of one that is laid out in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.device.topology import parse_cpu_list
from paceline.launch.doctor.multi_node import _nccl_log, measure_teraflops
from paceline.launch.doctor.node import collect_node_facts


def test_this_machine_has_a_processor_memory_and_room(tmp_path):
    facts = collect_node_facts(SINGLE, tmp_path)
    assert facts.sockets >= 1 and facts.cores >= 1 and set(parse_cpu_list(facts.allowed)) == os.sched_getaffinity(0)
    assert facts.memory_gib > 0.5 and facts.run_gib > 0 and facts.run_trouble == "" and facts.temp_gib > 0
    assert facts.versions["torch"] and len(facts.devices) == torch.cuda.device_count()


def test_a_machine_laid_out_in_a_folder_is_read(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:       2113929216 kB\nHugePages_Total:     512\nbroken line\n")
    for place, text in {
        "devices/system/cpu/online": "0-3",
        "kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        **{f"devices/system/cpu/cpu{cpu}/topology/physical_package_id": str(cpu // 2) for cpu in range(4)},
        **{f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": str(cpu) for cpu in range(4)},
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "class/infiniband" / name).mkdir(parents=True)
    facts = collect_node_facts(SINGLE, tmp_path, root=tmp_path, proc=tmp_path)
    assert (facts.sockets, facts.cores, facts.memory_gib) == (2, 4, 2016.0)
    assert facts.huge_pages == "madvise, 512 reserved" and facts.adapters == ("mlx5_0", "mlx5_1")


def test_a_machine_that_tells_nothing_is_unknown_and_a_missing_folder_is_a_trouble(tmp_path):
    facts = collect_node_facts(SINGLE, Path("/nowhere/runs"), root=tmp_path, proc=tmp_path)
    assert facts.memory_gib == -1 and facts.huge_pages == "" and facts.adapters == ()
    assert facts.run_gib == -1 and "/nowhere/runs" in facts.run_trouble


def test_nccls_log_goes_to_a_file_and_the_users_wishes_come_back(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    with _nccl_log() as log:
        assert os.environ["NCCL_DEBUG"] == "INFO" and os.environ["NCCL_DEBUG_FILE"] == str(log)
        log.write_text("NCCL INFO")
    assert os.environ["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_FILE" not in os.environ and not log.exists()


def test_products_of_matrices_are_counted():
    assert measure_teraflops(torch.device("cpu"), side=64, products=2) > 0

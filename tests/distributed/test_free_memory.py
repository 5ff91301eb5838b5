"""What memory is free: the machine's, and what the control groups leave of it, in Linux's own file formats."""

from __future__ import annotations

from pathlib import Path

from paceline.distributed.device.host_memory import get_free_memory

MIB = 2**20


def files(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def free(folder: Path, groups: str) -> int | None:
    (folder / "groups").write_text(groups)
    return get_free_memory(folder / "meminfo", folder / "cgroup", folder / "groups")


MEMINFO = {"meminfo": "MemTotal:       24684084 kB\nMemFree:          100000 kB\nMemAvailable:     819200 kB\n"}


def test_a_machine_without_limits_has_what_is_available(tmp_path):
    assert free(files(tmp_path, MEMINFO), "0::/\n") == 800 * MIB


def test_the_tightest_group_above_counts_and_its_file_pages_can_be_given_up(tmp_path):
    above = {
        "cgroup/job/memory.max": str(400 * MIB),
        "cgroup/job/memory.current": str(300 * MIB),
        "cgroup/job/memory.stat": f"anon 5\ninactive_file {50 * MIB}\n",
        "cgroup/job/step/memory.max": "max\n",
        "cgroup/job/step/memory.current": str(300 * MIB),
        "cgroup/job/step/memory.stat": "inactive_file 0\n",
    }
    assert free(files(tmp_path, MEMINFO | above), "0::/job/step\n") == 150 * MIB


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path):
    own = {
        "cgroup/memory.max": str(100 * MIB),
        "cgroup/memory.current": str(90 * MIB),
        "cgroup/memory.stat": "inactive_file 0\n",
    }
    assert free(files(tmp_path, MEMINFO | own), "0::/\n") == 10 * MIB


def test_the_first_version_s_tree(tmp_path):
    own = {
        "cgroup/memory/slurm/memory.limit_in_bytes": str(64 * MIB),
        "cgroup/memory/slurm/memory.usage_in_bytes": str(60 * MIB),
        "cgroup/memory/slurm/memory.stat": f"total_inactive_file {8 * MIB}\n",
    }
    assert free(files(tmp_path, MEMINFO | own), "9:cpu,cpuacct:/x\n5:memory:/slurm\n") == 12 * MIB


def test_a_system_that_does_not_say(tmp_path):
    assert free(tmp_path, "0::/\n") is None

"""Control groups of both versions, made up; and what comes of counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.machine.contention import Moment, between, groups, now, quota


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text + "\n")
    return folder


def test_the_tightest_group_counts_in_version_2(tmp_path):
    group(tmp_path, cpu_max="max 100000")
    group(tmp_path / "a", cpu_max="150000 100000")
    group(tmp_path / "a" / "b", cpu_max="400000 100000")
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    assert list(groups(tmp_path, own)) == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    assert quota(tmp_path, own) == 1.5


def test_version_1_has_a_folder_a_controller(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:memory:/x\n2:cpu,cpuacct:/jobs/one\n0::/\n")
    one = group(tmp_path / "cpu,cpuacct" / "jobs" / "one", cpu_cfs_quota_us="50000", cpu_cfs_period_us="100000")
    assert next(groups(tmp_path, own)) == one and quota(tmp_path, own) == 0.5
    (one / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota(tmp_path, own) == 0


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    group(tmp_path, cpu_max="200000 100000")
    own = tmp_path / "own"
    own.write_text("0::/docker/0123456789\n")
    assert quota(tmp_path, own) == 2


@pytest.mark.parametrize("text", ["", "0::/a", "broken"])
def test_no_groups_no_limit(tmp_path, text):
    own = tmp_path / "own"
    if text == "broken":
        group(tmp_path, cpu_max="a b c")
    if text:
        own.write_text("0::/\n")
    assert quota(tmp_path, own) == 0


def test_counters_are_differences_and_unknown_stays_unknown():
    found = between(Moment(10, 100, 1, 5, 0.5), Moment(20, 118, 1.5, 105, 4.5))
    assert {name: found[name] for name in ("wall", "busy", "stolen", "throttled", "throttled_seconds")} == {
        "wall": 10, "busy": 18, "stolen": 0.5, "throttled": 100, "throttled_seconds": 4,
    }  # fmt: skip
    assert between(Moment(10, -1, 0, 0, 0), Moment(20, -1, 0, 0, 0))["busy"] == -1


def test_this_machines_counters_grow():
    before = now()
    sum(range(100_000))
    assert all(value >= 0 for name, value in between(before, now()).items() if name != "busy")

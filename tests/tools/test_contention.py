"""Control groups of both versions, made up; and what comes of counters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.tools.qualify import measurements
from paceline.tools.qualify.measurements import counters_since, find_cgroups, read_counters, read_cpu_quota


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
    assert list(find_cgroups(tmp_path, own)) == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    assert read_cpu_quota(tmp_path, own) == 1.5


def test_version_1_has_a_folder_a_controller(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:memory:/x\n2:cpu,cpuacct:/jobs/one\n0::/\n")
    one = group(tmp_path / "cpu,cpuacct" / "jobs" / "one", cpu_cfs_quota_us="50000", cpu_cfs_period_us="100000")
    assert next(find_cgroups(tmp_path, own)) == one and read_cpu_quota(tmp_path, own) == 0.5
    (one / "cpu.cfs_quota_us").write_text("-1\n")
    assert read_cpu_quota(tmp_path, own) == 0


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    group(tmp_path, cpu_max="200000 100000")
    own = tmp_path / "own"
    own.write_text("0::/docker/0123456789\n")
    assert read_cpu_quota(tmp_path, own) == 2


@pytest.mark.parametrize("text", ["", "0::/a", "broken"])
def test_no_groups_no_limit(tmp_path, text):
    own = tmp_path / "own"
    if text == "broken":
        group(tmp_path, cpu_max="a b c")
    if text:
        own.write_text("0::/\n")
    assert read_cpu_quota(tmp_path, own) == 0


def test_counters_are_differences_and_unknown_stays_unknown(monkeypatch):
    before = {"wall": 10.0, "busy": 100.0, "stolen": 1.0, "throttled": 5, "throttled_seconds": 0.5}
    after = {"wall": 20.0, "busy": 118.0, "stolen": 1.5, "throttled": 105, "throttled_seconds": 4.5}
    monkeypatch.setattr(measurements, "read_counters", lambda: after)
    found = counters_since(before)
    assert found == {
        "wall": 10, "busy": 18, "stolen": 0.5, "throttled": 100, "throttled_seconds": 4, "quota": read_cpu_quota()
    }  # fmt: skip
    assert counters_since({**before, "busy": math.nan})["busy"] == -1


@pytest.mark.parametrize(
    "text", ["nr_throttled 7\nthrottled_usec 2500000", "nr_periods 9\nnr_throttled 7\nthrottled_time 2500000000"]
)
def test_both_versions_say_how_long_a_group_waited(tmp_path, monkeypatch, text):
    monkeypatch.setattr(measurements, "find_cgroups", lambda: iter([group(tmp_path, cpu_stat=text), tmp_path / "nowhere"]))
    found = read_counters()
    assert (found["throttled"], found["throttled_seconds"]) == (7, 2.5) and found["wall"] > 0


@pytest.mark.parametrize(
    ("text", "busy", "stolen"),
    [
        ("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 200 300 5000 6 70 80 900 10 10\ncpu1 1 1 1 1 1 1 1 1\nctxt 7", 7.5, 9),
        ("cpu  9 9 9 9 9 9 9 9\ncpu3 1 1 1 1 1 1 1 1", math.nan, 0),  # not one of ours
        ("cpu0 1 2", math.nan, 0),
        ("", math.nan, 0),
    ],
)
def test_only_this_processs_cores_count(tmp_path, monkeypatch, text, busy, stolen):
    (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(measurements, "STAT", tmp_path / "stat")
    monkeypatch.setattr(measurements, "TICKS", 100)
    monkeypatch.setattr(measurements, "get_allowed_cpus", lambda: {0, 2})
    found = read_counters()
    assert found["busy"] == pytest.approx(busy, nan_ok=True) and found["stolen"] == stolen

"""`paceline check-performance` for real, by night: two ranks of this host, as it is and slowed on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from messages import check_text

import paceline

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]
# Python imports this by itself: each photo's read comes 60 ms later, as from a far store.
LATE = """
import os, time
pread = os.pread
def late(descriptor, *rest):
    if "paceline-qualify" in os.readlink(f"/proc/self/fd/{descriptor}"):
        time.sleep(0.06)
    return pread(descriptor, *rest)
os.pread = late
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Where the test photos are, rendered by the first of these tests."""
    return tmp_path_factory.mktemp("photos")


def qualified(folder: Path, photos: Path, *paths: Path) -> tuple[int, dict]:
    """-> (exit code, qualify.json). paths: further ones of Python's."""
    where = os.pathsep.join(map(str, (*paths, Path(paceline.__file__).parents[1])))
    words = ["check-performance", "--minutes", "0.1", "--check-dir", str(photos), "--output-dir", "out", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *words], cwd=folder, env={**os.environ, "PYTHONPATH": where},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert (folder / "out" / "qualify.html").is_file() and "ResNet-50, step" in done.stdout
    return done.returncode, json.loads((folder / "out" / "qualify.json").read_text())


@pytest.mark.nightly("a minute of two ranks that compute")
def test_every_part_is_measured_on_both_ranks(tmp_path, photos):
    code, found = qualified(tmp_path, photos)
    assert found["good"] is (code == 0) and len(found["ranks"]) == 2 and found["slowest"]
    rows = {row["name"]: row for row in found["rows"]}
    assert len(rows) == 14 and all(row["measured"] > 0 < row["expected"] for row in rows.values())
    for rank in found["ranks"]:
        measured = rank["measured"]
        for task in ("classification", "detection", "instance-segmentation"):
            assert all(measured[f"{task}/{part}"]["cpu_seconds"] > 0 for part in ("step", "photos", "input")), measured
        assert all(1 <= len(one["rates"]) <= 3 for one in measured.values()) and rank["comm"]["right"]
    assert found["advice"] or found["good"]


@pytest.mark.nightly("a minute of two ranks that compute, slowed")
@pytest.mark.skipif(sys.platform != "linux", reason="neighbours are counted in Linux's /proc/stat")
def test_neighbours_and_a_late_store_are_named(tmp_path, photos):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(LATE)
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        code, found = qualified(tmp_path, photos, tmp_path / "late")
    finally:
        for one in spinning:
            one.kill()
            one.wait()
    advice = " ".join(found["advice"])
    assert code == 1 and not found["good"]
    assert check_text(advice, "processes", "disk"), advice
    slow = {row["name"] for row in found["rows"] if row["verdict"] == "slower"}
    assert {"ResNet-50, step", "ResNet-50, input pipeline", "reading from disk"} <= slow

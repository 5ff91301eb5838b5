"""`bench input --baselines`: contenders of their own processes take turns on the same bytes; who is missing is named, with the
reason.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from messages import raises
from PIL import Image
from tiny_runs import command, make_photos, refused

from benchmarks import input_peers, peer_installs
from benchmarks.input_peers import PROGRAMS, run_peers_bench
from benchmarks.peer_installs import PEERS, install_peers, named_peers
from benchmarks.peers import peer_protocol
from benchmarks.peers.peer_protocol import crop, endless, measured
from paceline._utils.errors import DataError, PacelineError
from paceline.data.prepare.auto_prepare import prepare_if_needed

# A contender of no library, which burns so much CPU time a batch; or fails.
FAKE = """
import time
import peer_protocol
from peer_protocol import Contender, serve
peer_protocol.DRAIN_SECONDS, peer_protocol.DRAIN_BATCHES = 0, 1
def make(task):
    if {fails!r}:
        raise SystemExit("no such library here")
    def take():
        until = time.process_time() + {cost}
        while time.process_time() < until:
            pass
        return task.batch
    return Contender(take, f"{{len(task.photos)}} photos, {{sorted(task.options)}}", "1.0")
serve(make)
"""


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (5, 40, 60, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return folder


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Programs of contenders that need no library: ours twice as fast as torchvision's; grain's fails."""
    folder = tmp_path / "programs"
    folder.mkdir()
    shutil.copy(PROGRAMS / "peer_protocol.py", folder)
    for name, cost, fails in (("paceline", 0.01, False), ("torchvision", 0.02, False), ("grain", 0.0, True)):
        (folder / f"with_{name}.py").write_text(FAKE.format(cost=cost, fails=fails))
    monkeypatch.setattr(input_peers, "PROGRAMS", folder)
    environment = tmp_path / "environments" / "grain" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(sys.executable)
    return tmp_path / "environments"


def test_contenders_take_turns_and_the_missing_are_named(photos, fakes, tmp_path):
    facts = {"peers": ["grain", "dali"], "environments": fakes, "absent": {"spdl": "why not"}, "seconds": 0.05, "rounds": 2}
    report = run_peers_bench([photos], **facts, size=32, decoders=["simplejpeg"])
    assert json.loads(json.dumps(report)) == report
    names = ["paceline simplejpeg, files", "torchvision, best workers", "torchvision, tuned", "bare decode"]
    assert list(report["images_per_cpu_second"]) == names
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report["images_per_cpu_second"].values())
    assert report["contenders"]["torchvision, tuned"] == {"ready": "5 photos, ['tuned']", "version": "1.0"}
    assert set(report["ratio_of_images_per_cpu_second"]) == {"paceline simplejpeg, files"}
    assert report["absent"]["grain"] == "it ended: no such library here" and report["absent"]["spdl"] == "why not"
    assert "--install-baselines --baselines dali" in report["absent"]["dali"]
    assert report["photos"]["count"] == 5


def test_a_prepared_set_is_a_further_contender_and_one_of_other_photos_is_refused(tmp_path, fakes):
    root = make_photos(tmp_path / "classes")
    prepared = prepare_if_needed(root)
    facts = {"peers": [], "environments": fakes, "absent": {}, "seconds": 0.02, "rounds": 1, "size": 32}
    report = run_peers_bench([prepared], **facts, decoders=["simplejpeg"])
    assert f"paceline simplejpeg, {prepared.name}" in report["contenders"]
    assert report["contenders"]["paceline simplejpeg, files"]["ready"] == "18 photos, ['decoder']"
    with pytest.raises(DataError, match=r"no manifest.json there"):
        run_peers_bench([prepared, tmp_path], **facts, decoders=["simplejpeg"])
    (fakes.parent / "programs" / "with_paceline.py").write_text("raise SystemExit('3 of 5 photos are not in it')")
    with raises(DataError, "3 of 5"):
        run_peers_bench([prepared], **facts, decoders=["simplejpeg"])


def test_records_that_hold_the_same_bytes_are_found_whatever_their_order(tmp_path, monkeypatch):
    from stand_ins import InMemory

    monkeypatch.syspath_prepend(PROGRAMS)
    from benchmarks.peers import with_paceline as ours

    records = InMemory([b"c", b"a", b"x", b"b"])
    wanted = {ours._digest(data) for data in (b"a", b"b", b"c")}
    assert ours.same_photos(records, wanted).tolist() == [0, 1, 3]
    with raises(ValueError, "1 of 4"):
        ours.same_photos(records, {*wanted, ours._digest(b"d")})


def test_a_program_answers_what_it_measured_and_ends_with_its_input(photos, tmp_path):
    program = tmp_path / "with_fake.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(PROGRAMS)!r})\n" + FAKE.format(cost=0.001, fails=False))
    task = {"photos": ["a.jpg"], "size": 8, "batch": 16, "threads": 1, "scratch": str(tmp_path)}
    (tmp_path / "task.json").write_text(json.dumps(task))
    words = [sys.executable, str(program), str(tmp_path / "task.json")]
    done = subprocess.run(words, input="0.05\n0.05\n", capture_output=True, text=True, timeout=60)
    ready, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and ready["ready"] == "1 photos, []" and len(found) == 2
    for one in found:
        assert one["images"] % 16 == 0 and one["images"] > 0
        assert one["seconds"] >= 0.05 and one["cpu_seconds"] > 0


def test_what_lay_ready_is_taken_before_the_clock_starts(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(peer_protocol.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(peer_protocol, "tree_cpu_seconds", lambda: 2 * now[0])
    costs = itertools.chain([0.0] * 5, itertools.repeat(0.25))  # five batches lie ready

    def take() -> int:
        now[0] += next(costs)
        return 10

    assert measured(take, 1.0) == {"images": 40, "seconds": 1.0, "cpu_seconds": 2.0}


def test_crops_are_inside_and_of_the_area_and_aspect_that_are_asked_for():
    draw = random.Random(0)
    areas = []
    for _ in range(2000):
        top, left, height, width = crop(300, 400, draw)
        assert 0 <= top <= 300 - height and 0 <= left <= 400 - width
        assert 0.74 < width / height < 1.36
        areas.append(height * width / (300 * 400))
    assert min(areas) > 0.075 and 0.4 < np.mean(areas) < 0.6
    assert crop(10, 1000, draw) == (0, 495, 10, 10)


def test_endless_photos_come_once_a_pass():
    photos = endless([1, 2, 3])
    assert [sorted(next(photos) for _ in range(3)) for _ in range(4)] == [[1, 2, 3]] * 4


def test_peers_are_named_and_others_refused(capsys, tmp_path):
    assert named_peers(["all"]) == list(PEERS) and named_peers(["dali,ffcv", "dali"]) == ["dali", "ffcv"]
    with raises(PacelineError, "dalli"):
        named_peers(["dalli"])
    assert all((PROGRAMS / f"with_{name}.py").is_file() for name in PEERS)
    refused(command(capsys, "bench", "input", "--baselines", "all"), "--data DIR")
    refused(command(capsys, "bench", "input", "--baselines", "all", "--data", tmp_path / "x"), "folder")
    refused(command(capsys, "bench", "input", "--data", tmp_path, tmp_path), "require --baselines")


def test_an_installation_that_fails_leaves_nothing_and_says_why(tmp_path, monkeypatch):
    def fail(words, **_):
        if "venv" in words:
            Path(words[-1]).mkdir()
            return subprocess.CompletedProcess(words, 0, "", "")
        return subprocess.CompletedProcess(words, 1, "", "noise\nERROR: no wheel for this machine\nmore\n")

    monkeypatch.setattr(peer_installs.subprocess, "run", fail)
    said: list[str] = []
    failed = install_peers(tmp_path, ["spdl"], said.append)
    assert failed["spdl"].startswith("ERROR: ") and "libavdevice59" in failed["spdl"]
    assert not list(tmp_path.iterdir()) and "not installed" in said[-1]
    (tmp_path / "spdl").mkdir()
    assert install_peers(tmp_path, ["spdl"], said.append) == {} and said[-1] == "spdl: there already"

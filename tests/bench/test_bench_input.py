"""The input benchmark's own instruments: its clock counts every process, its contenders all make batches."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from paceline.bench import input as bench
from paceline.bench.input_contenders import BATCH, bare_decode, ours, records_of, torchvision_loader
from paceline.bench.input_fetch import FETCH_THREADS, KEPT, run_fetch_bench
from paceline.bench.input_simulation import boundary, memory, simulate
from paceline.config.errors import DataError
from paceline.data import stream as bench_stream

# torchvision 0.29 announces that its image decoders will go; the peer still has them.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 255, (4, 90, 120, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        (folder / "class").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "class" / f"{i}.jpg")
    return folder


def test_cpu_seconds_include_a_living_childs():
    before = bench.tree_cpu_seconds()
    program = "import time\nwhile time.process_time() < 0.5: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = bench.tree_cpu_seconds() - before
        child.communicate("\n")
    assert alive >= 0.45
    assert bench.tree_cpu_seconds() - before >= alive  # and once it is reaped


@pytest.mark.parametrize("name", ["ours", "pil", "tensor", "bare"])
def test_every_contender_makes_whole_batches(photos, name):
    paths = sorted(photos.rglob("*.jpg"))
    make = {
        "ours": lambda: ours(records_of(paths), 32, 2, "simplejpeg", 2),
        "pil": lambda: torchvision_loader(paths, 32, 0, "pil"),
        "tensor": lambda: torchvision_loader(paths, 32, 0, "tensor"),
        "bare": lambda: bare_decode(paths, 2),
    }[name]
    with make() as take:
        assert [take() for _ in range(3)] == [BATCH] * 3


def test_the_report_holds_rates_ratios_machine_and_versions(photos, tmp_path, monkeypatch):
    real = bench.contenders
    monkeypatch.setattr(  # without worker processes, which take seconds to start
        bench,
        "contenders",
        lambda *args: {
            name: make for name, make in real(*args).items() if "1 workers" not in name and "2 w" not in name
        },
    )
    out = tmp_path / "results" / "input.json"
    report = bench.run_input_bench(photos, seconds=0.05, size=32, decoders=["simplejpeg"], out=out, rounds=2)
    assert json.loads(out.read_text()) == report
    (ours_name,) = report["ratio_of_images_per_cpu_second"]
    assert ours_name.startswith("paceline simplejpeg")
    assert report["best_peer"].startswith("torchvision")
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report["images_per_cpu_second"].values())
    assert report["photos"]["count"] == 4
    assert report["versions"]["torch"] != "not installed"


def test_a_folder_without_photos_is_refused(tmp_path):
    with pytest.raises(DataError, match="no JPEG photos"):
        bench.run_input_bench(tmp_path)


def test_the_simulation_reports_a_share_of_the_ideal_rate():
    began = time.perf_counter()
    report = simulate(4, seconds=0.3, sleep_seconds=0.002)
    assert time.perf_counter() - began > 0.3
    assert report["ideal_images_per_second"] == 2000
    assert 0 < report["fraction"] <= 1.02


def test_the_bench_of_fetch_threads_names_all_contenders_and_its_command(photos, tmp_path, monkeypatch):
    out = tmp_path / "fetch.json"
    monkeypatch.setattr(sys, "argv", ["/a/place/paceline", "bench", "input", "--latency", "10"])
    report = run_fetch_bench(photos, milliseconds=10, seconds=0.2, size=32, out=out, rounds=1)
    assert json.loads(out.read_text()) == report
    times = report["times_without_fetch_threads"]
    assert list(times) == ["no latency", *(f"late, {threads} fetch threads" for threads in FETCH_THREADS), KEPT]
    assert times["late, 0 fetch threads"] == 1 and min(times.values()) > 0
    assert report["command"] == "paceline bench input --latency 10"


def test_the_memory_walk_reports_first_last_and_growth(monkeypatch):
    monkeypatch.setattr("paceline.bench.input_simulation.RECORDS", 2000)
    report = memory(epochs=2.5, batch=64)
    assert report["steps"] == 78
    assert report["growth"] == pytest.approx(report["last_mib"] / report["first_mib"] - 1)


def test_the_wait_at_the_end_of_an_epoch_is_that_of_the_steps_that_the_epoch_changes_in(monkeypatch):
    monkeypatch.setattr("paceline.bench.input_simulation.RECORDS", 4000)
    sort = bench_stream.permutation

    def slow(n, *, seed, epoch):
        if epoch == 1 and not sorted_once:
            sorted_once.append(epoch)
            time.sleep(0.5)
        return sort(n, seed=seed, epoch=epoch)

    sorted_once: list[int] = []
    monkeypatch.setattr(bench_stream, "permutation", slow)
    report = boundary(step_seconds=0.001, steps=9)
    assert sorted_once and report["waits_at_boundary_ms"] > 100


@pytest.mark.nightly
def test_memory_does_not_grow_over_two_epochs_of_an_index_as_large_as_imagenets():
    program = "from paceline.bench.input_simulation import memory; import sys; sys.exit(memory()['growth'] >= 0.02)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

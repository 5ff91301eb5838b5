"""The input benchmark's own instruments: its clock counts every process, its contenders all make batches of the same photos."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from by_night import ONE_MORE
from instance_sets import CATEGORY_IDS, make_instances
from messages import check_text, raises
from PIL import Image

import paceline.data.index.records
import paceline.models.datamodule as task_module
import paceline.tools.bench as bench_package
from benchmarks.input_fetch import FETCH_THREADS, KEPT, run_fetch_bench
from benchmarks.input_simulation import boundary, memory, simulate
from benchmarks.input_torchvision import coco_detection, loader_of
from benchmarks.peers.peer_protocol import tree_cpu_seconds
from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline.cli.commands import bench as benches
from paceline.cli.printing import Printer
from paceline.data.index.records import record_digest
from paceline.data.loader import sampler as bench_stream
from paceline.data.loader.loader import Loader
from paceline.tools.bench import input as bench
from paceline.tools.bench import input as input_bench
from paceline.tools.bench import input_cases
from paceline.tools.bench.input import classification, maskrcnn, run_input_bench, ssd
from paceline.tools.bench.input_cases import BATCH, bare_decode, open_file_records, paceline_loader

# torchvision 0.29 announces that its image decoders will go; the peer still has them. pycocotools has numpy's older protocol.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 255, (4, 90, 120, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        (folder / "class").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "class" / f"{i}.jpg")
    return folder


def test_cpu_seconds_include_a_living_childs():
    before = tree_cpu_seconds()
    program = "import time\nwhile time.process_time() < 0.5: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = tree_cpu_seconds() - before
        child.communicate("\n")
    assert alive >= 0.45
    assert tree_cpu_seconds() - before >= alive  # and once it is reaped


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return make_instances(tmp_path_factory.mktemp("coco"), train=5, val=3)


@pytest.fixture(scope="module")
def contests(photos, coco):
    finders = {"classification": (classification, photos, 32), "detection": (ssd, coco, 64)}
    finders["instance-segmentation"] = (maskrcnn, coco, 64)
    return {task: find(data, size=size, decoders=["simplejpeg"]) for task, (find, data, size) in finders.items()}


@pytest.mark.usefixtures("process_locks")
@pytest.mark.parametrize("decode", ["ours", "pil", "tensor"])
@pytest.mark.parametrize("task", ["classification", "detection", "instance-segmentation"])
def test_every_contender_makes_whole_batches(contests, task, decode):
    contest = contests[task]
    make = next(iter(contest.ours.values())) if decode == "ours" else lambda: loader_of(contest)(0, decode)
    with make() as take:
        assert [take() for _ in range(2)] == [8 if task == "instance-segmentation" else BATCH] * 2


@pytest.mark.parametrize("task", ["classification", "detection", "instance-segmentation"])
def test_comparing_the_bytes_is_measured_beside_leaving_it_out(contests, task, monkeypatch):
    hashed: list[int] = []
    # In threads of this process, where they can be counted.
    for module in (task_module, input_cases):
        monkeypatch.setattr(module, "Loader", lambda **options: Loader(**{**options, "processes": False}))
    monkeypatch.setattr(
        paceline.data.index.records, "record_digest", lambda data: hashed.append(len(data)) or record_digest(data)
    )
    name, make = next((name, make) for name, make in contests[task].ours.items() if name.startswith("unchecked"))
    for compared, one in ((False, make), (True, contests[task].ours[name.removeprefix("unchecked ")])):
        hashed.clear()
        with one() as take:
            take()
        assert bool(hashed) == compared


def test_records_with_fetch_threads_and_bare_decoding_make_whole_batches_too(photos):
    paths = sorted(photos.rglob("*.jpg"))
    for make in (lambda: paceline_loader(open_file_records(paths), 32, 2, "simplejpeg", 2), lambda: bare_decode(paths, 2)):
        with make() as take:
            assert [take() for _ in range(3)] == [BATCH] * 3


@pytest.mark.parametrize("decode", ["pil", "tensor"])
def test_torchvisions_side_has_the_masks_of_all_objects_but_crowds_at_the_same_size(contests, decode):
    from torchvision.transforms import v2

    contest = contests["instance-segmentation"]
    theirs = coco_detection(contest, v2.RandomShortestSize([64], 106, antialias=True), decode)
    assert len(theirs) == len(contest.paths) and contest.objects == sum(map(len, contest.boxes)) > len(theirs)
    for place in range(len(theirs)):
        pixels, target = theirs[place]
        with Image.open(contest.paths[place]) as photo:
            scale = target["masks"].shape[1] / photo.height
        if decode == "tensor":
            assert min(pixels.shape[1:]) == 64
        wanted = contest.boxes[place].copy()
        wanted[:, 2:] += wanted[:, :2]
        np.testing.assert_allclose(target["boxes"].numpy(), scale * wanted, atol=0.5)
        labels = [1 + CATEGORY_IDS.index(label) for label in target["labels"].tolist()]
        assert labels == contest.classes[place].tolist() and len(target["masks"]) == len(wanted)


def few_contenders(monkeypatch):
    """Without worker processes, which take seconds to start."""
    theirs = bench_package.find_peers("input_torchvision")
    real = theirs.contenders
    monkeypatch.setattr(
        theirs, "contenders", lambda *args: {name: one for name, one in real(*args).items() if " 0 workers" in name}
    )


@pytest.mark.parametrize("task", ["classification", pytest.param("detection", marks=ONE_MORE), "instance-segmentation"])
def test_the_report_holds_rates_ratios_machine_and_versions(contests, coco, tmp_path, monkeypatch, task):
    few_contenders(monkeypatch)
    out, contest = tmp_path / "results" / "input.json", contests[task]
    monkeypatch.setitem(bench.CONTESTS, task, lambda *_, **__: contest)
    words = "--data X --seconds 0.02 --rounds 2 --decoders simplejpeg --task"
    assert benches.run(Printer(), ["input", *words.split(), task, "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    ratios = report["ratio_of_images_per_cpu_second"]
    assert [name.split()[1] for name in ratios] == (["simplejpeg,"] * (2 if task == "detection" else 1))
    assert all(set(of) == {"best peer", "tuned peer", "bare decode", "unchecked"} for of in ratios.values())
    assert all(of["best peer"]["low"] <= of["best peer"]["median"] <= of["best peer"]["high"] for of in ratios.values())
    assert report["best_peer"].startswith("torchvision")
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report["images_per_cpu_second"].values())
    assert report["photos"]["count"] == len(contest.paths) and report["machine"]["versions"]["torch"]


@pytest.mark.usefixtures("process_locks")
@pytest.mark.parametrize("task", ["classification", pytest.param("instance-segmentation", marks=ONE_MORE)])
def test_scaling_has_a_row_for_each_number_of_workers_beside_torchvision(contests, tmp_path, monkeypatch, capsys, task):
    monkeypatch.setattr(input_bench, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setitem(bench.CONTESTS, task, lambda *_, **__: contests[task])
    out = tmp_path / "scaling.json"
    words = f"--data X --seconds 0.02 --rounds 1 --task {task} --scaling 1 2 --output {out}"
    assert benches.run(Printer(), ["input", *words.split()]) == 0
    report, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert list(report["median"]) == ["paceline 1", "torchvision 1", "paceline 2", "torchvision 2"]
    for row in report["median"].values():
        assert set(row) == set(input_bench.COLUMNS) and all(value >= 0 for value in row.values())
        assert row["images_per_second"] > 0 and row["memory_mib"] > 50
    assert all(name in shown for name in report["median"])
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith(("paceline", "torchvision"))]
    assert [len(row) for row in rows] == [8] * 4  # nothing is cut off at 80 columns
    assert [rows[0][-1], rows[1][-1]] == ["1.00", "1.00"]


def test_numbers_of_workers(monkeypatch):
    monkeypatch.setattr(input_bench, "count_cpus", lambda: 3)
    assert input_bench.parse_worker_counts([4, 1]) == [1, 4] and input_bench.parse_worker_counts([0, 6]) == [1, 2, 4, 6]
    with pytest.raises(RecipeError, match="--scaling 2 -1"):
        input_bench.parse_worker_counts([2, -1])


def test_without_a_checkout_ours_is_measured_alone_and_peers_are_refused(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_package, "CHECKOUT", tmp_path)
    report = run_input_bench(classification, photos, seconds=0.02, size=32, decoders=["simplejpeg"], rounds=1)
    assert [name.split()[0] for name in report["images_per_second"]] == ["paceline", "unchecked", "bare"]
    check_text(" ".join(capsys.readouterr().out.split()), "benchmarks/")
    with raises(PacelineError, "--baselines", "benchmarks/"):
        benches.run(Printer(), ["input", "--baselines", "all"])


def test_folders_without_photos_or_objects_are_refused(tmp_path, contests):
    with pytest.raises(DataError, match="no JPEG images"):
        classification(tmp_path, size=0, decoders=[])
    for find in (ssd, maskrcnn):
        with pytest.raises(DataError):
            find(tmp_path, size=0, decoders=[])
    assert [contest.size for contest in contests.values()] == [32, 64, 64]


def test_the_simulation_reports_a_share_of_the_ideal_rate():
    began = time.perf_counter()
    report = simulate(4, seconds=0.3, sleep_seconds=0.002)
    assert time.perf_counter() - began > 0.6
    assert 0 < report["ideal_images_per_second"] <= 2000
    assert report["fraction"] == report["images_per_second"] / report["ideal_images_per_second"]


def test_the_bench_of_fetch_threads_names_all_contenders_and_its_command(photos, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a/place/paceline", "bench", "input", "--latency-ms", "10"])
    report = run_fetch_bench(photos, milliseconds=10, seconds=0.2, size=32, rounds=1)
    assert json.loads(json.dumps(report)) == report
    times = report["times_without_fetch_threads"]
    assert list(times) == ["no latency", *(f"late, {threads} fetch threads" for threads in FETCH_THREADS), KEPT]
    assert times["late, 0 fetch threads"]["median"] == 1 and min(one["low"] for one in times.values()) > 0
    assert report["machine"]["command"] == "paceline bench input --latency-ms 10"


def test_the_memory_walk_reports_first_last_and_growth(monkeypatch):
    monkeypatch.setattr("benchmarks.input_simulation.RECORDS", 2000)
    report = memory(epochs=3.5, batch=64)
    assert report["steps"] == 109
    assert report["growth"] == pytest.approx(report["last_mib"] / report["first_mib"] - 1)


def test_the_wait_at_the_end_of_an_epoch_is_that_of_the_steps_that_the_epoch_changes_in(monkeypatch):
    monkeypatch.setattr("benchmarks.input_simulation.RECORDS", 4000)
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


@pytest.mark.nightly("three epochs of an index of ImageNet's size")
def test_memory_does_not_grow_over_three_epochs_of_an_index_as_large_as_imagenets():
    program = "from benchmarks.input_simulation import memory; import sys; sys.exit(memory()['growth'] >= 0.02)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

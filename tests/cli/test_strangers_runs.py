"""A run's folder from somebody else: what is none of a run's files is neither waited for, nor read without bound, nor followed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from html_pages import read_page
from listed_photos import list_photos
from messages import check_line
from PIL import Image
from tiny_runs import TINY, command, forge, refused

import paceline
from paceline._utils.names import check_entries
from paceline.tools.report.run_report import write_report

pytestmark = pytest.mark.usefixtures("no_charts")

# What is read of a run's folder, and a verb that reads it; {run} and {photo} are filled in.
READERS = [
    ("run.json", "plan {run}"),
    ("run.json", "eval {run}"),
    ("run.json", "predict {run} {photo}"),
    ("run.json", "train {run}/run.json --output-dir {run}"),
    ("events.jsonl", "report {run}"),
    ("checkpoints/last/index.json", "eval {run}"),
    ("checkpoints/last/state.json", "predict {run} {photo}"),
    ("checkpoints/last/model.safetensors", "weights inspect {run}/checkpoints/last/model.safetensors"),
    ("mllog.txt", "mlperf analyze {run}/mllog.txt"),
]


@pytest.fixture
def run(resnet_run, tmp_path) -> Path:
    return shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """A reader that waits for a pipe's writer is a failure, and not the suite's end."""

    def waited(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(place: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


def endless(place: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to("/dev/zero")


def sparse(place: Path) -> None:
    os.truncate(place, 40 << 30)


@pytest.mark.parametrize("odd", [pipe, endless, sparse])
@pytest.mark.parametrize(("name", "words"), READERS)
def test_no_verb_waits_for_a_pipe_or_reads_what_has_no_end(run, resnet_run, capsys, odd, name, words) -> None:
    photo = next(resnet_run.data.glob("val/*/*"))
    odd(run / name)
    filled = [word.format(run=run, photo=photo) for word in words.split()]
    if name == "mllog.txt" and odd is endless:  # named itself, a link is followed; it leads to a device
        refused(command(capsys, *filled), "a device")
        return
    refused(command(capsys, *filled), name.rsplit("/", 1)[-1])


@pytest.mark.parametrize("odd", [pipe, endless, sparse])
def test_a_folder_of_runs_is_listed_past_one_that_cannot_be_read(run, capsys, odd) -> None:
    shutil.copytree(run, run.parent / "good", symlinks=True)
    odd(run / "events.jsonl")
    said = command(capsys, "runs", run.parent)
    assert said.code == 0 and "good" in said.out and check_line(said.err, "events.jsonl")


@pytest.mark.parametrize("odd", [pipe, endless, sparse])
def test_predictions_that_are_no_plain_file_cost_the_report_its_photos_alone(run, capsys, odd) -> None:
    odd(max((run / "predictions").iterdir()))
    assert command(capsys, "report", run).code == 0
    page = read_page((run / "report.html").read_text())
    assert "images are" in page.text and not page.pictures


ELSEWHERE = "a symbolic link, which a run must not follow"


@pytest.mark.parametrize(
    "name", [".lock", "predictions", "checkpoints", "tensorboard", "mllog.txt", "STOP", "launch", "x.part"]
)
def test_training_follows_no_link_out_of_its_folder(run, resnet_run, tmp_path, capsys, name) -> None:
    target = tmp_path / "mine"
    old = run / name
    if old.is_dir():
        shutil.copytree(old, target, symlinks=True)
        shutil.rmtree(old)
        (target / ".mine.part").write_text("mine")
    else:
        old.unlink(missing_ok=True)
        target.write_text("all\nmine")
    old.symlink_to(target)
    before = {path: path.lstat().st_size for path in [target, *target.rglob("*")]}
    words = ["train", "classify-demo", "--data", resnet_run.data, "--output-dir", run, *TINY, "--max-steps", 50]
    refused(command(capsys, *words), f"{old} ... {ELSEWHERE} ... --output-dir")
    assert {path: path.lstat().st_size for path in [target, *target.rglob("*")]} == before


@pytest.mark.parametrize("odd", [pipe, endless])
def test_a_folder_without_a_run_is_probed_and_locked_through_no_link_or_pipe(resnet_run, tmp_path, capsys, odd) -> None:
    (tmp_path / "new").mkdir()
    odd(tmp_path / "new" / ".probe")
    words = ["train", "classify-demo", "--data", resnet_run.data, "--output-dir", tmp_path / "new", *TINY, "--max-steps", 1]
    refused(command(capsys, *words), ".probe: is ")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tensorboard", "a file, but must be a folder"),
        ("profile", "a file, but must be a folder"),
        ("mllog.txt", "a folder, but must be a file"),
        ("report.html", "a folder, but must be a file"),
    ],
)
def test_an_entry_of_the_other_kind_is_refused_before_training(run, resnet_run, capsys, name, wrong) -> None:
    shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
    (run / name).write_text("x") if wrong.startswith("a file") else (run / name).mkdir()
    words = ["train", "classify-demo", "--data", resnet_run.data, "--output-dir", run, *TINY, "--max-steps", 50]
    refused(command(capsys, *words), f"{run / name}: is {wrong}")


def test_the_runs_own_links_and_what_a_kill_leaves_of_them_are_fine(run, tmp_path) -> None:
    steps = run / "checkpoints"
    (steps / ".best.0a1b.part").symlink_to(os.readlink(steps / "best"))
    (run / ".probe.77.part").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(run)
    check_entries(tmp_path / "link")
    (steps / "last").unlink()
    (steps / "last").symlink_to("last")
    check_entries(tmp_path / "link")
    (steps / "last").unlink()
    (steps / "last").symlink_to(tmp_path / "other" / "checkpoints" / "step-000001")
    with pytest.raises(paceline.PacelineError, match=f"checkpoints/last: is {ELSEWHERE}"):
        check_entries(run)


@pytest.fixture
def private(tmp_path) -> Path:
    """A photo that is nobody else's business."""
    (tmp_path / "private").mkdir()
    Image.new("RGB", (64, 64), (255, 0, 0)).save(tmp_path / "private" / "secret.png")
    return tmp_path / "private"


def predictions_name(run: Path, file: str) -> None:
    """Every photo of the newest predictions is this one."""
    newest = max((run / "predictions").iterdir())
    predictions = json.loads(newest.read_text())
    for image in predictions["images"]:
        image["file"] = file
    newest.write_text(json.dumps(predictions))


def pictures(run: Path) -> int:
    write_report(run)
    return len(read_page((run / "report.html").read_text()).pictures)


def test_a_report_shows_photos_that_the_data_sets_index_lists_and_no_other(run, private) -> None:
    assert pictures(run) > 0
    for name in (str(private / "secret.png"), os.path.relpath(private / "secret.png", run), "secret.png"):
        predictions_name(run, name)
        assert pictures(run) == 0
    said = "of its images are not shown, because the dataset index does not list them"
    assert said in read_page((run / "report.html").read_text()).text
    forge(run, {"data.root": str(private), "data.manifest": str(private)})
    assert pictures(run) == 0
    list_photos(private, ["secret.png"])  # the user's own data set
    assert pictures(run) > 0


def test_an_index_that_comes_with_a_run_speaks_of_photos_in_its_folder_alone(run, private) -> None:
    list_photos(private, ["secret.png"], folder=run / "data")
    predictions_name(run, "secret.png")
    forge(run, {"data.root": str(private), "data.manifest": str(run / "data")})
    assert pictures(run) == 0
    shutil.move(run / "data", private.parent / "own")  # where `prepare --output-dir` wrote it
    forge(run, {"data.manifest": str(private.parent / "own")})
    assert pictures(run) > 0


# Files that are opened in these rooms by another way than _utils/safe_read.py, and why that is right.
ROOMS = ("tools/report", "tools/mlperf", "training", "inference", "config/run.py", "cli/commands")
OWN_WAYS = {
    "cli/commands/translate.py": 1,  # a script that the command line names
    "cli/commands/container.py": 1,  # the checkout's own
    "training/checkpoint/write.py": 1,  # written just now, and read back
    "training/checkpoint/layout.py": 1,  # a probe, made exclusively
    "training/logging/stdout_guard.py": 4,  # the null device, and streams
    "training/logging/monitors.py": 1,  # the kernel's
    "tools/report/run_report.py": 1,  # the template of a workload of one's own: code
    "training/run_dir/sync.py": 3,  # this process's own run, on its way to a bucket; the descriptor of open_plain
    "tools/mlperf/compliance.py": 1,  # a log that was read before, copied for MLPerf's tool
    "training/data_cache.py": 1,  # the kernel's
    "inference/image_paths.py": 1,  # a photo that the command line's folder has, of a plain kind
    "inference/outputs/prediction_dir.py": 2,  # for writing
    "inference/graph/onnx_reader.py": 1,  # a photo that a program of its own is called with
    "inference/export/onnx_export.py": 1,  # the reader's source, ours
    "inference/serve/app.py": 2,  # the page and its description, ours
    "inference/video.py": 4,  # PyAV on the descriptor of open_plain, cameras, and for writing
}
OPENS = re.compile(r"\.read_text\(|\.read_bytes\(|\bopen\(|np\.load\(|safe_open\(|load_file\(|copyfile\(")
# Of other things than files.
OTHER = re.compile(r"def open|workload\.open|Image\.open")


def test_a_runs_files_are_opened_by_one_opener() -> None:
    package, found = Path(paceline.__file__).parent, {}
    for room in ROOMS:
        for path in sorted((package / room).rglob("*.py")) or [package / room]:
            lines = path.read_text().splitlines()
            if count := sum(len(OPENS.findall(line)) for line in lines if not OTHER.search(line)):
                found[path.relative_to(package).as_posix()] = count
    assert found == OWN_WAYS

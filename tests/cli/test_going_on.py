"""What a run keeps when it goes on, and what it says where it cannot."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from by_night import ONE_MORE
from messages import check_line, check_text
from run_files import cut_after, facts_of, tensor_files
from tiny_runs import TINY, command, forge, of_its_own, refused, without_report

from paceline.cli.main import main
from paceline.training import context

pytestmark = pytest.mark.usefixtures("no_charts")

STEPS = 4
# Fields of a recipe's model that came after the first runs.
NEW = ("trunk", "groups", "width_per_group")


@pytest.fixture(scope="module")
def two_threads(photos, tmp_path_factory) -> Path:
    """A finished run of two compute threads, the automatic number of a machine of two cores."""
    run = tmp_path_factory.mktemp("runs") / "run"
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        patch.setenv("OMP_NUM_THREADS", "2")
        words = ["train", "classify-demo", "--data", str(photos), "--output-dir", str(run), *TINY, "--save-every", "2"]
        assert main([*words, "--max-steps", str(STEPS)]) == 0
    torch.set_num_threads(before)
    return run


@pytest.fixture
def run(two_threads, tmp_path, monkeypatch) -> Path:
    """A copy as a kill leaves it once the checkpoint of step 2 is whole."""
    without_report(monkeypatch)
    return cut_after(shutil.copytree(two_threads, tmp_path / "run", symlinks=True), 2)


@pytest.fixture(autouse=True)
def own_threads():
    """Leave torch as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def threads_of(run: Path) -> int:
    return facts_of(run)["threads"]["intra_op"]


def words_for(photos: Path, run: Path) -> list[object]:
    return ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--save-every", 2, "--max-steps", STEPS]


def test_on_fewer_cores_a_run_keeps_its_threads_and_so_its_bits(photos, two_threads, run, capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cores)])
    try:
        said = command(capsys, *words_for(photos, run))
    finally:
        os.sched_setaffinity(0, cores)
    assert said.code == 0 and check_line(said.out, "2 threads", "1 core"), said
    assert torch.get_num_threads() == 2 and threads_of(run) == 2
    assert tensor_files(run) == tensor_files(two_threads)
    # The run is still one that chooses: its repetition elsewhere takes that machine's cores.
    assert facts_of(run)["system"]["intra_op_threads"] == 0


def test_a_number_that_the_command_names_wins_and_is_said(photos, run, capsys):
    said = command(capsys, *words_for(photos, run), "--system.intra-op-threads", 1)
    assert said.code == 0 and check_text(said.out, "1 thread", "2"), said
    assert torch.get_num_threads() == 1 and threads_of(run) == 1


def test_another_flag_of_the_system_does_not_change_the_threads(photos, run, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = command(capsys, *words_for(photos, run), "--system.prefetch-steps", 2)
    assert said.code == 0 and threads_of(run) == 2 and "1 thread" not in said.out


@pytest.mark.parametrize("threads", [10**6, -1, "2", True])
def test_a_number_of_threads_that_cannot_be_is_refused(photos, run, capsys, threads):
    forge(run, {"threads.intra_op": threads})
    refused(command(capsys, *words_for(photos, run)), "threads.intra_op")


def test_a_report_that_a_kill_cut_off_is_written_by_the_same_command(photos, two_threads, tmp_path, capsys):
    run = shutil.copytree(two_threads, tmp_path / "run", symlinks=True)
    (run / ".report.html.0123abcd.part").write_text("<html>cut off")
    assert not (run / "report.html").exists()
    refused(command(capsys, *words_for(photos, run)), "finished", "missing report", "report.html")
    assert "</html>" in (run / "report.html").read_text()
    assert not (run / ".report.html.0123abcd.part").exists()
    said = command(capsys, *words_for(photos, run))
    refused(said, "finished")
    assert "missing report" not in said.err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("--max-steps 2", 0),
        pytest.param("--target top1=1.5 --eval-every 1 --patience 1 --optim.lr 1e-9", 1, marks=ONE_MORE),
    ],
)
def test_a_report_that_cannot_be_written_changes_nothing_of_how_a_run_ended(
    class_photos, tmp_path, capsys, monkeypatch, more, code
):
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("paceline.tools.report.run_report.atomic_write", full)
    words = ["train", "classify-demo", "--data", class_photos, "--output-dir", tmp_path / "run", *TINY, *more.split()]
    said = command(capsys, *words)
    assert said.code == code and "Traceback" not in said.err, said
    (last,) = [line for line in (said.out + said.err).splitlines() if line.startswith("warning: the run is complete")]
    assert "No space left on device" in last
    assert last.endswith(f"paceline report {tmp_path / 'run'}")
    refused(command(capsys, *words), "finished", "report", "No space left on device", lines=6)
    monkeypatch.undo()
    assert command(capsys, *shlex.split(last.rpartition("To retry:  paceline ")[2])).code == 0
    (tmp_path / "run" / "report.html").unlink()
    refused(command(capsys, *words), "finished", "missing report", lines=6)


def test_a_folder_called_stop_that_appears_stops_the_run_and_is_named(photos, run, capsys, monkeypatch):
    from paceline.training.logging.event_logger import EventLogger

    passed = EventLogger.passed

    def passed_and_stopped(self, step, seconds):
        (run / "STOP").mkdir(exist_ok=True)
        passed(self, step, seconds)

    monkeypatch.setattr(EventLogger, "passed", passed_and_stopped)
    said = command(capsys, *words_for(photos, run))
    assert said.code == 75 and "remove STOP before" in said.out, said
    refused(command(capsys, *words_for(photos, run)), "STOP", "folder")
    (run / "STOP").rmdir()
    monkeypatch.setattr(EventLogger, "passed", passed)
    assert command(capsys, *words_for(photos, run)).code == 0


def test_weights_out_of_a_checkpoint_are_checked_also_where_the_file_itself_is_named(photos, run, tmp_path, capsys):
    words = [
        "train",
        "classify-demo",
        "--data",
        photos,
        "--output-dir",
        tmp_path / "new",
        *TINY,
        "--max-steps",
        1,
        "--weights",
    ]
    model = run / "checkpoints" / f"step-{2:06d}" / "model.safetensors"
    assert command(capsys, *words, model).code == 0
    shutil.rmtree(tmp_path / "new")
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    refused(command(capsys, *words, model), "model.safetensors ... damaged")
    refused(command(capsys, *words, model.parent), "model.safetensors ... damaged")
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_impossible_facts_is_skipped_by_name(photos, run, two_threads, capsys):
    from paceline.training.checkpoint.read import load_checkpoint
    from paceline.training.checkpoint.write import Snapshot, save_checkpoint

    whole = load_checkpoint(run / "checkpoints" / "step-000002")
    odd = {"world_size": 0, "meters": {"steps": 1, "sums": {"loss": "x"}}, "seconds": "1", "evaluates": 1}
    odd |= {"recipe": 5, "data_hash": None}
    for step, (name, value) in enumerate(odd.items(), start=3):
        save_checkpoint(run / "checkpoints", step, Snapshot(whole.tensors, {**whole.facts, "step": step, name: value}))
    save_checkpoint(run / "checkpoints", 20, Snapshot({"model": {}}, {**whole.facts, "step": 20}))
    save_checkpoint(run / "checkpoints", 21, Snapshot(whole.tensors, {"step": 21}))
    said = command(capsys, *words_for(photos, run))
    assert said.code == 0 and said.out.count("skipping step-") == len(odd) + 2, said
    check_line(said.out, "resumed", "step-000002")
    assert tensor_files(run, f"step-{STEPS:06d}") == tensor_files(two_threads)


def test_a_run_that_was_begun_before_a_field_of_its_recipe_existed_goes_on(class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    words = ["train", "classify-demo", "--data", class_photos, "--output-dir", tmp_path / "run", *TINY]
    whole = context.run_fingerprint

    def of_an_older_version(run):
        facts = whole(run)
        model = {name: value for name, value in facts["recipe"]["model"].items() if name not in NEW}
        return {**facts, "recipe": {**facts["recipe"], "model": model}}

    with monkeypatch.context() as patch:
        patch.setattr(context, "run_fingerprint", of_an_older_version)
        assert command(capsys, *words, "--max-steps", 2).code == 0
    forge(tmp_path / "run", {f"recipe.model.{name}": None for name in NEW})
    said = command(capsys, "train", tmp_path / "run" / "run.json", "--output-dir", tmp_path / "run", "--max-steps", 3)
    assert said.code == 0 and check_line(said.out, "resumed", "step-000002"), said
    refused(command(capsys, *words, "--seed", 5, "--max-steps", 4), "seed ... 1 ... 5", lines=5)


@pytest.mark.parametrize(
    ("first", "then", "way"),
    [(0, 5, "without --max-val-images"), (5, 4, "with --max-val-images 5"), (5, 0, "max-val-images 5")],
)
def test_a_run_goes_on_with_the_validation_images_that_its_best_was_chosen_by(
    class_photos, tmp_path, capsys, no_report, first, then, way
):
    def words(limit: int, steps: int) -> list[object]:
        more = ["--max-val-images", limit] if limit else []
        flags = ["--data", class_photos, "--output-dir", tmp_path / "run", "--eval-every", 2, "--max-steps", steps]
        return ["train", "classify-demo", *flags, *TINY, *more]

    assert command(capsys, *words(first, 2)).code == 0
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    said = command(capsys, *words(then, 4))
    refused(said, f"{first or 9} validation ... {then or 9}", way)
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before
    other = said.err.partition("on other images:\n  paceline ")[2]
    assert command(capsys, *shlex.split(other)).code == 0, other
    assert command(capsys, *words(first, 4)).code == 0


def test_a_run_whose_folder_nobody_named_says_where_it_lies_and_its_parting_command_goes_on(
    photos, tmp_path, capsys, monkeypatch
):
    from paceline.training.logging.event_logger import EventLogger

    without_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ["train", "classify-demo", "--data", photos, *TINY, "--max-steps", STEPS]
    passed, at = EventLogger.passed, tmp_path / "runs" / "classify-demo-001"
    with monkeypatch.context() as patch:
        patch.setattr(EventLogger, "passed", lambda self, *facts: ((at / "STOP").touch(), passed(self, *facts)))
        said = command(capsys, *words)
    assert said.code == 75 and said.out.splitlines()[0] == "run: runs/classify-demo-001", said
    again = said.out.partition("resume with:  paceline ")[2].splitlines()[0]
    assert shlex.split(again) == [
        "train",
        f"{at.relative_to(tmp_path)}/run.json",
        "--output-dir",
        str(at.relative_to(tmp_path)),
    ]
    said = command(capsys, *shlex.split(again))
    assert said.code == 0 and check_line(said.out, "resumed", "step-"), said
    assert [run.name for run in (tmp_path / "runs").iterdir()] == [at.name]


def test_a_launch_whose_folder_nobody_named_says_what_follows_it(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "classify-demo", "--data", photos, "--system", "cpu", "--dry-run"]
    said = command(capsys, *words)
    assert said.code == 0 and check_line(said.out, "same command", "--output-dir runs/classify-demo-001"), said
    script = tmp_path / "runs" / "classify-demo-001" / "launch" / "run.sh"
    before = script.read_text()
    script.unlink()
    assert command(capsys, *words, "--output-dir", "runs/classify-demo-001").code == 0
    assert script.read_text() == before and len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize("prepared", [False, True])
def test_a_run_of_data_that_were_named_from_another_folder_finds_them(
    class_photos, tmp_path, capsys, monkeypatch, no_report, prepared
):
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(class_photos, tmp_path / "work" / "photos")
    monkeypatch.chdir(tmp_path / "work" / "sub")
    data = "../photos"
    if prepared:
        assert command(capsys, "prepare", "folder", data, "--output-dir", "../set").code == 0
        data = "../set"
    assert (
        command(capsys, "train", "classify-demo", "--data", data, "--output-dir", "run", *TINY, "--max-steps", 2).code == 0
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "work" / "sub" / "run"
    said = command(capsys, "eval", run)
    assert said.code == 0, said
    said = command(capsys, "train", run / "run.json", "--output-dir", "again")
    assert said.code == 0, said
    shutil.rmtree(tmp_path / "work" / ("set" if prepared else "photos"))
    refused(command(capsys, "eval", run), f"'{data}' ... run.json", "--data DIR", lines=3)

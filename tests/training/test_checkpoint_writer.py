"""The background writer: what stays on disk, where the links point, and what happens on a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from messages import raises

from paceline._utils.errors import PacelineError
from paceline.training.checkpoint import background as writer_module
from paceline.training.checkpoint.background import CheckpointWriter
from paceline.training.checkpoint.layout import check_space, list_steps, steps_to_delete
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.checkpoint.write import Snapshot, save_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def snapshot(value: float, numel: int = 10) -> Snapshot:
    return Snapshot({"model": {"w": torch.full((numel,), value)}}, {"value": value})


@pytest.mark.parametrize(
    "steps, newest, keep, keep_every, best, doomed",
    [
        ([10], 10, 2, None, None, []),
        ([10, 20], 20, 2, None, None, []),
        ([10, 20, 30], 30, 2, None, None, [10]),
        ([10, 20, 30], 30, 1, None, None, [10, 20]),
        ([10, 20, 30], 30, 0, None, None, [10, 20]),  # the newest always stays
        ([10, 20, 30, 40], 40, 2, None, 10, [20]),
        ([10, 20, 30, 40, 50], 50, 1, 20, None, [10, 30]),
        ([10, 20, 30, 40, 50], 50, 1, 20, 30, [10]),
        ([10, 20, 30, 40], 25, 2, None, None, [30, 40]),  # left from before the run went back
        ([10, 20, 25, 40], 25, 2, 40, 40, [10, 40]),
    ],
)
def test_which_checkpoints_are_deleted(steps, newest, keep, keep_every, best, doomed):
    assert steps_to_delete(steps, newest=newest, keep=keep, keep_every=keep_every, best=best) == doomed


def test_newest_best_and_every_nth_stay_and_the_links_follow(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=2, keep_every=40)
    for step in range(10, 100, 10):
        writer.submit(step, snapshot(step))
        writer.evaluated(step, best=step == 30)
    writer.close()
    assert list_steps(tmp_path) == [30, 40, 80, 90]
    assert os.readlink(tmp_path / "last") == "step-000090" and os.readlink(tmp_path / "best") == "step-000030"
    assert load_checkpoint(tmp_path / "best").facts == {"value": 30}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_the_best_moves_on_and_the_old_best_goes(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=1)
    for step, best in ((1, True), (2, True), (3, False)):
        writer.submit(step, snapshot(step))
        writer.evaluated(step, best=best)
    writer.close()
    assert list_steps(tmp_path) == [2, 3]


def test_a_result_changes_no_file_of_its_checkpoint(tmp_path):
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.submit(1, snapshot(1))
    writer.wait()
    before = {file: (file.stat().st_ino, file.read_bytes()) for file in (tmp_path / "step-000001").iterdir()}
    assert not (tmp_path / "best").is_symlink()
    writer.evaluated(1, best=True)
    writer.close()
    assert os.readlink(tmp_path / "best") == "step-000001"
    assert before == {file: (file.stat().st_ino, file.read_bytes()) for file in (tmp_path / "step-000001").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last", "step-000001"]


def test_a_result_waits_for_nothing_and_an_old_best_goes(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path, keep=1)
    writer.submit(1, snapshot(1))
    writer.evaluated(1, best=True)
    writer.wait()
    go = threading.Event()
    original = writer_module.save_checkpoint

    def slow(*arguments):
        assert go.wait(30)
        return original(*arguments)

    monkeypatch.setattr(writer_module, "save_checkpoint", slow)
    writer.submit(2, snapshot(2))
    writer.evaluated(2, best=True)
    assert list_steps(tmp_path) == [1] and os.readlink(tmp_path / "best") == "step-000001"
    go.set()
    writer.close()
    assert list_steps(tmp_path) == [2] and os.readlink(tmp_path / "best") == "step-000002"


def saved(folder: Path, *steps: int) -> CheckpointWriter:
    """A writer on a folder in which a killed one has left these checkpoints."""
    for step in steps:
        save_checkpoint(folder, step, snapshot(step))
    return CheckpointWriter(folder, keep=1)


@pytest.mark.parametrize("link", ["", "step-000001", "step-000099", "best", "/nowhere/step-000002", "FILE"])
def test_links_that_a_kill_or_a_person_left_wrong_are_put_right_before_anything_goes(tmp_path, link):
    for name in ("best", "last"):
        if link == "FILE":
            (tmp_path / name).write_text("x")
        elif link:
            (tmp_path / name).symlink_to(link)
    assert saved(tmp_path, 1, 2, 3).resume(3, best=2)
    assert os.readlink(tmp_path / "best") == "step-000002" and os.readlink(tmp_path / "last") == "step-000003"
    assert list_steps(tmp_path) == [2, 3]  # step 1 was the retention's


def test_a_best_that_is_not_known_keeps_its_link_and_one_that_is_gone_loses_it(tmp_path):
    (tmp_path / "best").symlink_to("step-000001")
    writer = saved(tmp_path, 1, 2, 3)
    assert writer.resume(3, best=-1) and os.readlink(tmp_path / "best") == "step-000001"
    assert list_steps(tmp_path) == [1, 3]
    assert not writer.resume(3, best=2) and not (tmp_path / "best").is_symlink()
    assert list_steps(tmp_path) == [3]


@pytest.mark.parametrize("link", ["best", "last"])
def test_a_folder_in_a_link_s_place_is_named_and_nothing_is_deleted(tmp_path, link):
    (tmp_path / link).mkdir()
    with raises(PacelineError, f"{tmp_path}/{link}", "link"):
        saved(tmp_path, 1, 2, 3)
    assert list_steps(tmp_path) == [1, 2, 3] and (tmp_path / link).is_dir()


def test_a_copy_under_another_name_is_none_of_ours_and_stays(tmp_path):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-2").mkdir()
    writer = saved(tmp_path, 2)
    writer.submit(3, snapshot(3))
    writer.close()
    assert list_steps(tmp_path) == [3] and (tmp_path / "step-1").is_dir() and (tmp_path / "step-2").is_dir()


def test_a_run_that_was_deleted_is_not_made_anew(tmp_path):
    writer = CheckpointWriter(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run")
    writer.submit(1, snapshot(1))
    with raises(PacelineError, "removed"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_later_checkpoint_that_is_damaged_stays_until_there_is_another(tmp_path):
    writer = saved(tmp_path, 10, 20)
    (tmp_path / "last").symlink_to("step-000020")
    writer.resume(10, best=10)
    assert list_steps(tmp_path) == [10, 20] and os.readlink(tmp_path / "last") == "step-000010"
    writer.submit(15, snapshot(15))
    writer.close()
    assert list_steps(tmp_path) == [10, 15]


def test_changes_after_submit_do_not_reach_the_file(tmp_path, monkeypatch):
    go = threading.Event()
    original = writer_module.save_checkpoint

    def slow(*arguments):
        assert go.wait(30)
        return original(*arguments)

    monkeypatch.setattr(writer_module, "save_checkpoint", slow)
    weight, facts = torch.ones(3, 2, 2, 2).to(memory_format=torch.channels_last), {"best": {"top1": 0.1}}
    writer = CheckpointWriter(tmp_path)
    path = writer.submit(1, Snapshot({"model": {"w": weight}}, facts))
    # submit came back although nothing has been written
    assert not path.exists()
    weight.fill_(2)
    facts["best"]["top1"] = 0.9
    go.set()
    writer.close()
    loaded = load_checkpoint(path)
    assert loaded.tensors["model"]["w"].unique().tolist() == [1] and loaded.facts == {"best": {"top1": 0.1}}
    assert loaded.tensors["model"]["w"].stride() == weight.stride()


def test_leftovers_of_a_killed_run_are_cleared(tmp_path):
    writer = CheckpointWriter(tmp_path)
    writer.submit(1, snapshot(1))
    writer.close()
    for name in (".step-000002.999.part", ".step-000000.999.trash"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".last.999.part").symlink_to("step-000002")
    (tmp_path / ".best.3fa2b1c0.part").symlink_to("step-000002")
    CheckpointWriter(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step-000001"]
    assert load_checkpoint(tmp_path / "last").facts == {"value": 1}


def test_a_best_of_an_abandoned_future_loses_its_link(tmp_path):
    writer = CheckpointWriter(tmp_path)
    writer.submit(20, snapshot(20))
    writer.evaluated(20, best=True)
    writer.submit(10, snapshot(10))
    writer.close()
    assert list_steps(tmp_path) == [10] and not (tmp_path / "best").is_symlink()


# Argument: folder. A file may have 64 KiB here, so the second checkpoint fails as on a full disk.
FULL = """
import resource, sys
from pathlib import Path
import torch
from paceline.training.checkpoint.write import Snapshot
from paceline.training.checkpoint.background import CheckpointWriter
from paceline._utils.errors import PacelineError
writer = CheckpointWriter(Path(sys.argv[1]), keep=1)
writer.submit(1, Snapshot({"model": {"w": torch.ones(10)}}, {}))
writer.evaluated(1, best=True)
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    writer.submit(2, Snapshot({"model": {"w": torch.ones(100_000)}}, {}))
    writer.evaluated(2, best=True)
    writer.close()
except PacelineError as error:
    print(error)
    writer.close()
    sys.exit(2)
"""


def assert_nothing_was_lost(folder: Path) -> None:
    """Step 1 is whole and linked, and nothing of step 2 lies about."""
    assert load_checkpoint(folder / "last").facts is not None
    assert list_steps(folder) == [1] and os.readlink(folder / "best") == "step-000001"
    assert sorted(path.name for path in folder.iterdir()) == ["best", "last", "step-000001"]


def test_a_write_that_fails_is_raised_in_the_training_thread_and_loses_nothing(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert str(tmp_path) in done.stdout and "File too large" in done.stdout
    assert_nothing_was_lost(tmp_path)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small disk here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_the_checkpoint_before(small_disk):
    folder = small_disk / "checkpoints"
    writer = CheckpointWriter(folder, keep=1)
    writer.submit(1, snapshot(1, 50_000))
    writer.evaluated(1, best=True)
    writer.submit(2, snapshot(2, 250_000))
    with raises(PacelineError, folder, "No space left on device", "unchanged"):
        writer.close()
    assert_nothing_was_lost(folder)
    with pytest.raises(PacelineError, match="free"):
        check_space(folder, 2_000_000)
    check_space(folder, 200_000)


def test_a_read_only_disk_is_named_before_training_starts(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (lambda: check_space(small_disk / "run", 1), lambda: CheckpointWriter(small_disk / "run")):
        with pytest.raises(PacelineError, match=rf"{small_disk}/run.*Read-only file system"):
            call()


def test_a_file_system_without_links_has_files_that_name_the_checkpoints(tmp_path, monkeypatch):
    def refuse(path, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    check_space(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
    writer = CheckpointWriter(tmp_path, keep=1)
    for step in (1, 2, 3):
        writer.submit(step, snapshot(step))
        writer.evaluated(step, best=step == 1)
    writer.close()
    assert list_steps(tmp_path) == [1, 3]
    assert (tmp_path / "last").read_text() == "step-000003\n" and (tmp_path / "best").read_text() == "step-000001\n"
    shutil.rmtree(tmp_path / "step-000001")
    assert not CheckpointWriter(tmp_path).resume(3, best=1) and not (tmp_path / "best").exists()


def test_a_folder_under_a_file_is_named(tmp_path):
    (tmp_path / "run").write_text("a file")
    for call in (lambda: check_space(tmp_path / "run" / "x", 1), lambda: CheckpointWriter(tmp_path / "run" / "x")):
        with pytest.raises(PacelineError, match=r"run/x.*Not a directory"):
            call()


def test_more_than_is_free_is_refused_before_training_starts(tmp_path):
    with pytest.raises(PacelineError, match=rf"{tmp_path}.*GiB are free"):
        check_space(tmp_path, 2**60)
    assert list(tmp_path.iterdir()) == []

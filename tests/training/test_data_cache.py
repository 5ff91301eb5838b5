"""--copy-data-to: the run reads a copy, and nothing that it writes down knows of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import packed_sets
import pytest
import torch
from messages import check_text, raises
from tiny_runs import command, make_photos, refused, train, without_report

from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Lines
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.data.storage.object_store import ObjectStore
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.training.logging.events import MEASURED, read_events
from paceline.training.open_data import open_task
from paceline.training.staged_data import open_staged_copy


@pytest.fixture
def world():
    with open_distributed(SINGLE, device=torch.device("cpu")) as alone:
        yield alone


@pytest.fixture
def photos(tmp_path) -> Path:
    return make_photos(tmp_path / "photos")


def opened(data: Path, world: DistContext, **limits: int):
    return open_task(RECIPES["classify-demo"](), RunOptions(data=str(data), **limits), world, SILENT)


def all_bytes(task) -> list[bytes]:
    indexes = (task.data.train_index, task.data.val_index)
    return [index.read(i) for index in indexes for i in range(len(index))]


def written(run: Path) -> list[object]:
    """Weights, predictions and the losses of each step of a run."""
    predictions = [path.read_text() for path in sorted((run / "predictions").glob("*.json"))]
    events = [event for event in read_events(run / "events.jsonl") if event["event"] == "train"]
    told = [{name: value for name, value in event.items() if name not in MEASURED} for event in events]
    data = json.loads((run / "run.json").read_text())["data"]
    return [(run / "checkpoints" / "last" / "model.safetensors").read_bytes(), predictions[-1], told, data]


def test_a_run_begun_with_a_copy_goes_on_without_and_back_with_the_same_bits(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    assert train(capsys, photos, tmp_path / "plain", "--log-every", 1, steps=3).code == 0
    run, stage = tmp_path / "run", ("--log-every", 1, "--copy-data-to", tmp_path / "disk")
    said = train(capsys, photos, run, *stage, steps=1)
    assert said.code == 0 and f"data in {tmp_path}/disk: copied 27 files (" in said.out, said
    assert train(capsys, photos, run, "--log-every", 1, steps=2).code == 0
    said = train(capsys, photos, run, *stage, steps=3)
    assert said.code == 0 and "copied 0 files (0 bytes in 0 s), 27 already existed" in said.out, said
    assert json.loads((run / "run.json").read_text())["options"]["copy_data_to"] == str(tmp_path / "disk")
    assert written(run) == written(tmp_path / "plain")
    said = command(capsys, "data", "clear", tmp_path / "disk")
    size = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert said.code == 0 and said.out == f"{tmp_path}/disk: 1 copy removed, {size:,} bytes\n"
    assert not list((tmp_path / "disk").iterdir())


def test_photos_are_read_from_the_copy_and_called_by_their_names(photos, tmp_path, world):
    task = opened(photos, world)
    index, wanted = task.data.train_index, all_bytes(task)
    names = [(index.name(i), index.relative_name(i), index.path(i)) for i in range(len(index))]
    with open_staged_copy(task.data, str(tmp_path / "disk"), world, SILENT):
        shutil.rmtree(photos)
        assert all_bytes(task) == wanted
        staged = task.data.train_index
        assert [(staged.name(i), staged.relative_name(i), staged.path(i)) for i in range(len(staged))] == names
        assert staged.records.path(0).startswith(f"{tmp_path}/disk/paceline-")
    assert task.data.train_index is index


def test_only_what_the_run_reads_is_copied(photos, tmp_path, world):
    task = opened(photos, world, max_train_images=5, max_val_images=2)
    with open_staged_copy(task.data, str(tmp_path / "disk"), world, SILENT):
        assert len(list((tmp_path / "disk").rglob("*.jpg"))) == 7


def test_containers_are_copied_as_they_are_also_from_a_bucket(photos, tmp_path, world, capsys, s3_bucket, monkeypatch):
    (tmp_path / "up").mkdir()
    for split in ("train", "val"):
        packed_sets.tar(packed_sets.photos_of(photos, split), tmp_path / "up" / f"{split}.tar")
    s3_bucket.upload(tmp_path / "up", "shards/")
    sources = ("--train", s3_bucket.url("shards/train.tar"), "--val", s3_bucket.url("shards/val.tar"))
    said = command(capsys, "prepare", "tar", *sources, "--output-dir", tmp_path / "set")
    assert said.code == 0, said.err
    task = opened(tmp_path / "set", world)
    wanted = all_bytes(task)
    with open_staged_copy(task.data, str(tmp_path / "disk"), world, SILENT):
        for name in ("read", "read_many"):
            monkeypatch.setattr(ObjectStore, name, lambda *_: pytest.fail("asked the bucket"))
        assert task.data.train_index.records.at_once == 1
        assert all_bytes(task) == wanted and len(list((tmp_path / "disk").rglob("*.tar"))) == 2


def test_a_bit_that_turned_in_the_copy_is_found_before_training(photos, tmp_path, world):
    task, disk = opened(photos, world), str(tmp_path / "disk")
    with open_staged_copy(task.data, disk, world, SILENT):
        copy = Path(task.data.train_index.records.path(0))
    status, data = copy.stat(), bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a failing disk leaves it
    with raises(DataError, "train/ant/0.jpg", "bytes", "data clear"), open_staged_copy(task.data, disk, world, SILENT):
        pass
    copy.write_bytes(data[:-1])
    said: list[str] = []
    with open_staged_copy(task.data, disk, world, Lines(said.append)):
        assert all_bytes(task)
    assert check_text(said[0], "1 file", "changed")


def test_what_cannot_be_staged_is_refused_in_a_line(photos, tmp_path, capsys, monkeypatch):
    said = command(capsys, "train", "classify-demo", "--synthetic", "--copy-data-to", tmp_path / "disk")
    refused(said, "--synthetic ... --copy-data-to")
    (tmp_path / "file").write_text("")
    refused(train(capsys, photos, tmp_path / "run", "--copy-data-to", tmp_path / "file"), "--copy-data-to", "written")
    room = SimpleNamespace(f_bavail=5, f_frsize=1 << 30, f_files=0, f_favail=0, f_blocks=9, f_bfree=5)
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: room if "disk" in str(path) else real(path))
    room.f_frsize = 1024
    refused(train(capsys, photos, tmp_path / "run", "--copy-data-to", tmp_path / "disk"), "5.0 KiB free", "0.1 MiB")
    assert not (tmp_path / "run").exists()
    refused(command(capsys, "data", "clear", tmp_path / "nothing"), "paceline data clear DIR")
    refused(command(capsys, "data", "forget", tmp_path), "info, lint, pack, clear")

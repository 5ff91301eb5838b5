"""A run and a data set that an earlier paceline wrote are read, shown, answered from, and gone on from (tests/recorded)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from run_files import facts_of
from tiny_runs import TINY, command

from paceline.store.freshness import check_fresh
from paceline.store.manifest import Manifest

RECORDED = Path(__file__).parents[1] / "recorded" / "before_rooms.tar.xz"


@pytest.fixture
def recorded(tmp_path) -> Path:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_its_index_fits_its_photos(recorded):
    manifest = Manifest.load(recorded / "photos")
    assert check_fresh(manifest) is None
    assert manifest.content_hash == facts_of(recorded / "run")["data"]["hash"]


def test_training_goes_on_from_its_checkpoint(recorded, capsys):
    words = ("--data", recorded / "photos", "--out", recorded / "run", *TINY, "--system.intra-op-threads", 1)
    said = command(capsys, "train", "resnet50-tiny", *words, "--steps", 4)
    assert said.code == 0, said.err
    assert "resumed from step-000002" in said.out
    ends = [json.loads(line) for line in (recorded / "run" / "events.jsonl").read_text().splitlines()]
    assert ends[-1]["event"] == "end" and ends[-1]["step"] == 4


def test_it_is_shown_scored_and_answers(recorded, capsys):
    photo = next((recorded / "photos" / "val").rglob("*.jpg"))
    assert "resnet50-tiny" in command(capsys, "show", recorded / "run").out
    assert "top1" in command(capsys, "eval", recorded / "run", "--data", recorded / "photos").out
    said = command(capsys, "predict", recorded / "run", photo, "--out", recorded / "answers")
    assert said.code == 0 and (recorded / "answers" / "predictions.json").is_file(), said.err
    assert command(capsys, "report", recorded / "run").code == 0

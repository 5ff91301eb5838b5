"""Runs, data sets and exported files of an earlier revision are resumed, evaluated and used (tests/recorded)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from by_night import ONE_MORE
from run_files import events_of, facts_of
from shared_runs import MASKRCNN, SSD
from tiny_runs import TINY, command, without_report

from paceline.data.index.manifest import Manifest
from paceline.data.index.staleness import find_stale_file

pytestmark = pytest.mark.usefixtures("no_charts")

RECORDED = Path(__file__).parents[1] / "recorded" / "runs.tar.xz"
FLAGS = {
    "classify-demo": [*TINY, "--model.width", "4", "--system", "cpu", "--system.precision", "fp32"],
    "ssd-demo": SSD.split(),
    "maskrcnn-demo": [
        *MASKRCNN.split(),
        "--model.width",
        "4",
        "--model.fpn-channels",
        "8",
        "--model.roi.fc-channels",
        "16",
    ],
}
METRICS = {"classify-demo": "top1", "ssd-demo": "AP", "maskrcnn-demo": "mask AP"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("recipe", FLAGS)
def test_an_index_matches_its_photos(recorded, recipe):
    manifest = Manifest.load(recorded / recipe / "data")
    assert find_stale_file(manifest) is None
    assert manifest.content_hash == facts_of(recorded / recipe / "run")["data"]["hash"]


@pytest.mark.parametrize("recipe", ["classify-demo", pytest.param("ssd-demo", marks=ONE_MORE), "maskrcnn-demo"])
def test_a_killed_run_is_resumed_shown_and_evaluated(recorded, recipe, capsys, monkeypatch):
    without_report(monkeypatch)
    run, data = recorded / recipe / "run", recorded / recipe / "data"
    last = (run / "checkpoints" / "last").readlink().name
    words = [*FLAGS[recipe], "--max-steps", 8, "--save-every", 1, "--log-every", 1, "--eval-every", 20]
    ended = command(capsys, "train", recipe, "--data", data, "--output-dir", run, *words, "--system.intra-op-threads", 1)
    assert ended.code == 0, ended.err
    assert f"resumed from {last}" in ended.out
    losses = json.loads((recorded / recipe / "losses.json").read_text())
    # Processors round differently; after these few steps at a small rate the losses still agree.
    assert {str(event["step"]): event["loss"] for event in events_of(run, "train")} == pytest.approx(losses, rel=1e-2)
    assert command(capsys, "plan", run).code == 0
    evaluated = command(capsys, "eval", run, "--data", data)
    assert evaluated.code == 0 and METRICS[recipe] in evaluated.out, evaluated.err
    assert command(capsys, "report", run).code == 0


@pytest.mark.parametrize(("recipe", "file"), [("classify-demo", "answers.onnx"), ("ssd-demo", "answers.safetensors")])
def test_an_exported_file_predicts(recorded, recipe, file, capsys, tmp_path):
    folder = recorded / recipe
    photo = next(folder.glob("data/val*/**/*.jpg"))
    predicted = command(capsys, "predict", folder / file, photo, "--output-dir", tmp_path / "answers")
    assert predicted.code == 0 and (tmp_path / "answers" / "predictions.json").is_file(), predicted.err

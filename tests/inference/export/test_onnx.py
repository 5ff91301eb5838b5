"""An ONNX file answers as its run does, in onnxruntime and by the program beside it; a file with other answers does not stay."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hotcoco.mask import decode
from messages import check_line, check_text
from onnxruntime import InferenceSession
from shared_runs import MASKRCNN, drawn_instances
from tiny_runs import Said, command, forge, refused
from torch import Tensor, nn

import paceline
from paceline.inference.export import onnx_export
from paceline.inference.graph.runtimes import open_session
from paceline.inference.trained_model import TorchPredictor
from paceline.models.ops.dispatch import static_shapes
from paceline.models.ops.nms import nms_cpu, nms_fixed

pytestmark = [
    pytest.mark.xdist_group("onnx"),  # whose import takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def export(capsys: pytest.CaptureFixture[str], run: Path, out: Path, *more: object) -> Said:
    return command(capsys, "export", run, "--output", out, *more)


def reader_of(out: Path) -> Any:
    """The model that the program beside a file opens."""
    file = out.with_name(f"{out.stem}_predict.py")
    spec = importlib.util.spec_from_file_location("beside", file)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ONNXModel(out)


def in_fp32(run: Path, score_threshold: float | None = None) -> TorchPredictor:
    """The run's own answers in the file's number format; score_threshold: in place of the recipe's."""
    trained = paceline.load(run).trained
    system = {**trained.facts.system, "precision": "fp32"}
    if score_threshold is not None:
        settings = trained.model.settings
        trained.model.settings = replace(settings, detect=replace(settings.detect, score_threshold=score_threshold))
    return TorchPredictor(replace(trained, facts=replace(trained.facts, system=system)))


class Orders(nn.Module):
    """What has no form of ONNX's own: stable sorts, and suppression of lists, with classes and without."""

    def forward(self, boxes: Tensor, valid: Tensor, classes: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        falling, growing = values.sort(dim=1, descending=True, stable=True), values.sort(dim=1, stable=True)
        rising = (values > 2).to(torch.uint8).sort(dim=1, stable=True)
        return (
            nms_fixed(boxes, valid, 0.5)[0], nms_fixed(boxes[:, 0], valid[:, 0], 0.5, classes)[0],
            falling.values, falling.indices, rising.values, rising.indices, growing.values, growing.indices,
        )  # fmt: skip


def test_sorts_and_suppression_are_ours_to_the_last_tie(tmp_path):
    random = torch.Generator().manual_seed(0)
    corners = torch.randint(0, 12, (3, 2, 40, 2), generator=random)
    boxes = torch.cat((corners, corners + torch.randint(0, 12, (3, 2, 40, 2), generator=random)), dim=3).float()
    valid = torch.rand(3, 2, 40, generator=random) > 0.2
    classes = torch.randint(0, 3, (3, 40), generator=random)
    values = torch.randint(0, 5, (3, 50), generator=random).float()
    arguments = boxes, valid, classes, values
    with torch.no_grad(), static_shapes(suppression=onnx_export.one_node):
        program = torch.export.export(Orders(), arguments)
    made = torch.onnx.export(
        program,
        dynamo=True,
        custom_translation_table=onnx_export._translations(),
        opset_version=onnx_export.OPSET,
        verbose=False,
    )
    made.save(tmp_path / "orders.onnx")
    found = open_session(tmp_path / "orders.onnx")
    session = InferenceSession(tmp_path / "orders.onnx")
    feed = dict(zip((one.name for one in session.get_inputs()), (one.numpy() for one in arguments)))
    for answer, wanted in zip(session.run(None, feed), Orders()(*arguments)):
        assert np.array_equal(answer, wanted.numpy())
    kept = found([one.numpy() for one in arguments])[0]
    for photo in range(3):
        rows = valid[photo, 1].nonzero().squeeze(1)
        greedy = rows[nms_cpu(boxes[photo, 1][rows], 0.5)]
        assert kept[photo, 1].nonzero()[0].tolist() == greedy.tolist()  # torchvision's own suppression
    assert 0 < kept.sum() < valid.sum()


def test_a_classifier_answers_for_any_number_of_photos(resnet_run, tmp_path, capsys):
    out = tmp_path / "cats.onnx"
    said = export(capsys, resnet_run.folder, out)
    assert said.code == 0 and check_line(said.out, "9 images", "probability"), said
    content = out.read_bytes()
    for place in (str(Path(paceline.__file__).parent), "site-packages", str(tmp_path)):
        assert place.encode() not in content, f"it tells where it was made: {place}"
    session = InferenceSession(out)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["paceline"])
    assert facts["classes"] == ["ant", "bee", "cat"] and (facts["graph"]["height"], facts["graph"]["batch"]) == (32, None)
    photos = np.random.default_rng(0).integers(0, 255, (5, 32, 32, 3), dtype=np.uint8)
    together = session.run(["probabilities"], {"photos": photos})[0]
    alone = np.concatenate([session.run(None, {"photos": photos[place : place + 1]})[0] for place in range(5)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-6)
    model = reader_of(out)
    run = in_fp32(resnet_run.folder)
    for photo in sorted(resnet_run.data.glob("val/*/*.jpg")):
        own, answer = run.predict(photo), model(photo)
        assert [one["name"] for one in answer] == list(own.names)
        np.testing.assert_allclose([one["score"] for one in answer], own.scores, atol=1e-4)
    assert export(capsys, resnet_run.folder, out, "--verify-images", 0).code == 0  # one of ours is replaced
    (cut := tmp_path / "cut.jpg").write_bytes(photo.read_bytes()[:200])
    (none := tmp_path / "none.jpg").write_text("no photo")
    for photos, code in (([photo], 0), ([cut, none, photo], 1)):
        shown = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, str(out.with_name("cats_predict.py")), *map(str, photos)],
            capture_output=True, text=True, cwd="/", env={**os.environ, "PYTHONPATH": ""}, timeout=300,
        )  # fmt: skip
        assert shown.returncode == code and shown.stdout.splitlines()[1].split()[0] == own.names[0], shown
        assert [line.split(": not a readable")[0] for line in shown.stderr.splitlines()] == [*map(str, photos[:-1])]


# The program where there is neither torch nor paceline.
WITHOUT_TORCH = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "torchvision", "paceline"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_file_with_other_answers_does_not_stay(resnet_run, tmp_path, capsys, monkeypatch):
    def shifted(path: Path):
        run = open_session(path)
        return lambda arguments: [run(arguments)[0] + 2e-4]

    monkeypatch.setattr("paceline.inference.export.verification.open_session", shifted)
    out = tmp_path / "cats.onnx"
    said = export(capsys, resnet_run.folder, out)
    refused(said, "not written", "probability 0.0002", "--verify-images 0")
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused_before_anything_is_written(resnet_run, tmp_path, capsys, monkeypatch):
    run, out = resnet_run.folder, tmp_path / "cats.onnx"
    refused(export(capsys, run, out, "--image-size", "64x64"), "--image-size 64x64", "32x32")
    refused(export(capsys, run, out, "--score-threshold", 0.5), "--score-threshold 0.5")
    refused(export(capsys, run, out, "--batch-size", 0), "--batch-size 0")
    refused(export(capsys, run, tmp_path / "cats.pt"), "suffix")
    refused(export(capsys, run, out, "--verify-dir", tmp_path / "gone"), "gone")
    refused(export(capsys, run, tmp_path / "cats.safetensors", "--batch-size", 2), "--batch-size", "onnx")
    (tmp_path / "theirs.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch")
    refused(export(capsys, run, tmp_path / "theirs.onnx"), "theirs.onnx", "exists")
    (tmp_path / "cats_predict.py").write_text("print('mine')")
    refused(export(capsys, run, out), "cats_predict.py", "exists")
    moved = tmp_path / "run"
    shutil.copytree(run, moved, symlinks=True)
    forge(moved, {"data.manifest": str(tmp_path / "gone"), "options.data": str(tmp_path / "gone")})
    refused(export(capsys, moved, tmp_path / "moved.onnx"), "--verify-dir DIR", "--verify-images 0")
    monkeypatch.setattr("paceline.inference.export.formats.find_spec", lambda name: None)
    refused(export(capsys, run, tmp_path / "more.onnx"), "pip install", "onnxruntime")
    assert not out.exists() and not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*"))


def near(own: Any, answer: list[dict[str, Any]], score: float, box: float) -> None:
    """The answers of `paceline.load` and of the program beside the file: the same objects, one to one."""
    left = list(answer)
    for place, (name, value) in enumerate(zip(own.names, own.scores)):
        wanted = own.boxes_xyxy[place]
        partner = min(
            (one for one in left if one["name"] == name),
            key=lambda one: np.abs(one["box"] - wanted).max() + abs(one["score"] - value),
        )
        left = [one for one in left if one is not partner]
        assert abs(partner["score"] - value) <= score and np.abs(partner["box"] - wanted).max() <= box, (place, partner)
        if own.masks_rle is not None:
            mine, its = own.mask(place), partner["mask"]
            assert (mine != its).sum() <= max(2, 0.01 * mine.sum())
    assert not left


def listed(found: Any) -> list[dict[str, Any]]:
    """The objects that `paceline.load` finds, as the program beside the file has them."""
    rows = [
        {"name": name, "score": score, "box": box} for name, score, box in zip(found.names, found.scores, found.boxes_xyxy)
    ]
    return rows if found.masks_rle is None else [{**row, "mask": found.mask(place)} for place, row in enumerate(rows)]


@pytest.mark.nightly("exports a network of boxes, and one of masks, each of which takes half a minute")
@pytest.mark.parametrize("workload", ["ssd", "maskrcnn"])
@pytest.mark.parametrize("suffix, input", [(".onnx", "uint8"), (".onnx", "float"), (".xml", "uint8"), (".pt2", "uint8")])
def test_a_detector_answers_as_its_run_does(workload, suffix, input, request, tmp_path, capsys):
    if suffix == ".xml":
        pytest.importorskip("openvino", reason="openvino is not installed (extra: openvino)")
    run, trust = request.getfixturevalue(f"{workload}_run"), suffix == ".pt2"
    out = tmp_path / f"objects{suffix}"
    # Two steps leave flat scores: with a low threshold there are objects.
    said = export(capsys, run.folder, out, "--input-dtype", input, "--batch-size", 2, "--score-threshold", 0.01)
    assert said.code == 0 and "0 unmatched" in said.out and " 0 objects" not in said.out, said
    model, opened = reader_of(out) if suffix == ".onnx" else None, paceline.load(out, allow_code_execution=trust)
    predictor = in_fp32(run.folder, 0.01)
    checked = 0
    for photo in sorted(run.data.rglob("val*/*.jpg")):
        own = predictor.predict(photo)  # of Mask R-CNN landscapes and portraits, each in its own shape
        if model is not None:
            near(own, model(photo), 1e-4, 0.01)
        near(own, listed(opened.predict(photo)), 1e-4, 0.01)
        checked += len(own.names)
    assert checked
    scored = tmp_path / "scored.json"
    assert (
        command(
            capsys, "eval", out, "--data", run.data, "--output", scored, *(["--allow-code-execution"] if trust else [])
        ).code
        == 0
    )
    for image in json.loads(scored.read_text())["images"]:
        found = opened.predict(run.data / image["file"]).filter(max_detections=100)
        assert image["boxes"] == found.boxes_xywh.round(2).tolist()
        assert [label - 1 for label in image["labels"]] == list(found.class_ids)
        np.testing.assert_allclose(image["scores"], found.scores, atol=1e-5)
        for place, runs in enumerate(image.get("masks", ())):
            mask = decode({"size": [found.height, found.width], "counts": runs}).astype(bool)
            assert (mask != found.mask(place)).sum() <= 2
    above = export(capsys, run.folder, out, "--score-threshold", 0.999)
    assert above.code == 0 and ", 0 objects" in above.out, above
    if model is not None:
        assert onnx.load(out).producer_name == "paceline"


@pytest.mark.nightly("trains and exports one network more, in half precision too")
def test_a_network_without_masks_and_one_in_half_precision(tmp_path, tmp_path_factory, capsys):
    run, out = tmp_path / "run", tmp_path / "objects.onnx"
    data = drawn_instances(tmp_path_factory)
    words = [
        "train",
        "maskrcnn-demo",
        "--data",
        data,
        "--output-dir",
        run,
        "--model.no-masks",
        *MASKRCNN.split(),
        "--max-steps",
        2,
    ]
    assert command(capsys, *words).code in (0, 1)
    said = export(capsys, run, out, "--score-threshold", 0.01)
    assert said.code == 0 and "0 unmatched" in said.out and "mask" not in said.out.replace(str(tmp_path), ""), said
    assert [one.name for one in InferenceSession(out).get_outputs()] == ["boxes", "scores", "labels"]
    size = out.stat().st_size
    said = export(capsys, run, out, "--score-threshold", 0.01, "--precision", "fp16")
    assert said.code == 0 and check_text(said.out, "fp16") and out.stat().st_size < 0.7 * size, said
    # One shape for all: the file is the network's, and its answers are not those of `predict`.
    said = export(capsys, run, out, "--score-threshold", 0.01, "--image-size", "96x128")
    same, other = (line for line in said.out.splitlines() if line.startswith("compared with"))
    assert said.code == 0 and "inputs of 96x128" in same and "0 unmatched" in same, said
    assert "`predict`" in other and "0 unmatched" not in other, said

"""`predict` and `eval` answer with a graph as with its run, without torch but for a .pt2; what is none of ours is refused."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from messages import raises
from onnx import ModelProto, TensorProto, helper, numpy_helper
from PIL import Image
from serving import served
from tiny_runs import command, forge, refused

import paceline
from paceline._utils.atomic_write import IN_ZIP
from paceline._utils.errors import PacelineError
from paceline.cli.main import main
from paceline.config.model_card import make_card
from paceline.config.recipes import RECIPES
from paceline.inference.graph import graph_model
from paceline.inference.results import ClassificationResult, DetectionResult
from paceline.models.registry import WORKLOADS

pytestmark = [
    pytest.mark.xdist_group("onnx"),  # whose import takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
# The command in a process that has no torch.
WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from paceline.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def run(resnet_run, tmp_path_factory) -> Path:
    """Of three classes, computing in fp32 as its file does."""
    folder = tmp_path_factory.mktemp("fp32") / "run"
    shutil.copytree(resnet_run.folder, folder, symlinks=True)
    forge(folder, {"system.precision": "fp32"})
    return folder


FORMS = (".onnx", ".xml", ".pt2")


def exported(run: Path, suffix: str) -> Path:
    """The run's graph, written once."""
    out = run.with_name(f"cats{suffix}")
    if not out.exists():
        assert main(["export", str(run), "--output", str(out), "--verify-images", "1"]) == 0
    return out


@pytest.fixture(scope="module")
def file(run) -> Path:
    return exported(run, ".onnx")


@pytest.fixture(scope="module", params=FORMS)
def graph(run, request) -> Path:
    if request.param == ".xml":
        pytest.importorskip("openvino", reason="openvino is not installed (extra: openvino)")
    return exported(run, request.param)


def consent(graph: Path) -> list[str]:
    return ["--allow-code-execution"] if graph.suffix == ".pt2" else []


def answers_in(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "predictions.json").read_text())
    return {one["file"]: one for one in found["images"]}


def test_predict_writes_a_runs_folder(resnet_run, run, graph, tmp_path, capsys):
    asked = *sorted(resnet_run.data.glob("val/*")), "--save-formats", "csv"
    words = ["predict", graph, *asked, "--output-dir", tmp_path / "file", *consent(graph)]
    if consent(graph):
        assert command(capsys, *words).code == 0
    else:
        program = [sys.executable, "-c", WITHOUT_TORCH, *map(str, words)]
        said = subprocess.run(program, capture_output=True, text=True, timeout=300)
        assert said.returncode == 0 and "9 images in" in said.stdout, said
    assert command(capsys, "predict", run, *asked, "--output-dir", tmp_path / "run").code == 0
    own, others = answers_in(tmp_path / "run"), answers_in(tmp_path / "file")
    assert own.keys() == others.keys() and len(own) == 9
    for photo, answer in own.items():
        assert {**others[photo], "scores": 0} == {**answer, "scores": 0}
        np.testing.assert_allclose(others[photo]["scores"], answer["scores"], atol=1e-4)
    written = [{str(path.relative_to(folder)) for path in folder.rglob("*")} for folder in tmp_path.iterdir()]
    assert written[0] == written[1] and len(written[0]) > 10


def test_load_takes_photos_of_every_kind(resnet_run, run, graph, tmp_path):
    photo = next(resnet_run.data.glob("val/*/*.jpg"))
    predictor = paceline.load(run)
    opened = paceline.load(graph, allow_code_execution=bool(consent(graph)))
    assert opened.classes == predictor.classes and opened.category_ids == predictor.category_ids
    assert not opened.finds_objects and opened.best_f1() == {}
    pixels = np.asarray(Image.open(photo).convert("RGB"))
    kinds = photo, photo.read_bytes(), Image.open(photo), pixels, torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    for own, answer in zip(predictor.predict(kinds), opened.predict(kinds), strict=True):
        assert isinstance(answer, ClassificationResult) and isinstance(own, ClassificationResult)
        assert answer.names == own.names and answer.draw().size == own.draw().size
        np.testing.assert_allclose(answer.scores, own.scores, atol=1e-4)
    (tmp_path / "cut.jpg").write_bytes(photo.read_bytes()[:-100])
    own, answer = (next(one.predict_iter(tmp_path / "cut.jpg")) for one in (predictor, opened))
    assert answer == own  # unreadable, for the same reason


def test_eval_scores_the_file_and_shows_the_runs_own_numbers(resnet_run, run, graph, capsys):
    asked = "--data", resnet_run.data
    said, own = (
        command(capsys, "eval", graph, *asked, "--json", *consent(graph)),
        command(capsys, "eval", run, *asked, "--json"),
    )
    assert said.code == own.code == 0, said
    found, wanted = (json.loads(one.out.splitlines()[-1]) for one in (said, own))
    assert found.pop("run_metrics") == {"top1": wanted["top1"], "top5": wanted["top5"]}
    assert found.pop("checkpoint") == graph.name and wanted.pop("checkpoint") == "step-000002"
    assert found == wanted and 0 < found["top1"] < 1
    some = command(capsys, "eval", graph, *asked, "--max-val-images", 4, *consent(graph))
    assert some.code == 0 and f"{graph.name}  4 images" in some.out and "for comparison" in some.out, some
    refused(command(capsys, "eval", graph, *consent(graph)), "--data DIR")
    refused(command(capsys, "eval", graph, *asked, "--nms-iou", 0.4, *consent(graph)), "--nms-iou 0.4", graph.name)
    refused(command(capsys, "export", graph, "--output", "again.onnx"), graph.name, "`predict`, `eval`, and `serve`")
    refused(command(capsys, "plan", graph), graph.name, "`predict`, `eval`, and `serve`")


def test_serve_answers_with_it(resnet_run, graph):
    from openapi_schema_validator import OAS31Validator

    photo, opened = (
        next(resnet_run.data.glob("val/*/*.jpg")),
        paceline.load(graph, allow_code_execution=bool(consent(graph))),
    )
    with served(opened, max_batch_size=1, batch_timeout_ms=0) as service:
        assert service.ask("/predict", photo.read_bytes()).json["names"] == list(opened.predict(photo).names)
        model = service.ask("/model").json
        assert model["classes"] == list(opened.classes) and model["size"]["parameters"] is None
        known = service.ask("/openapi.json").json["components"]
        OAS31Validator({"$ref": "#/components/schemas/Model", "components": known}).validate(model)


def card(model: ModelProto, change: Callable[[dict[str, Any]], object]) -> None:
    (entry,) = model.metadata_props
    facts = json.loads(entry.value)
    change(facts)
    entry.value = json.dumps(facts)


def no_card(model: ModelProto) -> None:
    del model.metadata_props[:]


def own_operator(model: ModelProto) -> None:
    name = model.graph.output[0].name
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Run", ["before"], [name], domain="com.stranger"))
    model.opset_import.append(helper.make_opsetid("com.stranger", 1))


def other_input(model: ModelProto) -> None:
    model.graph.input[0].name = "images"
    for node in model.graph.node:
        node.input[:] = ["images" if name == "photos" else name for name in node.input]


STRANGERS: dict[str, tuple[Callable[[ModelProto], object], str]] = {
    "no card": (no_card, "paceline export"),
    "an operator of its own": (own_operator, "com.stranger:Run"),
    "another input": (other_input, "do not match the metadata"),
    "another schema": (lambda model: card(model, lambda facts: facts.update(schema=2)), "schema 2"),
    "too few classes": (lambda model: card(model, lambda facts: facts.update(classes=["ant"])), "classes"),
    "no graph": (lambda model: card(model, lambda facts: facts.pop("graph")), "graph inputs"),
    "a huge input": (lambda model: card(model, lambda facts: facts["graph"].update(height=10**9)), "graph"),
    "another size": (
        lambda model: card(model, lambda facts: facts["graph"].update(height=64)),
        "do not match the metadata",
    ),
    "another task": (lambda model: card(model, lambda facts: facts["recipe"].update(task="detection")), "recipe"),
    "its own task": (lambda model: card(model, lambda facts: facts["recipe"].update(task="./bad.py:BAD")), "bad.py:BAD"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_file_that_is_none_of_ours_is_refused(kind, resnet_run, file, tmp_path, capsys, monkeypatch):
    change, wanted = STRANGERS[kind]
    model = onnx.load(file)
    change(model)
    onnx.save(model, tmp_path / "theirs.onnx")
    (tmp_path / "bad.py").write_text("open('was run', 'w')")
    monkeypatch.chdir(tmp_path)
    photo = next(resnet_run.data.glob("val/*/*.jpg"))
    refused(command(capsys, "predict", "theirs.onnx", photo, "--output-dir", "answers"), "theirs.onnx", wanted)
    refused(command(capsys, "eval", "theirs.onnx", "--data", resnet_run.data), "theirs.onnx", wanted)
    assert not (tmp_path / "was run").exists() and not (tmp_path / "answers" / "predictions.json").exists()


def test_numbers_in_other_files_are_not_read(resnet_run, file, tmp_path, capsys, monkeypatch):
    onnx.save(onnx.load(file), tmp_path / "theirs.onnx", save_as_external_data=True, location="numbers.bin")
    monkeypatch.chdir(tmp_path)
    photo = next(resnet_run.data.glob("val/*/*.jpg"))
    refused(command(capsys, "predict", "theirs.onnx", photo), "onnxruntime")
    model = onnx.load(tmp_path / "theirs.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = f"../{tmp_path.name}/numbers.bin" if entry.key == "location" else entry.value
    onnx.save(model, tmp_path / "above.onnx")
    refused(command(capsys, "predict", "above.onnx", photo), "onnxruntime")


def test_what_is_no_onnx_file_is_refused(resnet_run, file, tmp_path, capsys, monkeypatch):
    photo, content = next(resnet_run.data.glob("val/*/*.jpg")), file.read_bytes()
    damaged = b"", b"\x00" * 99, b"<html>" * 99, content[:-9], content[: len(content) // 2], b"\x08\x01" * 10_001
    for place, data in enumerate(damaged):
        (theirs := tmp_path / f"{place}.onnx").write_bytes(data)
        refused(command(capsys, "predict", theirs, photo), f"{place}.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(command(capsys, "predict", tmp_path / "pipe.onnx", photo), "pipe.onnx")
    refused(command(capsys, "predict", file, photo, "--checkpoint", "last"), "--checkpoint last")
    refused(
        command(capsys, "predict", file, photo, "--allow-code-execution"),
        "--allow-code-execution",
        "cats.onnx",
        "Remove it",
    )
    with raises(PacelineError, "--recipe resnet50"):
        paceline.load(file, recipe="resnet50")
    monkeypatch.setattr(graph_model, "find_spec", lambda _: None)
    refused(command(capsys, "predict", file, photo), "pip install", "onnxruntime")


def test_what_is_no_file_of_openvino_is_refused(resnet_run, run, tmp_path, capsys, monkeypatch):
    pytest.importorskip("openvino", reason="openvino is not installed (extra: openvino)")
    file, photo = exported(run, ".xml"), next(resnet_run.data.glob("val/*/*.jpg"))
    text, numbers = file.read_text(), file.with_suffix(".bin").read_bytes()
    no_digest = re.sub(r"&quot;numbers&quot;: &quot;\w+&quot;, |, &quot;numbers&quot;: &quot;\w+&quot;", "", text)
    assert no_digest != text
    other = bytes(reversed(numbers))
    entity = text.replace("?>", '?>\n<!DOCTYPE net [<!ENTITY a "a">]>', 1)
    cases = {
        "alone": (text, None, "alone.bin", "in one folder"),
        "another": (text, other, "another.bin", "the weights of another.xml"),
        "short": (no_digest, numbers[:-99], "short.xml", "openvino failed to open"),
        "cut": (text[:-99], numbers, "cut.xml", "not a valid OpenVINO XML file"),
        "empty": ("", numbers, "empty.xml", "not a valid OpenVINO XML file"),
        "page": ("<html></html>", numbers, "page.xml", "paceline export"),
        "entities": (entity, numbers, "entities.xml", "entities"),
        "operator": (text.replace('type="Convolution"', 'type="Stranger"', 1), numbers, "operator.xml", "failed to open"),
        "input": (text.replace('"photos"', '"images"'), numbers, "input.xml", "do not match the metadata"),
        "offset": (no_digest.replace('offset="0"', f'offset="{1 << 40}"', 1), numbers, "offset.xml", "failed to open"),
        "model": (
            text.replace("&quot;height&quot;: 32", "&quot;height&quot;: 64"),
            numbers,
            "model.xml",
            "do not match the metadata",
        ),
    }
    for name, (content, beside, *wanted) in cases.items():
        (theirs := tmp_path / f"{name}.xml").write_text(content)
        if beside is not None:
            theirs.with_suffix(".bin").write_bytes(beside)
        refused(command(capsys, "predict", theirs, photo), *wanted)
        refused(command(capsys, "eval", theirs, "--data", resnet_run.data), *wanted)
    (tmp_path / "older.xml").write_text(no_digest)  # of a version that did not note it
    (tmp_path / "older.bin").write_bytes(numbers)
    assert paceline.load(tmp_path / "older.xml").predict(photo)
    monkeypatch.setattr(graph_model, "find_spec", lambda _: None)
    refused(command(capsys, "predict", file, photo), "pip install 'openvino>=")


def test_a_pt2_is_opened_with_consent_alone(resnet_run, run, tmp_path, capsys, monkeypatch):
    file, photo = exported(run, ".pt2"), next(resnet_run.data.glob("val/*/*.jpg"))
    monkeypatch.setattr("torch.export.load", lambda *_: pytest.fail("it was opened"))
    monkeypatch.chdir(tmp_path)
    for words in (("predict", file, photo), ("eval", file, "--data", resnet_run.data), ("serve", file)):
        refused(command(capsys, *words), "cats.pt2", "code", "--allow-code-execution", ".onnx", lines=1)
    with raises(PacelineError, "allow_code_execution=True", "code"):
        paceline.load(file)
    # With consent it is one of ours, or is not opened.
    cases = {
        "no zip": (b"PK\x03\x04", "not a valid .pt2 file"),
        "empty": (b"", "not a valid .pt2 file"),
        "cut": (file.read_bytes()[:-999], "cut.pt2"),
        "no card": (with_card(file, None), "paceline export"),
        "no JSON": (with_card(file, b"{"), "damaged"),
        "another size": (with_card(file, lambda facts: facts["graph"].update(height=0)), "graph"),
        "another task": (with_card(file, lambda facts: facts["recipe"].update(task="detection")), "recipe"),
    }
    for name, (content, wanted) in cases.items():
        (theirs := tmp_path / f"{name}.pt2").write_bytes(content)
        refused(command(capsys, "predict", theirs, photo, "--allow-code-execution"), theirs.name, wanted)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.pt2").write_bytes(with_card(file, lambda facts: facts.update(classes=["ant", "bee"])))
    refused(command(capsys, "predict", "other.pt2", photo, "--allow-code-execution"), "other.pt2", "classes")
    (tmp_path / "half.pt2").write_bytes(with_card(file, lambda _: None, leave_out="models/model.json"))
    refused(command(capsys, "eval", "half.pt2", "--data", resnet_run.data, "--allow-code-execution"), "half.pt2", "torch")


@pytest.mark.nightly("compiles a network: half a minute")
def test_a_compiled_one_answers_as_its_run(resnet_run, run, tmp_path, capsys):
    out, photo = tmp_path / "made.pt2", next(resnet_run.data.glob("val/*/*.jpg"))
    said = command(capsys, "export", run, "--format", "aoti", "--output", out)
    assert said.code == 0 and "compared with `predict`" in said.out, said
    shutil.move(out, moved := tmp_path / "moved.pt2")
    refused(command(capsys, "predict", moved, photo), "moved.pt2", "--allow-code-execution", lines=1)
    own, answer = paceline.load(run).predict(photo), paceline.load(moved, allow_code_execution=True).predict(photo)
    assert isinstance(own, ClassificationResult) and isinstance(answer, ClassificationResult) and answer.names == own.names
    np.testing.assert_allclose(answer.scores, own.scores, atol=1e-4)
    assert command(capsys, "eval", moved, "--data", resnet_run.data, "--allow-code-execution").code == 0


def with_card(file: Path, change: Callable[[dict[str, Any]], object] | bytes | None, leave_out: str = "\0") -> bytes:
    """A .pt2 with another card, or with none; leave_out: an entry that is not taken along."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(file) as read, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as write:
        for entry in read.infolist():
            content = read.read(entry)
            if entry.filename == IN_ZIP:
                if change is None:
                    continue
                facts = json.loads(content)
                content = change if isinstance(change, bytes) else json.dumps((change(facts), facts)[1]).encode()
            if leave_out not in entry.filename:
                write.writestr(entry.filename, content)
    return buffer.getvalue()


def constants(task: str, recipe: Any, shape: tuple[int, int]) -> ModelProto:
    """A graph with our inputs and outputs, and a card, that finds the same two objects in every photo."""
    values: dict[str, np.ndarray] = {
        "boxes": np.array([[[32, 64, 160, 128], [0, 0, 16, 16], [0, 0, 0, 0]]], np.float32),
        "scores": np.array([[0.9, 0.5, 0]], np.float32),
        "labels": np.array([[1, 0, -1]], np.int64),
    }
    inputs = [helper.make_tensor_value_info("photos", TensorProto.UINT8, [1, *shape, 3])]
    if task == "instance-segmentation":
        inputs.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [1, 2]))
        values["masks"] = np.ones((1, 3, 28, 28), np.float32)
    nodes = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(one)) for name, one in values.items()]
    kinds = {name: helper.np_dtype_to_tensor_dtype(one.dtype) for name, one in values.items()}
    outputs = [helper.make_tensor_value_info(name, kinds[name], one.shape) for name, one in values.items()]
    model = helper.make_model(
        helper.make_graph(nodes, task, inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    graph = {"layout": "NHWC uint8", "height": shape[0], "width": shape[1], "batch": 1}
    facts = {
        "name": task,
        "recipe": asdict(recipe),
        "system": {},
        "classes": ["cat", "dog"],
        "data": {"category_ids": [7, 9]},
    }
    helper.set_model_props(model, {"paceline": json.dumps({**json.loads(make_card(facts)), "graph": graph})})
    return model


@pytest.mark.parametrize("name", ["ssd-demo", "maskrcnn-demo"])
def test_boxes_and_masks_come_back_in_the_photos_pixels(name, tmp_path):
    recipe = RECIPES[name]()
    own = WORKLOADS[recipe.task]
    side = recipe.input.max_size if recipe.task == "instance-segmentation" else own.network.eval_shape(recipe, 1, 1)[0]
    side = -(-side // 32) * 32
    onnx.save(constants(recipe.task, recipe, (side, side)), tmp_path / "made.onnx")
    w, h = 1200, 600
    found = paceline.load(tmp_path / "made.onnx").predict(Image.new("RGB", (w, h)))
    assert isinstance(found, DetectionResult)
    # A square of an SSD's input is the whole photo; of Mask R-CNN's the part that the photo fills.
    down, across = (h / side, w / side) if recipe.task == "detection" else 2 * (w / recipe.input.max_size,)
    wanted = np.array([[32 * across, 64 * down, 128 * across, 64 * down], [0, 0, 16 * across, 16 * down]])
    np.testing.assert_allclose(found.boxes_xywh, wanted, atol=1e-3)
    assert (found.names, found.class_ids, found.category_ids) == (("dog", "cat"), (1, 0), (9, 7))
    np.testing.assert_allclose(found.scores, (0.9, 0.5), atol=1e-6)
    if recipe.task == "instance-segmentation":
        left, top, right, bottom = found.boxes_xyxy[0]
        inside = found.mask(0)[round(top) : round(bottom), round(left) : round(right)]
        assert found.mask(0).shape == (h, w) and inside[2:-2, 2:-2].all() and found.mask(0).sum() < 1.1 * inside.size

"""A network in eight bits: which layers are, what the file scores, and what is refused."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import onnx
import pytest
from messages import check_line
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from test_onnx import export, reader_of
from tiny_runs import forge, refused

import paceline
from paceline.inference.export import onnx_export
from paceline.inference.export.int8 import list_int8_nodes
from paceline.training.logging.events import get_metrics

pytestmark = [
    pytest.mark.xdist_group("onnx"),  # whose import takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def test_last_layers_and_decoding_stay_in_float():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "between"),
        helper.make_node("Conv", ["b", "w"], ["c"], "second"),
        helper.make_node("Add", ["c", "b"], ["d"], "residual"),
        helper.make_node("Conv", ["d", "w"], ["e"], "scores"),
        helper.make_node("Transpose", ["e"], ["f"], "decoded", perm=[0, 2, 3, 1]),
        helper.make_node("Add", ["f", "k"], ["g"], "shifted"),
        helper.make_node("Conv", ["d", "w"], ["h"], "an_output"),
    ]
    kept = [helper.make_tensor(name, TensorProto.FLOAT, [1], [0.0]) for name in "wk"]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xgh"]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], kept)
    assert list_int8_nodes(graph) == ["first", "between", "second", "residual"]


@pytest.mark.nightly("calibrates, exports and scores a network")
def test_a_classifier_s_loss_is_what_its_file_scores(resnet_run, tmp_path, capsys):
    out, floats = tmp_path / "cats.onnx", tmp_path / "floats.onnx"
    said = export(capsys, resnet_run.folder, out, "--precision", "int8", "--calibration-images", 5)
    assert said.code == 0 and check_line(said.out, "int8", "5 images"), said
    model = onnx.load(out)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("QuantizeLinear") > 5 and model.producer_name == "paceline"
    unpacked = {value for node in model.graph.node if node.op_type == "DequantizeLinear" for value in node.output}
    assert all(node.input[1] in unpacked for node in model.graph.node if node.op_type == "Conv")
    weights = [one for one in model.graph.initializer if one.data_type == TensorProto.INT8]
    assert weights and max(np.abs(onnx.numpy_helper.to_array(one)).max() for one in weights) <= 64  # seven bits
    (last,) = (node for node in model.graph.node if node.op_type in ("Gemm", "MatMul"))
    assert last.input[1] in {one.name for one in model.graph.initializer}, "the last layer is in eight bits"
    facts = json.loads(InferenceSession(out).get_modelmeta().custom_metadata_map["paceline"])
    assert facts["graph"]["precision"] == "int8" and facts["classes"] == ["ant", "bee", "cat"]
    assert export(capsys, resnet_run.folder, floats, "--verify-images", 0).code == 0
    found = re.search(r"top1 \w+ 9 validation images[^:]*: ([\d.]+) in fp32, ([\d.]+) in int8: ([\d.]+)", said.out)
    assert found is not None, said
    shares, values = [], []
    for file in (floats, out):
        answered = [(photo, reader_of(file)(photo)) for photo in sorted(resnet_run.data.glob("val/*/*.jpg"))]
        shares.append(100 * np.mean([photo.parent.name == answer[0]["name"] for photo, answer in answered]))
        values.append([one["score"] for _, answer in answered for one in sorted(answer, key=lambda one: one["name"])])
    assert [float(one) for one in found.groups()] == pytest.approx([*shares, abs(shares[0] - shares[1])], abs=0.01)
    assert 1e-5 < np.abs(np.subtract(*values)).max() < 0.1


def test_bad_input_is_refused_before_the_graph_is_traced(resnet_run, tmp_path, capsys, monkeypatch):
    out = tmp_path / "cats.onnx"
    monkeypatch.setattr(onnx_export, "export_program", lambda made: pytest.fail("it was traced"))
    refused(
        export(capsys, resnet_run.folder, out, "--precision", "int8", "--calibration-images", 0), "--calibration-images 0"
    )
    refused(export(capsys, resnet_run.folder, tmp_path / "cats.xml", "--precision", "int8"), "int8", "--format onnx")
    moved = tmp_path / "run"
    shutil.copytree(resnet_run.folder, moved, symlinks=True)
    forge(moved, {"data.manifest": str(tmp_path / "gone"), "options.data": str(tmp_path / "gone")})
    refused(export(capsys, moved, out, "--precision", "int8"), "--verify-dir DIR --verify-images 0")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(export(capsys, moved, out, "--precision", "int8", "--verify-dir", empty, "--verify-images", 0), "empty")
    assert not out.exists()


@pytest.mark.nightly("exports a network of boxes, and one of masks, each of which takes half a minute")
@pytest.mark.parametrize("workload", ["ssd", "maskrcnn"])
def test_a_detector_in_eight_bits_is_scored_as_its_run_was(workload, request, tmp_path, capsys):
    run = request.getfixturevalue(f"{workload}_run")
    said = export(capsys, run.folder, tmp_path / "objects.onnx", "--precision", "int8")
    found = re.search(r"box AP \w+ 6 validation images[^:]*: ([\d.]+) in fp32, ([\d.]+) in int8", said.out)
    assert said.code == 0 and found is not None, said
    own = get_metrics(paceline.load(run.folder).evaluation())
    assert float(found[1]) == pytest.approx(100 * own["box_ap"], abs=0.1), own

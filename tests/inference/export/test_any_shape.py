"""A file of Mask R-CNN takes each image in the shape that `predict` makes of it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn
from torch.export import Dim

import paceline
from paceline._utils.errors import CheckpointError
from paceline.cli.commands.export import ExportFlags
from paceline.config.model_card import make_card
from paceline.config.recipes import RECIPES
from paceline.inference.export.graph import Graph, _any_shape
from paceline.inference.export.verification import load_sample_images
from paceline.inference.graph.graph_model import GraphInput, run_on_images
from paceline.inference.graph.onnx_reader import to_input
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.ops.nms import top_k
from paceline.models.registry import WORKLOADS

pytestmark = [
    pytest.mark.xdist_group("onnx"),  # whose import takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
SIZES = ((300, 400), (400, 300), (333, 500), (720, 1280), (500, 500), (90, 1200), (1200, 90), (60, 80))


def encoded(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 99, 199)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("padding", ["buckets", "multiple"])
@pytest.mark.parametrize("name", ["maskrcnn-demo", "maskrcnn-finetune-cpu", "maskrcnn-gluoncv", "fasterrcnn"])
def test_the_program_pads_as_predict_does(name, padding, maskrcnn_run):
    recipe = RECIPES[name]()
    recipe = replace(recipe, input=replace(recipe.input, padding_mode=padding))
    opened = replace(paceline.load(maskrcnn_run.folder).trained, recipe=recipe)
    graph = Graph(opened, ExportFlags(verify_images=0))
    facts = {
        "height": None,
        "width": None,
        "shapes": graph.shapes,
        "task": "instance-segmentation",
        "input": asdict(recipe.input),
    }
    for height, width in SIZES:
        pixels, _, photo = to_input(encoded(height, width), facts)
        assert photo == (height, width)
        assert pixels.shape[:2] == WORKLOADS["instance-segmentation"].network.eval_shape(recipe, height, width), (
            height,
            width,
        )


def test_what_is_compared_is_what_predict_reads_and_what_the_file_takes(maskrcnn_run):
    trained = paceline.load(maskrcnn_run.folder).trained
    own = load_sample_images(trained, ExportFlags(verify_images=6))
    assert {one.pixels.shape for one in own} == {(64, 96, 3), (96, 64, 3)}
    of_file = load_sample_images(trained, ExportFlags(verify_images=6, image_size="96x128"), (96, 128))
    assert {one.pixels.shape for one in of_file} == {(96, 128, 3)}
    assert [one.size for one in of_file] == [one.size for one in own]
    small = load_sample_images(
        trained, ExportFlags(verify_images=6, image_size="64x96"), (64, 96)
    )  # portraits become smaller, as the program makes them
    assert {one.size for one in small} < {(64, 85), (63, 84), (64, 48), (64, 47)} | {one.size for one in own}


def test_images_of_one_shape_share_a_call_and_answers_keep_their_order():
    sizes = [(32, 64), (64, 32), (32, 64), (32, 64), (64, 32)]
    photos = [GraphInput(np.full((*size, 3), number, np.uint8), size) for number, size in enumerate(sizes)]
    seen = []

    def run(arguments):
        seen.append(arguments[0].shape[:3])
        return [arguments[0][:, 0, 0, 0]]

    assert [int(one[0]) for one in run_on_images(run, photos, 2, "uint8", sized=True)] == [0, 1, 2, 3, 4]
    assert seen == [(2, 32, 64), (2, 32, 64), (2, 64, 32)]


class Anchored(nn.Module):
    """Anchors of an input of any shape, and the best of them by a score that follows from their places."""

    def __init__(self, rounding: str) -> None:
        super().__init__()
        model = RECIPES["maskrcnn-demo"]().model
        self.settings = replace(model, parity=replace(model.parity, anchor_rounding=rounding))
        self._anchors = {}

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        levels = [images[..., ::stride, ::stride] for stride in (4, 8, 16, 32, 64)]
        anchors = torch.cat(MaskRCNNWithLoss._anchors_of(self, images, levels))
        scores, places = top_k((torch.arange(anchors.shape[0]) * 7919 % 100_003).float().unsqueeze(0), 500)
        return anchors, anchors[places[0]] * (scores[0] > -torch.inf).unsqueeze(1)


@pytest.mark.parametrize("rounding", ["half-even", "legacy", "legacy-edges", "none"])
def test_anchors_and_the_best_of_them_are_traced_for_any_shape(rounding):
    side = {2: 32 * Dim("rows", max=9), 3: 32 * Dim("columns", max=9)}
    with torch.no_grad(), _any_shape():
        program = torch.export.export(Anchored(rounding), (torch.zeros(1, 1, 96, 160),), dynamic_shapes={"images": side})
    for height, width in ((64, 96), (96, 64), (256, 192), (288, 64)):
        images = torch.zeros(1, 1, height, width)
        anchors, best = program.module()(images)
        wanted, wanted_best = Anchored(rounding)(images)
        assert torch.equal(anchors, wanted)
        assert torch.equal(best[: len(wanted_best)], wanted_best) and not best[len(wanted_best) :].any()


def test_padding_of_tensorflow_s_networks_is_traced_for_any_shape():
    timm = pytest.importorskip("timm", reason="timm is not installed (extra: timm)")
    net = nn.Sequential(*(timm.layers.Conv2dSame(3, 3, kernel, stride) for kernel, stride in ((3, 2), (5, 1), (5, 2))))
    side = {2: 32 * Dim("rows", max=9), 3: 32 * Dim("columns", max=9)}
    with torch.no_grad(), _any_shape():
        program = torch.export.export(net.eval(), (torch.zeros(1, 3, 96, 160),), dynamic_shapes=(side,))
    for height, width in ((32, 96), (96, 64), (256, 192)):
        images = torch.rand(1, 3, height, width)
        torch.testing.assert_close(program.module()(images), net(images))


def any_shape(recipe: Any, shapes: object) -> bytes:
    """An ONNX file that finds one box, the whole input."""
    photos = helper.make_tensor_value_info("photos", TensorProto.UINT8, [1, "rows", "columns", 3])
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [1, 2])
    constant = {"scores": np.array([[0.9]], np.float32), "labels": np.array([[0]], np.int64)}
    nodes = [
        helper.make_node("Shape", ["photos"], ["shape"], start=1, end=3),
        helper.make_node("Constant", [], ["turn"], value=numpy_helper.from_array(np.array([1, 0], np.int64))),
        helper.make_node("Gather", ["shape", "turn"], ["turned"]),
        helper.make_node("Concat", ["turned", "turned"], ["four"], axis=0),
        helper.make_node("Cast", ["four"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["form"], value=numpy_helper.from_array(np.array([1, 1, 4], np.int64))),
        helper.make_node("Reshape", ["floats", "form"], ["boxes"]),
        *(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
            for name, value in constant.items()
        ),
    ]
    outputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 1, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [1, 1]),
    ]
    graph = helper.make_graph(nodes, "any", [photos, sizes], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    facts = {"name": "any", "recipe": asdict(recipe), "system": {}, "classes": ["cat"], "data": {}}
    takes = {"layout": "NHWC uint8", "height": None, "width": None, "shapes": shapes, "batch": 1}
    helper.set_model_props(model, {"paceline": json.dumps({**json.loads(make_card(facts)), "graph": takes})})
    return model.SerializeToString()


def test_a_file_of_any_shape_is_opened_and_gets_the_shape_of_its_list(tmp_path):
    recipe = RECIPES["fasterrcnn-finetune-cpu"]()
    file = tmp_path / "any.onnx"
    file.write_bytes(any_shape(recipe, [[448, 608], [608, 448], [608, 608]]))
    opened = paceline.load(file)
    for (height, width), shape in (((300, 400), (448, 608)), ((400, 300), (608, 448)), ((300, 300), (448, 608))):
        found = opened.predict(np.zeros((height, width, 3), np.uint8))
        scale = 448 / min(height, width)
        np.testing.assert_allclose(found.boxes_xywh[0, :2] * scale, shape[::-1], rtol=0.01)  # the corner of the whole input


@pytest.mark.parametrize("shapes", [None, 7, [[448]], [[448, 608.0]], [[0, 608]], [[448, 10**6]], ["ab"]])
def test_shapes_that_no_file_of_ours_has_are_refused(shapes, tmp_path):
    file = tmp_path / "any.onnx"
    file.write_bytes(any_shape(RECIPES["fasterrcnn-finetune-cpu"](), shapes))
    with pytest.raises(CheckpointError, match="graph"):
        paceline.load(file)

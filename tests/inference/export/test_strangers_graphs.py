"""A graph's file that somebody else wrote: what it has in it is bounded, and whatever is wrong is said in one sentence."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import raises
from onnx import TensorProto, helper, numpy_helper

import paceline
from paceline._utils.atomic_write import IN_ZIP
from paceline._utils.errors import CheckpointError
from paceline.config.model_card import METADATA, make_card, read_card
from paceline.config.recipes import RECIPES
from paceline.models.registry import WORKLOADS


def packed(method: int) -> Callable[[Path], object]:
    """A card that is packed in a way that exporters do not use: a few bytes of it may become any number."""

    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr(IN_ZIP, b" " * 1000)

    return write


def text(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a card packed with bzip2": ("a.pt2", packed(zipfile.ZIP_BZIP2), "not a valid .pt2 file"),
    "a card packed with LZMA": ("a.pt2", packed(zipfile.ZIP_LZMA), "not a valid .pt2 file"),
    "elements without end": ("a.xml", text(b"<a>" * 5000), "nested deeper"),
    "an unknown encoding": ("a.xml", text(b'<?xml version="1.0" encoding="moon"?><net/>'), "not a valid OpenVINO XML file"),
    "entities": ("a.xml", text(b'<!DOCTYPE net [<!ENTITY a "b">]><net>&a;</net>'), "XML entities"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_card_is_read_in_bounds(case, tmp_path):
    name, write, wanted = FILES[case]
    write(tmp_path / name)
    with pytest.raises(CheckpointError, match=wanted):
        read_card(tmp_path / name)


def without_inputs(file: Path, outputs: list[Any]) -> None:
    """An ONNX file with a card, whose graph takes nothing and gives zeros."""
    recipe = RECIPES["classify-demo"]()
    height, width = WORKLOADS["classification"].network.eval_shape(recipe, 1, 1)
    zeros = numpy_helper.from_array(np.zeros((1, 2), np.float32))
    nodes = [helper.make_node("Constant", [], [one.name], value=zeros) for one in outputs]
    graph = helper.make_graph(nodes, "classification", [], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    facts = {"name": "a", "recipe": asdict(recipe), "system": {}, "classes": ["cat", "dog"], "data": {}}
    sizes = {"layout": "NHWC uint8", "height": height, "width": width, "batch": 1}
    helper.set_model_props(model, {METADATA: json.dumps({**json.loads(make_card(facts)), "graph": sizes})})
    file.write_bytes(model.SerializeToString())


def test_a_graph_that_takes_nothing_is_refused(tmp_path):
    file = tmp_path / "a.onnx"
    without_inputs(file, [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "ab"])
    with raises(CheckpointError, "metadata"):
        paceline.load(file)


def test_a_pt2_that_gives_classes_where_boxes_are_named_is_refused(tmp_path):
    recipe = RECIPES["ssd-demo"]()
    height, width = WORKLOADS["detection"].network.eval_shape(recipe, 1, 1)

    class Classes(torch.nn.Module):
        def forward(self, photos: torch.Tensor) -> tuple[torch.Tensor]:
            return (photos.float().mean((1, 2))[:, :2],)

    file, photo = tmp_path / "model.pt2", np.zeros((1, height, width, 3), np.uint8)
    torch.export.save(torch.export.export(Classes(), (torch.from_numpy(photo),)), file)
    facts = {"name": "a", "recipe": asdict(recipe), "system": {}, "classes": ["cat", "dog"], "data": {}}
    sizes = {"layout": "NHWC uint8", "height": height, "width": width, "batch": 1}
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(IN_ZIP, json.dumps({**json.loads(make_card(facts)), "graph": sizes}))
    with raises(CheckpointError, "classes", "outputs"):
        paceline.load(file, allow_code_execution=True).predict(photo[0])

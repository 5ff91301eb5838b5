"""A file of OpenVINO's answers as its run does, by OpenVINO alone; a file with other answers does not stay."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import check_line
from tiny_runs import command, refused
from torch import Tensor, nn

import paceline
from paceline.data.batch import Batch
from paceline.inference.export import openvino_export
from paceline.inference.graph.runtimes import EXACT, open_session

openvino = pytest.importorskip("openvino", reason="openvino is not installed (extra: openvino)")
pytestmark = [
    pytest.mark.xdist_group("onnx"),  # whose import takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


class Order(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.topk(values.shape[1], dim=1).indices


def test_equals_come_in_order_of_their_places(tmp_path):
    values = torch.randint(0, 4, (3, 900), generator=torch.Generator().manual_seed(0)).float()
    torch.onnx.export(Order(), (values,), tmp_path / "order.onnx", dynamo=True, verbose=False)
    openvino.save_model(openvino_export.convert_onnx(tmp_path / "order.onnx"), tmp_path / "order.xml")
    (places,) = open_session(tmp_path / "order.xml")([values.numpy()])
    assert np.array_equal(places, values.sort(dim=1, descending=True, stable=True).indices.numpy())


def test_a_classifier_answers_and_carries_its_card(resnet_run, tmp_path, capsys):
    out, numbers = tmp_path / "cats.xml", tmp_path / "cats.bin"
    said = command(capsys, "export", resnet_run.folder, "--output", out)
    assert said.code == 0 and check_line(said.out, "9 images", "probability"), said
    assert sorted(tmp_path.iterdir()) == [numbers, out]
    content = out.read_bytes() + numbers.read_bytes()
    for place in (str(Path(paceline.__file__).parent), "site-packages", str(tmp_path)):
        assert place.encode() not in content, f"it tells where it was made: {place}"
    read = openvino.Core().read_model(out)
    facts = json.loads(read.get_rt_info(["paceline"]).value)
    assert facts["classes"] == ["ant", "bee", "cat"] and facts["graph"]["layout"] == "NHWC uint8"
    photos = np.random.default_rng(0).integers(0, 255, (5, 32, 32, 3), dtype=np.uint8)
    found = openvino.Core().compile_model(read, "CPU", EXACT)([photos])["probabilities"]
    model = paceline.load(resnet_run.folder).trained.model
    with torch.inference_mode():
        images = torch.from_numpy(photos).permute(0, 3, 1, 2).contiguous()
        logits = model.predict(Batch(images, images, images))  # type: ignore[operator]
    np.testing.assert_allclose(found, logits.softmax(dim=1).numpy(), atol=1e-5)


@pytest.mark.nightly("exports three times; by day a file of ONNX with other answers does not stay")
def test_a_file_with_other_answers_does_not_stay_and_one_of_ours_is_replaced(resnet_run, tmp_path, capsys, monkeypatch):
    out, numbers = tmp_path / "cats.xml", tmp_path / "cats.bin"
    assert command(capsys, "export", resnet_run.folder, "--output", out).code == 0
    content = out.read_bytes() + numbers.read_bytes()
    shifted = lambda path: lambda arguments: [open_session(path)(arguments)[0] + 2e-4]  # noqa: E731
    monkeypatch.setattr("paceline.inference.export.verification.open_session", shifted)
    refused(command(capsys, "export", resnet_run.folder, "--output", out), "not written", "--verify-images 0")
    assert out.read_bytes() + numbers.read_bytes() == content and len(list(tmp_path.iterdir())) == 2
    again = command(capsys, "export", resnet_run.folder, "--output", out, "--verify-images", 0)
    assert again.code == 0 and out.read_bytes() != content, again  # one of ours is replaced


def test_bad_input_is_refused_before_the_graph_is_traced(resnet_run, tmp_path, capsys, monkeypatch):
    out = tmp_path / "cats.xml"
    monkeypatch.setattr(openvino_export, "export_program", lambda made: pytest.fail("it was traced"))
    (tmp_path / "cats.bin").write_bytes(b"mine")
    refused(command(capsys, "export", resnet_run.folder, "--output", out), "cats.bin", "paceline file")
    out.write_text('<?xml version="1.0"?>\n<net name="theirs" version="11">')
    refused(command(capsys, "export", resnet_run.folder, "--output", out), "cats.xml", "exists")
    refused(command(capsys, "export", resnet_run.folder, "--format", "openvino", "--output", tmp_path / "cats.bin"), ".xml")
    refused(command(capsys, "export", resnet_run.folder, "--output", out / "more.xml"), "more.xml", "written")
    monkeypatch.setattr(
        "paceline.inference.export.formats.find_spec", lambda name: None if name == "openvino" else find_spec(name)
    )
    refused(command(capsys, "export", resnet_run.folder, "--output", tmp_path / "b.xml"), "pip install", "openvino")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "cats.bin", out]

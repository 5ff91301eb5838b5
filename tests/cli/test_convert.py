"""paceline convert: SSD weights to the MLPerf reference's form and back, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.boxes.anchors import boxes_a_cell
from paceline.cli.main import main
from paceline.config.detection import SSDModel, grids
from paceline.models.ssd import SSD, initialise_ssd
from paceline.models.trunk import Form, make_trunk


@pytest.fixture
def ours(tmp_path):
    cells = grids(96)
    trunk = make_trunk(SSDModel(depth=10, width=4), Form(stride=8))
    model = SSD(trunk, 3, cells=cells, boxes_a_cell=boxes_a_cell(len(cells)), extras=8)
    initialise_ssd(model, torch.Generator().manual_seed(0))
    file = tmp_path / "ours.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    return file


def test_there_and_back_is_the_same_file_content(ours, tmp_path, capsys):
    theirs, back = tmp_path / "made" / "theirs.pth", tmp_path / "back.safetensors"
    assert main(["convert", str(ours), "--to", "reference", "--out", str(theirs)]) == 0
    assert "conf.0.weight" in torch.load(theirs, weights_only=True)["model"]
    assert main(["convert", str(theirs), "--to", "ours", "--out", str(back)]) == 0
    first, last = load_file(ours), load_file(back)
    assert first.keys() == last.keys() and all(torch.equal(first[name], last[name]) for name in first)
    assert str(back) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "name a weight file"),
        (["{ours}", "--to", "ours"], "in this form already"),
        (["{ours}", "--to", "reference", "--out", "x.bin"], "must end in"),
        (["{resnet}", "--to", "reference"], "train with --weights"),
        (["{nothing}"], "no such weight file"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_line(ours, tmp_path, monkeypatch, capsys, flags, says):
    monkeypatch.chdir(tmp_path)
    save_file({"conv1.weight": torch.zeros(4, 3, 7, 7)}, tmp_path / "resnet.safetensors")
    places = {"ours": ours, "resnet": tmp_path / "resnet.safetensors", "nothing": tmp_path / "nothing.pth"}
    assert main(["convert", *(flag.format(**places) for flag in flags)]) == 2
    said = capsys.readouterr()
    assert says in said.err and "Traceback" not in said.err
    assert not list(tmp_path.glob("converted*"))

"""paceline weights: get, check and convert, as a user has them, and what each refuses in one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from messages import check_line, check_text
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from weight_bytes import params, tf_checkpoint

from paceline.cli import printing
from paceline.cli.main import main
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec, init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.ssd.model import SSD, init_ssd
from paceline.models.weights.download import PUBLISHED


def saved(model: torch.nn.Module, file: Path) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    return file


@pytest.fixture
def ours(tmp_path):
    settings = SSDModel(depth=10, width=4, extra_channels=8)
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), 3, settings, grid_sizes(96))
    init_ssd(model, torch.Generator().manual_seed(0))
    return saved(model, tmp_path / "ours.safetensors")


def resnet(depth: int, classes: int, width: int = 4, **more) -> ResNet:
    model = ResNet(depth, classes, width=width, **more)
    init_weights(model, "torchvision", torch.Generator().manual_seed(depth))
    return model


def mask_rcnn(width: int = 4, **more) -> MaskRCNN:
    model = MaskRCNN(
        MaskRCNNModel(width=width, fpn_channels=8, roi=RoI(fc_channels=16), mask=MaskHead(num_convs=2), **more), 3
    )
    init_mask_rcnn(model, torch.Generator().manual_seed(1))
    return model


def weights_verb(*words: object) -> int:
    return main(["weights", *map(str, words)])


def test_there_and_back_is_the_same_file_content(ours, tmp_path, capsys):
    theirs, back = tmp_path / "made" / "theirs.pth", tmp_path / "back.safetensors"
    assert weights_verb("convert", ours, "--format", "reference", "--output", theirs) == 0
    assert "conf.0.weight" in torch.load(theirs, weights_only=True)["model"]
    assert weights_verb("convert", theirs, "--format", "paceline", "--output", back) == 0
    first, last = load_file(ours), load_file(back)
    assert first.keys() == last.keys() and all(torch.equal(first[name], last[name]) for name in first)
    assert str(back) in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("stride", ["3x3", "1x1"])
@pytest.mark.parametrize("end", [".pkl", ".pth"])
def test_mask_rcnn_goes_to_detectron2_and_comes_back_but_for_rows_of_the_background(end, stride, tmp_path, capsys):
    model = mask_rcnn(stride_in=stride)
    source, theirs, back = tmp_path / "m.safetensors", tmp_path / f"d2{end}", tmp_path / "back.safetensors"
    needs = {"stride_in": stride} if stride == "1x1" else {}
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, source, {"paceline": json.dumps({"needs": needs})})
    assert weights_verb("convert", source, "--format", "detectron2", "--output", theirs) == 0
    said = capsys.readouterr().out
    assert "INPUT.FORMAT RGB" in said and "MODEL.RESNETS.DEPTH 50" in said and "RES2_OUT_CHANNELS" not in said
    assert "MODEL.ROI_HEADS.NUM_CLASSES 3, " in said
    assert all(f"MODEL.ROI_{head}_HEAD.POOLER_TYPE ROIAlign" in said for head in ("BOX", "MASK"))
    content = pickle.loads(theirs.read_bytes()) if end == ".pkl" else torch.load(theirs, weights_only=True)
    assert content["__author__"] == "torchvision"
    found = {name: np.asarray(array) for name, array in content["model"].items()}
    shapes = {
        "backbone.bottom_up.stem.conv1.norm.running_var": (4,),
        "backbone.bottom_up.res2.0.shortcut.weight": (16, 4, 1, 1),
        "backbone.bottom_up.res5.2.conv3.norm.bias": (128,),
        "backbone.fpn_lateral2.weight": (8, 16, 1, 1),
        "backbone.fpn_output5.bias": (8,),
        "proposal_generator.rpn_head.anchor_deltas.weight": (12, 8, 1, 1),
        "roi_heads.box_head.fc2.weight": (16, 16),
        "roi_heads.box_predictor.bbox_pred.weight": (12, 16),
        "roi_heads.mask_head.mask_fcn2.weight": (8, 8, 3, 3),
        "roi_heads.mask_head.predictor.weight": (3, 8, 1, 1),
    }
    assert {name: found[name].shape for name in shapes} == shapes
    state = model.state_dict()
    scores = state["roi_heads.box_predictor.cls_score.weight"].numpy()
    np.testing.assert_array_equal(found["roi_heads.box_predictor.cls_score.weight"], [*scores[1:], scores[0]])
    assert weights_verb("convert", theirs, "--format", "paceline", "--output", back) == 0
    with safe_open(back, "pt") as file:
        assert json.loads(file.metadata()["paceline"]).get("needs", {}) == needs
    last = load_file(back)
    assert last.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    for name, tensor in last.items():
        rows = 4 if "box_predictor.bbox" in name else 1 if "mask_fcn_logits" in name else 0
        assert torch.equal(tensor[rows:] if rows else tensor, state[name][rows:] if rows else state[name]), name


def test_a_resnet_goes_to_torchvision_timm_and_detectron2(tmp_path, capsys):
    source = saved(resnet(18, 5, width=64, input_channels=4), tmp_path / "r.safetensors")
    theirs = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 2, 2, 2], num_classes=5)
    for form, end in (("torchvision", "pth"), ("timm", "safetensors")):
        out = tmp_path / f"{form}.{end}"
        assert weights_verb("convert", source, "--format", form, "--output", out) == 0
        theirs.load_state_dict(torch.load(out, weights_only=True) if end == "pth" else load_file(out))
    assert weights_verb("convert", source, "--format", "detectron2", "--output", tmp_path / "r.pkl") == 0
    assert "MODEL.RESNETS.DEPTH 18, MODEL.RESNETS.RES2_OUT_CHANNELS 64" in capsys.readouterr().out
    content = pickle.loads((tmp_path / "r.pkl").read_bytes())
    assert content["matching_heuristics"] is True and "stem.fc.weight" in content["model"]


def test_the_trunk_of_a_mask_rcnn_goes_to_timm_and_says_what_it_leaves(tmp_path, capsys):
    source = saved(mask_rcnn(64, depth=18), tmp_path / "m.safetensors")
    assert weights_verb("convert", source, "--format", "timm", "--output", tmp_path / "t.safetensors") == 0
    assert "trunk" in capsys.readouterr().out
    assert {name.split(".")[0] for name in load_file(tmp_path / "t.safetensors")} == {
        "conv1", "bn1", "layer1", "layer2", "layer3", "layer4"
    }  # fmt: skip


def test_class_names_stay_with_our_own_files(ours, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("person\ntraffic light\ndog\n")
    out = tmp_path / "named.safetensors"
    assert (
        weights_verb("convert", ours, "--format", "paceline", "--output", out, "--class-names-file", tmp_path / "names.txt")
        == 0
    )
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["paceline"])["classes"] == ["person", "traffic light", "dog"]
    capsys.readouterr()
    assert weights_verb("inspect", out) == 1  # no recipe of the full size has this small network
    assert "classes   3: person, traffic light, dog" in capsys.readouterr().out


REFUSED = {
    "no file": ([], "a weight file is required"),
    "the form that it has": (["{theirs}", "--format", "reference", "--output", "x.pth"], "already has this format"),
    "an odd ending": (["{ours}", "--format", "reference", "--output", "x.bin"], "must end in"),
    "no such form": (["{ours}", "--format", "caffe", "--output", "x.bin"], "--format caffe: not found"),
    "no place": (["{ours}", "--format", "reference"], "--output is required"),
    "a ResNet as an SSD": (["{resnet}", "--format", "reference", "--output", "x.pth"], "needs separate"),
    "an SSD to torchvision": (["{ours}", "--format", "torchvision", "--output", "x.pth"], "torchvision does not support"),
    "an SSD to timm": (["{ours}", "--format", "timm", "--output", "x.safetensors"], "Only classifiers and backbones"),
    "a depth of our own": (["{resnet}", "--format", "torchvision", "--output", "x.pth"], "no ResNet of depth 10. It has 18, 34,"),
    "another width": (["{narrow}", "--format", "timm", "--output", "x.pth"], "7x7 stem, but this one has width 4"),
    "a small stem": (["{small}", "--format", "timm", "--output", "x.pth"], "and a small stem"),
    "an SSD to detectron2": (["{ours}", "--format", "detectron2", "--output", "x.pkl"], "detectron2 does not support a network with"),
    "nothing": (["{nothing}", "--format", "paceline", "--output", "x.pth"], "weight file not found"),
    "onto what is there": (["{ours}", "--format", "paceline", "--output", "{theirs}"], "already exists"),
    "onto itself": (["{ours}", "--format", "paceline", "--output", "{ours}"], "must differ from the input file"),
    "a folder that cannot be": (["{ours}", "--format", "paceline", "--output", "{ours}/x.pth"], "File exists"),
    "too few names": (["{ours}", "--format", "paceline", "--output", "x.safetensors", "--class-names-file", "{names}"],
        "1 names, but"),
    "a deep stem": (["{deep}", "--format", "paceline", "--output", "x.pth"], "three convolutions in its stem"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_refused_in_one_line(case, ours, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags, says = REFUSED[case]
    weights_verb("convert", ours, "--format", "reference", "--output", tmp_path / "theirs.pth")
    (tmp_path / "names").write_text("one\n")
    one = np.ones(1, "f4")
    (tmp_path / "deep.params").write_bytes(
        params({"conv1.0.weight": one, "conv1.1.gamma": one, "conv1.1.running_var": one})
    )
    places = {
        "narrow": saved(resnet(18, 5), tmp_path / "narrow.safetensors"),
        "small": saved(resnet(18, 5, stem="small"), tmp_path / "small.safetensors"),
        "ours": ours, "resnet": saved(resnet(10, 5), tmp_path / "resnet.safetensors"), "nothing": tmp_path / "nothing.pth",
        "theirs": tmp_path / "theirs.pth", "names": tmp_path / "names", "deep": tmp_path / "deep.params",
    }  # fmt: skip
    before = set(tmp_path.iterdir())
    capsys.readouterr()
    assert (
        weights_verb("convert", *(flag.format(**places) for flag in flags), *([] if flags else ["--format", "paceline"]))
        == 2
    )
    said = capsys.readouterr()
    assert says in said.err and "Traceback" not in said.err and said.err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_the_former_verb_names_the_new_one(capsys):
    assert main(["convert", "a.pth", "--format", "paceline"]) == 2
    assert "paceline weights convert" in capsys.readouterr().err


def test_inspect_tells_what_a_file_is_and_what_it_fits(tmp_path, capsys):
    model = resnet(50, 1000, stride_in="1x1")
    file = saved(model, tmp_path / "resnet50-00000000.safetensors")
    assert weights_verb("inspect", file, "--recipe", "resnet50") == 0
    said = capsys.readouterr().out
    rows = {line[:8].strip(): line[10:] for line in said.splitlines()}
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    assert rows["tensors"] == f"320 with {numbers:,} elements (267 float32, 53 int64)"
    assert "00000000" in rows["file"] and rows["finite"] == "yes"
    assert check_text(rows["classes"], "1,000", "published order: n01440764")
    assert rows["fits"].startswith("resnet50 --model.width 4") and "320 tensors used" in rows["fits"]


def test_inspect_says_row_by_row_what_is_missing_and_what_is_unknown(tmp_path, capsys):
    state = {name: tensor.contiguous() for name, tensor in resnet(18, 5).state_dict().items()}
    state["layer9.weight"] = state.pop("bn1.weight")
    save_file(state, tmp_path / "w.safetensors")
    assert weights_verb("inspect", tmp_path / "w.safetensors", "--recipe", "resnet50") == 1
    said = capsys.readouterr().out
    check_line(said, "1 missing", "bn1.weight", "1 unknown", "layer9.weight")
    good = saved(resnet(18, 5), tmp_path / "g.safetensors")
    assert weights_verb("inspect", good, "--recipe", "ssd", "--all-tensors") == 0
    said = capsys.readouterr().out
    check_line(said, "44", "extras.0.reduce.weight, extras.0.reduce.bias")


def test_inspect_takes_the_flags_of_the_recipe_that_it_names(tmp_path, capsys):
    file = saved(resnet(18, 5), tmp_path / "w.safetensors")
    assert (
        weights_verb("inspect", file, "--recipe", "resnet50", "--model.depth", 18, "--model.width", 4, "--all-tensors") == 0
    )
    assert "fits      resnet50 --model.depth 18 --model.width 4: " in capsys.readouterr().out
    assert weights_verb("inspect", "--recipe=resnet50", "--model.width", 8, file) == 1
    assert "not       resnet50 --model.width 8" in capsys.readouterr().out
    assert weights_verb("inspect", file, "--recipe", "resnet50", "--model.witdh", 4) == 2
    assert "--model.width" in capsys.readouterr().err
    assert weights_verb("inspect", "--recipe", "resnet50") == 2
    assert "weight file" in capsys.readouterr().err


def test_inspect_says_where_names_are_timms(tmp_path, capsys):
    save_file(
        {"stem.0.weight": torch.ones(4, 3, 4, 4), "stages.0.blocks.0.gamma": torch.ones(4)}, tmp_path / "w.safetensors"
    )
    assert weights_verb("inspect", tmp_path / "w.safetensors") == 1
    assert "--recipe resnet50 --model.backbone timm/NAME" in capsys.readouterr().out


def test_inspect_fails_where_numbers_are_not_finite(tmp_path, capsys):
    model = resnet(18, 5)
    with torch.no_grad():
        model.fc.weight[0, 0] = torch.inf
    assert weights_verb("inspect", saved(model, tmp_path / "w.safetensors")) == 1
    assert "finite    no: fc.weight" in capsys.readouterr().out
    assert (
        weights_verb("convert", tmp_path / "w.safetensors", "--format", "paceline", "--output", tmp_path / "x.safetensors")
        == 0
    )
    check_line(capsys.readouterr().out, "fc.weight", "finite")


def test_download_brings_what_its_name_promises(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("paceline.data.download.fetch.fetch", lambda *asking, **_: asked.append(asking))
    assert weights_verb("download") == 0
    assert "resnet34-mlperf" in capsys.readouterr().out
    assert weights_verb("download", "resnet50", "--output-dir", tmp_path / "kept") == 0
    urls, path, expected = asked.pop()
    assert urls == ["https://download.pytorch.org/models/resnet50-11ad3fa6.pth"]
    assert path == tmp_path / "kept" / "resnet50-11ad3fa6.pth" and expected.sha256_prefix == "11ad3fa6"
    assert f"--weights {path}" in capsys.readouterr().out
    (tmp_path / "other.pth").write_bytes(b"")
    for source, place in (
        ("https://mirror.example/models/", "https://mirror.example/models/resnet50-11ad3fa6.pth"),
        (str(tmp_path / "other.pth"), str(tmp_path / "other.pth")),
        (str(tmp_path), f"{tmp_path}/resnet50-11ad3fa6.pth"),
    ):
        assert weights_verb("download", "resnet50", "--output-dir", tmp_path / "kept", "--source", source) == 0
        assert asked.pop()[0] == [place]
    assert weights_verb("download", "resnet3") == 2
    check_text(capsys.readouterr().err, "resnet34")
    assert weights_verb("download", "xyz") == 2
    assert "Known: resnet18," in capsys.readouterr().err


def test_download_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(printing, "LINE_EVERY", -1.0)
    monkeypatch.setattr(
        "paceline.data.download.fetch.fetch", lambda urls, path, *_, reporter: reporter.progress(path.name, 2**20, 2**21)
    )
    assert weights_verb("download", "resnet50", "--output-dir", tmp_path) == 0
    assert "resnet50-11ad3fa6.pth: 1.0 MiB of 2.0 MiB" in capsys.readouterr().out


def test_published_names_carry_a_checksum_where_there_is_one():
    for name, published in PUBLISHED.items():
        for file in published.files:
            prefix = file.sha256_prefix
            assert prefix is None or (len(prefix) in (8, 64) and int(prefix, 16) >= 0), name
            assert file.url.startswith("https://") != bool(file.package), name
            assert prefix or file.md5 or file.sha1 or "no published" in published.about


def test_a_converted_file_is_for_whom_new_files_are(ours, tmp_path):
    (tmp_path / "new").touch()
    for end in (".safetensors", ".pth"):
        assert weights_verb("convert", ours, "--format", "paceline", "--output", tmp_path / f"out{end}") == 0
        assert (tmp_path / f"out{end}").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_several_tensorflow_checkpoints_in_a_folder_are_named(tmp_path, capsys):
    for name in ("a", "b"):
        tf_checkpoint(tmp_path / name, {"v": np.ones(1, "f4")})
    assert weights_verb("inspect", tmp_path) == 2
    check_text(capsys.readouterr().err, "2 TensorFlow", "a.index, b.index")


@pytest.mark.filterwarnings("ignore:.*torch.jit:")
def test_a_torchscript_program_is_refused_in_one_line_without_the_librarys_warning(tmp_path, capfd):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "s.pth")
    capfd.readouterr()
    assert weights_verb("inspect", tmp_path / "s.pth") == 2
    said = capfd.readouterr().err
    assert "a TorchScript program" in said and said.count("\n") == 1

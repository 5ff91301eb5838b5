"""A run's own checkpoint is for the network of its run.json: no other takes it, and nobody gets it who has no such network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from messages import check_text
from safetensors import safe_open
from safetensors.torch import save_file

from paceline._utils.errors import CheckpointError
from paceline._utils.safe_read import with_checksum
from paceline.cli.main import main
from paceline.config.run import FORMAT
from paceline.models.backbones.base import init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.weights.formats.paceline_format import NEEDS
from paceline.models.weights.load import load_weights

OTHER = [(field, value) for field, values in NEEDS.items() for value in values]


def resnet(**more) -> ResNet:
    model = ResNet(50, 5, width=4, **more)
    init_weights(model, "torchvision", torch.Generator().manual_seed(0))
    return model


def checkpoint(folder: Path, **model: object) -> Path:
    """model.safetensors of a run whose recipe's model has these fields."""
    best = folder / "run" / "checkpoints" / "best"
    best.mkdir(parents=True)
    facts = {
        "format": FORMAT,
        "name": "own",
        "world_size": 1,
        "recipe": {"model": model},
        "system": {},
        "plan": {},
        "options": {},
    }
    (folder / "run" / "run.json").write_text(json.dumps(with_checksum(facts)))
    built = {name: value for name, value in model.items() if name in NEEDS}
    save_file(
        {name: tensor.contiguous() for name, tensor in resnet(**built).state_dict().items()}, best / "model.safetensors"
    )
    return best / "model.safetensors"


@pytest.mark.parametrize(("field", "value"), OTHER, ids=[value for _, value in OTHER])
def test_a_runs_own_checkpoint_is_refused_by_another_network_and_not_given_away(field, value, tmp_path, capsys):
    file, flag = checkpoint(tmp_path, **{field: value}), f"--model.{field.replace('_', '-')} {value}"
    load_weights(resnet(**{field: value}), file)
    with pytest.raises(CheckpointError, match=flag):
        load_weights(resnet(), file)
    for form in ("torchvision", "timm"):
        assert main(["weights", "convert", str(file), "--format", form, "--output", str(tmp_path / "w.safetensors")]) == 2
        assert check_text(capsys.readouterr().err, "network") and not (tmp_path / "w.safetensors").exists()
    assert main(["weights", "convert", str(file), "--format", "paceline", "--output", str(tmp_path / "w.pth")]) == 2
    assert check_text(capsys.readouterr().err, flag) and not (tmp_path / "w.pth").exists()
    out = tmp_path / "kept.safetensors"
    assert main(["weights", "convert", str(file), "--format", "paceline", "--output", str(out)]) == 0
    assert flag in capsys.readouterr().out
    with safe_open(out, "pt") as kept:
        assert json.loads(kept.metadata()["paceline"])["needs"] == {field: value}


def test_a_usual_run_needs_nothing(tmp_path):
    load_weights(resnet(), checkpoint(tmp_path, stride_in="3x3", padding="symmetric"))


def test_a_file_right_below_the_root_is_no_runs(capsys):
    assert main(["weights", "inspect", "/no-such-weights.safetensors"]) == 2
    check_text(capsys.readouterr().err, "weight file")


def test_the_reference_gets_no_ssd_that_pads_at_the_end(tmp_path, capsys):
    file = checkpoint(tmp_path, padding="same")
    one = torch.ones(8)
    save_file({"trunk.conv1.weight": torch.ones(4), "heads.0.loc.bias": one, "heads.0.conf.bias": one.clone()}, file)
    assert main(["weights", "convert", str(file), "--format", "reference", "--output", str(tmp_path / "w.pth")]) == 2
    check_text(capsys.readouterr().err, "network", "TensorFlow")


@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_another_epsilon_is_said_where_it_is_not_the_networks(eps, tmp_path, capsys):
    file = checkpoint(tmp_path, bn_eps=eps)
    said = any("--model.bn-eps 0.001" in line for line in load_weights(resnet(), file).said)
    assert main(["weights", "convert", str(file), "--format", "paceline", "--output", str(tmp_path / "w.safetensors")]) == 0
    assert said == ("--model.bn-eps 0.001" in capsys.readouterr().out) == (eps == 1e-3)
    assert not load_weights(resnet(bn_eps=eps), file).said


def test_a_checkpoints_file_without_its_run_says_what_it_lacks(tmp_path):
    file = checkpoint(tmp_path)
    assert not any("run.json not found" in line for line in load_weights(resnet(), file).lines())
    alone = file.rename(tmp_path / "model.safetensors")
    (said,) = [line for line in load_weights(resnet(), alone).lines() if "run.json not found" in line]
    check_text(said, "class names", "--model.bn-eps, --model.stride-in, and --model.padding")

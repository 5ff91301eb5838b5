"""What people bring to `paceline weights inspect`: each is named for what it is, and told what fits or what to do."""

from __future__ import annotations

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tiny_runs import command, refused

from paceline.config.recipes import RECIPES
from paceline.models.registry import get_workload

NO_WEIGHTS = {
    "page.pth": (b"\n<!DOCTYPE html><html>404</html>", "a web page"),
    "page.safetensors": (b"<HTML><body>sign in", "a web page"),
    "pointer.pth": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    "graph.onnx": (b"\x08\x07\x12\x07pytorch", "an ONNX graph"),
    "graph.pth": (b"\x08\x07\x12\x07pytorch", "an ONNX graph"),
    "keras.h5": (b"\x89HDF\r\n\x1a\n" + bytes(80), "an HDF5 file"),
    "noise.pth": (bytes(range(200)), "damaged"),
}


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_what_is_no_weight_file_is_called_what_it_is(name, tmp_path, capsys):
    content, what = NO_WEIGHTS[name]
    (tmp_path / name).write_bytes(content)
    refused(command(capsys, "weights", "inspect", tmp_path / name), name, what)


def test_a_whole_network_of_torch_save_is_named_by_its_class_and_not_unpickled(tmp_path, capsys):
    torch.save(torchvision.models.resnet18(), tmp_path / "whole.pth")
    said = command(capsys, "weights", "inspect", tmp_path / "whole.pth")
    refused(said, "torchvision.models.resnet.ResNet", "state_dict ... .safetensors")


def test_lightnings_checkpoint_fits_as_the_network_in_it_does(tmp_path, capsys):
    state = torchvision.models.resnet18(num_classes=5).state_dict()
    torch.save({"epoch": 3, "state_dict": {f"model.{name}": tensor for name, tensor in state.items()}}, tmp_path / "l.ckpt")
    said = command(capsys, "weights", "inspect", tmp_path / "l.ckpt")
    assert said.code == 0 and "fits      resnet50 --model.depth 18: 122 tensors used" in said.out, said


@pytest.mark.parametrize("name", ["ssd-demo", "maskrcnn-demo"])
def test_weights_of_a_small_network_fit_its_recipe_and_no_other_network_is_told_of(name, tmp_path, capsys):
    recipe = RECIPES[name]()
    network = get_workload(recipe.task).network.build(recipe, 6)
    state = {entry: torch.zeros(tensor.shape, dtype=tensor.dtype) for entry, tensor in network.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    said = command(capsys, "weights", "inspect", tmp_path / "w.safetensors")
    assert said.code == 0 and f"fits      {name}" in said.out and "\nnot " not in said.out, said


def test_weights_that_fit_one_network_are_not_told_which_others_refuse_them(tmp_path, capsys):
    recipe = RECIPES["maskrcnn"]()
    network = get_workload(recipe.task).network.build(recipe, 80)
    save_file(
        {name: torch.zeros(tensor.shape) for name, tensor in network.state_dict().items()}, tmp_path / "m.safetensors"
    )
    said = command(capsys, "weights", "inspect", tmp_path / "m.safetensors")
    assert said.code == 0 and "fits      maskrcnn" in said.out and "\nnot " not in said.out, said


def test_timms_other_networks_are_answered_with_the_trunk_that_the_files_name_says(tmp_path, capsys):
    timm = pytest.importorskip("timm")
    save_file(
        timm.create_model("convnext_atto", num_classes=4).state_dict(), tmp_path / "convnext_atto.d2_in1k.safetensors"
    )
    said = command(capsys, "weights", "inspect", tmp_path / "convnext_atto.d2_in1k.safetensors")
    printed = said.out.splitlines()[-1]
    assert said.code == 1 and printed.endswith("--recipe resnet50 --model.backbone timm/convnext_atto"), said
    again = command(capsys, *printed.partition("paceline ")[2].split())
    assert again.code == 0 and "\nfits " in again.out, again

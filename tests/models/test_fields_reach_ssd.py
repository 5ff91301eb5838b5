"""Every field of an SSD recipe reaches its law, through the workload's own doors: one is changed, and what it decides changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from field_effects import Row, Said, both, fields_of, hashed, photo, pictures_drawn, task_on, wanted_by, weights_of
from torch import Tensor

from paceline.config.recipe import Recipe, override
from paceline.config.ssd import BoxInput, DetectionFilter, SSDModel, grid_sizes
from paceline.data.batch import DetectionBatch
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.ops.anchors import default_boxes
from paceline.models.ops.boxes import pairwise_iou, to_ltrb
from paceline.models.registry import get_workload
from paceline.models.ssd.loss import SSDWithLoss
from paceline.models.task import Task

SSD = get_workload("detection")
CLASSES = 2
PLACE = 4 * (3 * 8 + 3)  # a default box of the finest map, in its middle
SMALL = Recipe(
    task="detection",
    model=SSDModel(depth=10, width=8, extra_channels=8, detect=DetectionFilter(score_threshold=0.3)),
    input=BoxInput(image_size=64, skip_empty=False, color_jitter="matrix"),
    global_batch_size=4,
    epochs=1,
    bn_batch_size=4,
)
# Held where they are made: no other decoder can be installed, turned photos and class weights have modules of their own.
ELSEWHERE = {"model.backbone", "model.class_weights", "input.decoder", "input.exif"}


@pytest.fixture(scope="module", autouse=True)
def drawn(tmp_path_factory) -> Iterator[None]:
    with pictures_drawn(tmp_path_factory):
        yield


def task_of(recipe: Recipe) -> Task:
    return task_on(SSD, recipe)


def built(recipe: Recipe) -> SSDWithLoss:
    SSD.network.check(recipe)
    model = SSD.network.build(recipe, CLASSES)
    SSD.network.initialize(recipe, model, torch.Generator().manual_seed(3))
    assert isinstance(model, SSDWithLoss)
    return model


def network(recipe: Recipe) -> str:
    """First weights, a forward in training, and what it leaves in the buffers."""
    model = built(recipe)
    side = recipe.input.image_size
    pixels = torch.randint(0, 256, (2, 3, side, side), generator=torch.Generator().manual_seed(5)).to(torch.uint8)
    first = hashed(*weights_of(model))
    return hashed(first, *model.network(model.normalize(pixels)), *weights_of(model))


def speaking(recipe: Recipe, images: int) -> SSDWithLoss:
    """A detector whose network says random things."""
    model = built(recipe)
    random = torch.Generator().manual_seed(7)
    said = (torch.randn(images, len(model.anchors), width, generator=random) for width in (CLASSES + 1, 4))
    model.network = Said(*said)  # type: ignore[assignment]
    return model


def losses(recipe: Recipe, boxes: Tensor, labels: Tensor) -> str:
    """(B, G, 4) and (B, G) -> of what `forward` returns."""
    images = torch.zeros(len(boxes), 3, recipe.input.image_size, recipe.input.image_size, dtype=torch.uint8)
    batch = DetectionBatch(images=images, labels=labels, indices=torch.arange(len(boxes)), boxes=boxes)
    found = speaking(recipe, len(boxes))(batch)
    return hashed(*(part for name in sorted(found) for part in (name, found[name])))


def anchor(recipe: Recipe, place: int) -> Tensor:
    x, y, width, height = built(recipe).anchors[place].unbind()
    return torch.stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2))


def of_one_in_the_middle(recipe: Recipe) -> str:
    """A small object where four cells meet: four default boxes are equally good, none reaches the threshold."""
    return losses(recipe, torch.tensor([[[0.49, 0.49, 0.51, 0.51]]]), torch.ones(1, 1, dtype=torch.int64))


def of_two_alike(recipe: Recipe) -> str:
    """Two objects of one box, which is a default box; others overlap it by more than 0.3."""
    boxes = anchor(recipe, PLACE).expand(1, 2, -1).contiguous()
    return losses(recipe, boxes, torch.tensor([[1, 2]]))


def of_one_at_the_threshold(recipe: Recipe) -> str:
    """A default box as an object, with which others have an IoU of exactly the threshold."""
    boxes = anchor(recipe, PLACE)
    return losses(recipe, boxes.expand(1, 1, -1).contiguous(), torch.ones(1, 1, dtype=torch.int64))


def next_best() -> float:
    """The largest IoU of that default box with another one."""
    corners = to_ltrb(default_boxes(SMALL.input.image_size, grid_sizes(SMALL.input.image_size), SMALL.model.scales[:5]))
    return float(pairwise_iou(corners[None, PLACE : PLACE + 1], corners)[0, 0].sort().values[-2])


def of_small_ones(recipe: Recipe) -> str:
    """Objects inside several default boxes of one size: the last bits of their areas decide."""
    low = torch.rand(64, 1, 2, generator=torch.Generator().manual_seed(2)) * 0.9
    return losses(recipe, torch.cat((low, low + 0.02), dim=2), torch.ones(64, 1, dtype=torch.int64))


def detections(recipe: Recipe) -> Tensor:
    return speaking(recipe, 1).predict(DetectionBatch(*(torch.zeros(1, 3, 8, 8), *[torch.zeros(1)] * 3)))  # type: ignore[arg-type]


def found(recipe: Recipe) -> str:
    return hashed(detections(recipe))


def written(recipe: Recipe) -> str:
    """What an evaluation makes of one detection."""
    score = task_of(recipe).evaluator.new_score()
    zeros = torch.zeros(1, 1, dtype=torch.int64)
    batch = DetectionBatch(images=zeros, labels=zeros, indices=torch.zeros(1, dtype=torch.int64), boxes=zeros)
    score.add(batch, torch.tensor([[[0.1, 0.2, 0.5, 0.6, 0.9, 1.0]]]))
    return hashed(score.pack())


def samples(recipe: Recipe) -> str:
    """Pixels and objects of all photos in two epochs."""
    task = task_of(recipe)
    drawn = [task.data.sample(epoch, number) for epoch in range(2) for number in range(task.data.train_images)]
    return hashed(*(part for pixels, label in drawn for part in (pixels, label.boxes, label.classes)))


def learned(recipe: Recipe) -> str:
    return wanted_by(task_of(recipe))


def evaluated(recipe: Recipe) -> str:
    """The pixels of a photo that is looked at whole."""
    shape = SSD.network.eval_shape(recipe, 60, 80)
    pixels = np.zeros((*shape, 3), np.uint8)
    data = photo()
    decode_and_transform(data, SSD.data().draw_eval(recipe, read_header(data, "photo"), "photo", shape), pixels)
    return hashed(pixels)


BOTTLENECKS = {"model.depth": 50}
ONE = {"model.match_iou": 0.3}
# A small object lies inside several default boxes of one size, whose middles are no binary fractions.
LARGE = {"input.image_size": 100, "model.scales": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}
TABLE = [
    Row("model.depth", 18, network),
    Row("model.width", 16, network),
    Row("model.groups", 2, network, BOTTLENECKS),
    Row("model.width_per_group", 128, network, BOTTLENECKS),
    Row("model.stride_in", "1x1", network, BOTTLENECKS),
    Row("model.padding", "same", network),
    Row("model.bn_eps", 1e-3, network),
    Row("model.bn_momentum", 0.01, network),
    Row("model.extra_channels", 16, network),
    Row("model.extra_norm", True, network),
    Row("model.fpn_channels", 8, network),
    Row("model.norm", "frozen", network),
    Row("model.heads", "fused", network),
    Row("model.head_channel_multiple", 64, network, {"model.heads": "fused"}),
    Row("model.parity.freeze_first_conv", True, network),
    Row("model.freeze_stages", 2, network),
    Row("model.zero_init_residual", True, network),
    Row("model.parity.new_bias", "zero", network),
    Row("model.scales", (0.07, 0.16, 0.33, 0.51, 0.69, 0.87, 1.05), of_small_ones),
    Row("model.match_iou", 0.3, of_two_alike),
    Row("model.match_rule", "ge", of_one_at_the_threshold, {"model.match_iou": next_best()}),
    Row("model.parity.tie", "first", of_two_alike),
    Row("model.parity.box_order", "cell-last", of_two_alike, ONE),
    Row("model.parity.box_order", "anchor-last", of_two_alike, ONE),
    Row("model.parity.box_order", "cell-last", of_one_in_the_middle),
    Row("model.parity.box_order", "anchor", of_small_ones, LARGE),
    Row("model.parity.box_corners", "float64", of_small_ones, LARGE),
    Row("model.negative_ratio", 1.0, of_two_alike),
    Row("model.loss_normalizer", "batch", of_two_alike),
    Row("model.loss", "focal", of_two_alike),
    Row("model.focal_gamma", 1.0, of_two_alike, {"model.loss": "focal"}),
    Row("model.detect.score_threshold", 0.5, found),
    Row("model.detect.nms_iou", 0.3, found),
    Row("model.detect.topk_candidates", 5, found),
    Row("model.detect.topk_per", "image", found, {"model.detect.topk_candidates": 8}),
    Row("model.detect.max_detections", 10, found),
    Row("model.parity.clip_boxes", True, found),
    Row("model.parity.plus_one", True, written),
    Row("input.image_size", 96, samples),
    Row("input.image_size", 96, evaluated),
    Row("input.iou_crop", "none", samples),
    Row("input.crop_trials", 50, samples),
    Row("input.crop_scale", (0.9, 1.0), samples),
    Row("input.crop_ratio", (0.9, 1.1), samples),
    Row("input.parity.free_crop", "touching", samples),
    Row("input.zoom_out_max", 4.0, samples),
    Row("input.mosaic_prob", 1.0, samples),
    Row("input.hflip", 1.0, samples),
    Row("input.vflip", 1.0, samples),
    Row("input.rot90", 1.0, samples),
    *(Row("input.color_jitter", kind, samples) for kind in ("hsv", "dali", "tensorflow", "none")),
    Row("input.color_jitter", "tensorflow", samples, {"input.color_jitter": "dali"}),
    # Of one order of the same changes, so that the arithmetic alone differs.
    *(
        Row("input.color_jitter", kind, samples, {"input.color_jitter": "hsv", "input.parity.brightness_mode": "add"})
        for kind in ("dali", "tensorflow")
    ),
    Row("input.brightness", 0.5, samples),
    Row("input.parity.brightness_mode", "add", samples),
    Row("input.contrast", 0.1, samples),
    Row("input.saturation", 0.1, samples),
    Row("input.hue", 0.2, samples),
    *(Row("input.resize", law, shown) for law in ("bilinear", "tensorflow") for shown in (samples, evaluated)),
    *(Row("input.resize", "tensorflow", shown, {"input.resize": "bilinear"}) for shown in (samples, evaluated)),
    Row("input.mean", (0.5, 0.5, 0.5), network),
    Row("input.std", (0.5, 0.5, 0.5), network),
    Row("input.skip_empty", True, learned),
    Row("input.min_object_area", 500.0, learned),
    Row("input.min_box_area", 900.0, learned),
    Row("input.max_objects", 1, learned),
    Row("input.train_on_crowd", False, learned),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.field}-{row.value}-{row.shown.__name__}-{len(row.beside)}")
def test_what_a_field_decides_changes_with_it(row):
    before, after = both(row, SMALL)
    assert before != after


def test_no_field_of_the_model_or_the_input_is_left_out():
    every = {*fields_of(SMALL.model, "model"), *fields_of(SMALL.input, "input")}
    assert {row.field for row in TABLE} | {"model.detect.nms_rule"} | ELSEWHERE == every


def test_two_boxes_that_overlap_by_exactly_the_limit_stay_where_only_more_is_suppressed():
    """One default box lies on another and both say the same, so that their IoU is 1."""
    kept = {}
    for overlap in ("ge", "gt"):
        model = speaking(override(SMALL, {"model.detect.nms_iou": 1.0, "model.detect.nms_rule": overlap}), 1)
        model.anchors[1] = model.anchors[0]
        logits, deltas = torch.zeros_like(model.network.outputs[0]), torch.zeros_like(model.network.outputs[1])
        logits[..., 0], logits[:, :2, 1] = 9.0, 20.0
        model.network = Said(logits, deltas)  # type: ignore[assignment]
        batch = DetectionBatch(*(torch.zeros(1, 3, 8, 8), *[torch.zeros(1)] * 3))  # type: ignore[arg-type]
        kept[overlap] = int((model.predict(batch)[..., 5] > 0).sum())
    assert kept == {"ge": 1, "gt": 2}


def test_new_biases_of_zero_are_zero_and_others_are_not():
    layers = (*built(SMALL).network.extras.named_parameters(), *built(SMALL).network.heads.named_parameters())
    assert all(weight.abs().max() > 0 for name, weight in layers if name.endswith("bias"))
    model = built(override(SMALL, {"model.parity.new_bias": "zero"})).network
    layers = (*model.extras.named_parameters(), *model.heads.named_parameters())
    assert all(weight.abs().max() == 0 for name, weight in layers if name.endswith("bias"))

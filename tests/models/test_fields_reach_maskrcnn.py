"""Every field of a Mask R-CNN recipe reaches its law, through the workload's own doors: it is changed, and what it decides is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from field_effects import Row, both, fields_of, hashed, photo, pictures_drawn, task_on, wanted_by, weights_of
from torch import Tensor

from paceline.config.maskrcnn import RPN, InstanceFilter, InstanceInput, MaskHead, MaskRCNNModel, RoI
from paceline.config.recipe import Recipe, override
from paceline.data.batch import DetectedInstances, InstanceBatch, InstanceObjects
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.inference.trained_model import PreparedImage, make_results
from paceline.models.layers.batch_norm import update_running_statistics
from paceline.models.maskrcnn import module
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.registry import get_workload
from paceline.models.task import Task

MASKRCNN = get_workload("instance-segmentation")
CLASSES = 2
HEIGHT, WIDTH, CANVAS = 64, 96, 16
SMALL = Recipe(
    task="instance-segmentation",
    model=MaskRCNNModel(
        depth=10,
        width=8,
        norm="group",
        freeze_stages=0,
        fpn_channels=16,
        rpn=RPN(
            anchor_sizes=(12.0, 24.0, 36.0, 48.0, 64.0),
            samples_per_image=48,
            pre_nms_topk_train=300,
            pre_nms_topk_test=60,
            post_nms_topk_train=150,
            post_nms_topk_test=30,
        ),
        roi=RoI(fg_iou=0.15, samples_per_image=24, positive_fraction=0.5, fc_channels=16),
        mask=MaskHead(num_convs=1, pool_size=7, target_buffer_size=CANVAS),
        detect=InstanceFilter(max_detections=30),
    ),
    input=InstanceInput(min_size=(64,), max_size=96, min_crop_scale=0.8, color_jitter="matrix", skip_empty=False),
    global_batch_size=4,
    epochs=1,
    bn_batch_size=1,
)
# Held where they are made: no other decoder can be installed, turned photos have a module of their own, loss groups are the
# plan's, and candidates are an accelerator's; the first level, below, takes as many anchor sizes as there are levels.
ELSEWHERE = {
    "model.backbone",
    "model.min_fpn_level",
    "model.loss_normalizer_images",
    "model.detect.topk_candidates",
    "input.decoder",
    "input.exif",
}


@pytest.fixture(scope="module", autouse=True)
def drawn(tmp_path_factory) -> Iterator[None]:
    with pictures_drawn(tmp_path_factory):
        yield


def task_of(recipe: Recipe) -> Task:
    return task_on(MASKRCNN, recipe)


def built(recipe: Recipe) -> MaskRCNNWithLoss:
    MASKRCNN.network.check(recipe)
    model = MASKRCNN.network.build(recipe, CLASSES)
    MASKRCNN.network.initialize(recipe, model, torch.Generator().manual_seed(3))
    assert isinstance(model, MaskRCNNWithLoss)
    return model


def speaking(recipe: Recipe) -> MaskRCNNWithLoss:
    """Class scores and boxes differ from region to region."""
    model = built(recipe)
    heads = model.network.roi_heads.box_predictor
    rpn = model.network.rpn.head
    layers = ((rpn.cls_logits, 20.0), (rpn.bbox_pred, 20.0), (heads.cls_score, 20.0), (heads.bbox_pred, 200.0))  # type: ignore[union-attr]
    with torch.no_grad():
        for layer, factor in layers:
            layer.weight.mul_(factor)  # type: ignore[operator]
        rpn.bbox_pred.bias.fill_(0.3)  # type: ignore[union-attr]  # many proposals grow
    return model


def batch(objects: int = 6) -> InstanceBatch:
    """Two photos; the first object is a small one, and one lies at the border."""
    random = np.random.RandomState(4)
    entries = []
    for size in ((HEIGHT, WIDTH), (HEIGHT - 9, WIDTH - 6)):
        low = np.floor(random.uniform(0, 0.6, (objects, 2)) * size[::-1])
        side = np.ceil(random.uniform(0.15, 0.4, (objects, 2)) * size[::-1])
        side[:1], low[1:2] = 4, 0
        canvases = (random.rand(objects, CANVAS + 2, CANVAS + 2) < 0.5).astype(np.uint8)
        frames = np.concatenate((low, np.maximum(1, side / CANVAS)), axis=1).astype(np.float32)
        boxes = np.concatenate((low, low + side), axis=1).astype(np.float32)
        labels = random.randint(1, CLASSES + 1, objects)
        entries.append(InstanceObjects(boxes, labels, canvases, frames, size, 77 + size[0]))
    pixels = torch.from_numpy(random.randint(0, 256, (2, 3, HEIGHT // 8, WIDTH // 8)).astype(np.uint8))
    pixels = pixels.repeat_interleave(8, 2).repeat_interleave(8, 3)
    return MASKRCNN.data().batch(pixels, entries, torch.arange(2))  # type: ignore[return-value]


def weights(recipe: Recipe) -> str:
    return hashed(*weights_of(built(recipe)))


def trained(recipe: Recipe) -> str:
    """Losses, counts and what is left in the buffers."""
    model = speaking(recipe)
    found = model(batch())
    update_running_statistics(model)
    told = found.get("accuracies", {})
    return hashed(found["sums"], found["counts"], *told, *(part for _, part in model.named_buffers()))


def predicted(recipe: Recipe) -> str:
    found = speaking(recipe).eval().predict(batch())
    return hashed(found.detections, found.masks)


def outputs() -> DetectedInstances:
    """One mask in a box of half pixels, which is smaller than the mask."""
    masks = torch.nn.functional.interpolate(torch.rand(1, 1, 7, 7, generator=torch.Generator().manual_seed(0)), 28)
    return DetectedInstances(torch.tensor([[[0.103, 0.209, 0.308, 0.411, 0.9, 1.0]]]), masks)


def scored(recipe: Recipe) -> str:
    """What an evaluation makes of one detection."""
    score = task_of(recipe).evaluator.new_score()
    score.add(replace(batch(), indices=torch.zeros(1, dtype=torch.int64)), outputs())
    return hashed(score.pack())


def answered(recipe: Recipe) -> str:
    """What a user is told of it."""
    facts = SimpleNamespace(workload=MASKRCNN, recipe=recipe, classes=("a", "b"), category_ids=(3, 5))
    data = photo()
    seen = PreparedImage("photo.jpg", read_header(data, "photo"), 1, np.zeros((1, 1, 3), np.uint8), None)
    (found,) = make_results(outputs(), [seen], facts)
    return hashed(found.boxes_xywh, *found.masks)


def samples(recipe: Recipe) -> str:
    """Pixels and objects of all photos in two epochs, without their padding."""
    task = task_of(recipe)
    made = [task.data.sample(epoch, number) for epoch in range(2) for number in range(task.data.train_images)]
    return hashed(*(part for pixels, label in made for part in (pixels, label.boxes, label.canvases, label.size)))


def learned(recipe: Recipe) -> str:
    return wanted_by(task_of(recipe))


def shapes(recipe: Recipe) -> str:
    """Of training and of evaluation, as the task has them."""
    task = task_of(recipe)
    fits = [task.data.shapes.of_sample(number) for number in range(6)]
    return hashed(fits, task.data.shapes.largest_of_data(), task.data.shapes.evaluation(task.data.val_numbers, 1)[1])


def eval_shape(recipe: Recipe) -> list[tuple[int, int]]:
    return [MASKRCNN.network.eval_shape(recipe, 60, width) for width in (70, 80)]


def evaluated(recipe: Recipe) -> str:
    """The pixels of a photo that is looked at whole, without its padding."""
    shape = (256, 256)
    pixels = np.zeros((*shape, 3), np.uint8)
    data = photo()
    draw = MASKRCNN.data().draw_eval(recipe, read_header(data, "photo"), "photo", shape)
    decode_and_transform(data, draw, pixels)
    return hashed(pixels, draw.label.size)


BOTTLENECKS = {"model.depth": 50}
BATCH_NORM = {"model.norm": "batch"}
# Of so many regions one may be positive, and there are not enough negatives.
LACKING = {"model.roi.samples_per_image": 400, "model.roi.positive_fraction": 0.003}
# 129 pixels of the longer side leave 96.75 of the shorter one, and the next multiple of 32 after 96 is 128.
BETWEEN = {"input.min_size": (120,), "input.max_size": 129, "input.padding_mode": "multiple"}
TABLE = [
    Row("model.depth", 18, weights),
    Row("model.width", 16, weights),
    Row("model.groups", 2, weights, BOTTLENECKS),
    Row("model.width_per_group", 128, weights, BOTTLENECKS),
    Row("model.stride_in", "1x1", trained, BOTTLENECKS),
    Row("model.padding", "same", trained),
    Row("model.bn_eps", 1e-2, trained),
    Row("model.bn_momentum", 0.5, trained, BATCH_NORM),
    Row("model.norm", "batch", weights),
    Row("model.freeze_stages", 3, weights),
    Row("model.fpn_channels", 24, weights),
    Row("model.fpn_norm", "group", weights),
    Row("model.head_norm", "group", weights),
    Row("model.fpn_top", "conv", weights),
    Row("model.init", "gluoncv", weights),
    Row("model.log_rcnn_accuracies", True, trained),
    Row("model.masks", False, weights),
    Row("model.rpn.channels", 24, weights),
    Row("model.rpn.anchor_sizes", (16.0, 24.0, 36.0, 48.0, 64.0), trained),
    Row("model.rpn.aspect_ratios", (0.5, 1.0, 3.0), trained),
    *(Row("model.parity.anchor_rounding", law, trained) for law in ("legacy", "legacy-edges", "none")),
    Row("model.parity.anchor_rounding", "legacy-edges", trained, {"model.parity.anchor_rounding": "legacy"}),
    Row("model.rpn.fg_iou", 0.5, trained),
    Row("model.rpn.bg_iou", 0.1, trained),
    Row("model.rpn.allow_low_quality_matches", False, trained),
    Row("model.rpn.keep_border_anchors", False, trained),
    Row("model.rpn.samples_per_image", 40, trained),
    Row("model.rpn.positive_fraction", 0.1, trained),
    Row("model.rpn.smooth_l1_beta", 1.0, trained),
    Row("model.rpn.pre_nms_topk_train", 30, trained),
    Row("model.rpn.pre_nms_topk_test", 10, predicted),
    Row("model.rpn.post_nms_topk_train", 20, trained),
    Row("model.rpn.post_nms_topk_test", 10, predicted),
    Row("model.parity.post_nms_per", "batch", trained, {"model.rpn.post_nms_topk_train": 30}),
    Row("model.parity.post_nms_batch", 31, trained, {"model.parity.post_nms_per": "batch"}),
    Row("model.parity.nms_per", "image", trained, {"model.rpn.nms_iou": 0.2}),
    Row("model.rpn.nms_iou", 0.4, trained),
    Row("model.rpn.min_box_side", 20.0, trained),
    Row("model.rpn.max_log_scale", 0.01, trained),
    Row("model.roi.fg_iou", 0.22, trained),
    Row("model.roi.samples_per_image", 16, trained),
    Row("model.roi.positive_fraction", 0.1, trained),
    Row("model.parity.roi_fill", "any", trained, LACKING),
    Row("model.roi.pool_size", 5, weights),
    Row("model.parity.roi_pooling", "average", trained),
    Row("model.roi.pool_type", "pool", trained),
    Row("model.roi.pool_type", "pool", predicted),
    Row("model.roi.sampling_ratio", 1, trained),
    Row("model.roi.aligned", True, trained),
    Row("model.roi.num_convs", 1, weights),
    Row("model.roi.conv_channels", 24, weights, {"model.roi.num_convs": 1}),
    Row("model.roi.fc_channels", 24, weights),
    Row("model.roi.smooth_l1_beta", 1.0, trained),
    Row("model.roi.box_reg_weights", (5.0, 5.0, 5.0, 5.0), trained),
    Row("model.roi.box_reg_weights", (5.0, 5.0, 5.0, 5.0), predicted),
    Row("model.roi.max_log_scale", 0.01, predicted),
    Row("model.mask.num_convs", 2, weights),
    Row("model.mask.conv_channels", 24, weights),
    Row("model.mask.pool_size", 5, trained),
    Row("model.mask.target", "binary", trained),
    Row("model.mask.target_buffer_size", 8, samples),
    Row("model.mask.sampling_ratio", 2, trained),
    Row("model.detect.score_threshold", 0.5, predicted),
    Row("model.detect.nms_iou", 0.2, predicted),
    Row("model.detect.max_detections", 10, predicted),
    Row("model.detect.min_box_side", 20.0, predicted),
    Row("model.parity.clip_boxes", "after", predicted),
    *(Row("model.parity.mask_paste", "gluoncv", shown) for shown in (scored, answered)),
    *(Row("model.detect.mask_threshold", 0.7, shown) for shown in (scored, answered)),
    Row("input.min_size", (48,), samples),
    *(Row("input.max_size", 72, shown) for shown in (samples, evaluated)),
    *(Row("input.parity.side_rounding", "rounded", shown, BETWEEN) for shown in (samples, evaluated, shapes, eval_shape)),
    Row("input.padding_mode", "multiple", eval_shape, {"input.max_size": 400, "input.min_size": (160,)}),
    *(Row("input.size_divisor", 64, shown) for shown in (shapes, eval_shape)),
    Row("input.min_crop_scale", 0.5, samples),
    Row("input.scale_jitter", (0.5, 2.0), samples, {"input.min_crop_scale": 1.0}),
    Row("input.copy_paste_prob", 1.0, samples),
    Row("input.hflip", 1.0, samples),
    Row("input.vflip", 1.0, samples),
    *(Row("input.rot90", 1.0, shown) for shown in (samples, shapes)),
    *(Row("input.color_jitter", kind, samples) for kind in ("hsv", "dali", "tensorflow", "none")),
    Row("input.brightness", 0.5, samples),
    Row("input.parity.brightness_mode", "add", samples),
    Row("input.contrast", 0.1, samples),
    Row("input.saturation", 0.1, samples),
    Row("input.hue", 0.2, samples),
    *(Row("input.resize", "bilinear", shown, {"input.min_size": (40,)}) for shown in (samples, evaluated)),
    Row("input.mean", (0.5, 0.5, 0.5), trained),
    Row("input.std", (0.5, 0.5, 0.5), trained),
    Row("input.skip_empty", True, learned),
    Row("input.min_object_area", 500.0, learned),
    Row("input.min_box_area", 900.0, learned),
    Row("input.max_objects", 1, learned),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.field}-{row.value}-{row.shown.__name__}-{len(row.beside)}")
def test_what_a_field_decides_changes_with_it(row):
    before, after = both(row, SMALL)
    assert before != after


def test_no_field_of_the_model_or_the_input_is_left_out():
    every = {*fields_of(SMALL.model, "model"), *fields_of(SMALL.input, "input")}
    assert {row.field for row in TABLE} | ELSEWHERE == every


def test_a_pyramid_may_begin_at_stride_8():
    later = override(SMALL, {"model.min_fpn_level": 3, "model.rpn.anchor_sizes": (24.0, 36.0, 48.0, 64.0)})
    assert [min(built(recipe).network.backbone.strides) for recipe in (SMALL, later)] == [4, 8]


def test_anchors_that_end_at_the_photo_s_last_pixel_train_whichever_way_they_are_written():
    """Without objects every anchor inside is a negative: so many there are, by their last pixels and by their edges."""
    wanted = {"model.rpn.keep_border_anchors": False, "model.rpn.samples_per_image": 2000}
    by_pixels, by_edges, all_of_them = (
        built(override(SMALL, {**wanted, **more})).count(batch(0))[0, 0].item()
        for more in (
            {"model.parity.anchor_rounding": "legacy"},
            {"model.parity.anchor_rounding": "legacy-edges"},
            {"model.rpn.keep_border_anchors": True},
        )
    )
    assert 0 < by_pixels == by_edges < all_of_them


def test_binary_masks_are_not_soft_ones_cut_at_a_half(monkeypatch):
    """They lie half a pixel elsewhere."""
    found: dict[str, Tensor] = {}
    for target in ("soft", "binary"):
        model = speaking(override(SMALL, {"model.mask.target": target}))
        with monkeypatch.context() as patch:
            patch.setattr(module, "mask_loss", lambda _, targets, weight: found.update({target: targets}) or weight)  # noqa: B023
            model(batch())
    assert set(found["binary"].unique().tolist()) == {0.0, 1.0} and len(found["soft"].unique()) > 2
    assert not torch.equal((found["soft"] >= 0.5).float(), found["binary"])


def test_boxes_that_are_cut_after_their_masks_end_at_the_photo_s_border():
    for when in ("before", "after"):
        model = speaking(override(SMALL, {"model.parity.clip_boxes": when})).eval()
        model.network.roi_heads.box_predictor.bbox_pred.bias.data.fill_(8.0)  # five times as wide and as high
        edges = model.predict(batch()).detections[..., :4]
        assert edges.min() == 0 and edges.max() == 1

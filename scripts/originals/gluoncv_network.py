"""GluonCV's Mask R-CNN itself, small, on recorded feature maps: proposals, losses with their gradients, detections, first weights.

Letters: B images   L levels 2 to 6   C channels of the pyramid   K classes   A anchors   N sampled regions   P places of positives
The trunk is replaced by maps that are parameters, so their gradients are recorded too; everything behind them is GluonCV's:
MaskRCNN, its target generators, train_mask_rcnn.py's losses and ForwardBackwardTask.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from gluoncv.model_zoo import get_model
from gluoncv.model_zoo.rcnn.mask_rcnn import MaskRCNN
from gluoncv.model_zoo.rcnn.mask_rcnn.data_parallel import ForwardBackwardTask
from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator
from gluoncv_geometry import SCALES, STRIDES, drawn_boxes, whole_regions
from mxnet import autograd, gluon
from mxnet.gluon import nn

B, C, K, HEIGHT, WIDTH = 2, 4, 3, 256, 320
WIDE, MASK_CHANNELS, RPN_CHANNELS = 12, 4, 6
PROPOSALS, SAMPLES, OBJECTS = 40, 32, 3
# Of random weights, so that classes, boxes and masks differ from region to region; weights are (0, this deviation).
DEVIATIONS = {"rpnhead0_conv2": 0.05, "rpnhead0": 0.3, "net_dense1_weight": 0.6, "mask0": 0.8}


class Maps(gluon.HybridBlock):
    """A trunk with its pyramid: maps that do not depend on the photos, (B, C, H_l, W_l) of levels 2 to 6."""

    def __init__(self, random: np.random.RandomState, images: int) -> None:
        super().__init__(prefix="maps_")
        for level, stride in enumerate(STRIDES, start=2):
            shape = (images, C, -(-HEIGHT // stride), -(-WIDTH // stride))
            values = mx.nd.array(np.round(4 * random.normal(size=shape)) / 4)  # few different ones: the file is small
            setattr(self, f"level{level}", self.params.get(f"level{level}", shape=shape, init=mx.init.Constant(values)))

    def hybrid_forward(self, F, x, **levels):
        return [levels[f"level{level}"] for level in range(2, 7)]


def network(random: np.random.RandomState, images: int) -> MaskRCNN:
    """mask_rcnn_fpn_resnet50_v1b_coco of predefined_models.py with fewer channels, places and classes."""
    box_features = nn.HybridSequential(prefix="box_")
    box_features.add(nn.AvgPool2D(pool_size=(3, 3), strides=2, padding=1))
    for _ in range(2):
        with box_features.name_scope():
            box_features.add(nn.Dense(WIDE, weight_initializer=mx.init.Normal(0.01)), nn.Activation("relu"))
    net = MaskRCNN(
        features=Maps(random, images), top_features=None, box_features=box_features, classes=tuple("abc"),
        mask_channels=MASK_CHANNELS, rcnn_max_dets=1000, short=800, max_size=1333, min_stage=2, max_stage=6,
        nms_thresh=0.5, nms_topk=-1, post_nms=-1, roi_mode="align", roi_size=(14, 14), strides=STRIDES, clip=4.42,
        rpn_channel=RPN_CHANNELS, base_size=16, scales=SCALES, ratios=(0.5, 1, 2), alloc_size=(96, 96),
        rpn_nms_thresh=0.7, rpn_train_pre_nms=300, rpn_train_post_nms=PROPOSALS, rpn_test_pre_nms=200,
        rpn_test_post_nms=PROPOSALS, rpn_min_size=1, num_sample=SAMPLES, pos_iou_thresh=0.5, pos_ratio=0.25,
        max_num_gt=OBJECTS, target_roi_scale=2, num_fcn_convs=2, per_device_batch_size=images, prefix="net_",
    )  # fmt: skip
    net.initialize()
    with autograd.train_mode():  # shapes become known
        net(mx.nd.zeros((images, 3, HEIGHT, WIDTH)), mx.nd.ones((images, OBJECTS, 4)), mx.nd.ones((images, OBJECTS, 1)))
    for name, parameter in net.collect_params().items():
        if "anchor" in name or "maps" in name or "boxcenterencoder" in name:
            continue
        shape = parameter.shape
        std = next((v for k, v in DEVIATIONS.items() if k in name), (2 / max(1, np.prod(shape[1:]))) ** 0.5)
        parameter.set_data(mx.nd.array(random.normal(0, 0.1 if len(shape) == 1 else std, size=shape)))
    return net


def parameters(net: MaskRCNN, of) -> dict[str, np.ndarray]:
    return {
        name: of(parameter).asnumpy()
        for name, parameter in net.collect_params().items()
        if "anchor" not in name and "boxcenterencoder" not in name
    }


def training(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> weights, a batch, proposals, what was sampled, the five losses as they add up, and gradients as the optimizer gets them."""
    with whole_regions():
        net = network(random, B)
        boxes = np.stack([drawn_boxes(random, OBJECTS, HEIGHT, WIDTH, 30) for _ in range(B)])
        boxes[1, 2] = -1  # the second photo has two objects
        classes = random.randint(0, K, size=(B, OBJECTS, 1)).astype(np.float32)
        classes[1, 2] = -1
        masks = (random.uniform(size=(B, OBJECTS, HEIGHT // 8, WIDTH // 8)) < 0.6).repeat(8, 2).repeat(8, 3)
        masks = masks.astype(np.float32) * inside(boxes)
        photos = mx.nd.zeros((B, 3, HEIGHT, WIDTH))
        with autograd.record():
            maps = net.features(photos)
            scores, proposals, _, _, anchors = net.rpn(mx.nd.zeros_like(photos), *maps)
        every = mx.nd.concat(*anchors, dim=1)[0]
        kinds, targets, weights = [], [], []
        for image in range(B):
            objects = boxes[image][boxes[image, :, 0] >= 0]
            kind, target, weight = RPNTargetGenerator(num_sample=48)(mx.nd.array(objects), every, WIDTH, HEIGHT)
            kinds.append(kind), targets.append(target), weights.append(weight)
        label = np.concatenate((boxes, classes), axis=2)
        x = [mx.nd.array(part) for part in (label, masks, np.stack(kinds), np.stack(targets), np.stack(weights))]
        mx.random.seed(5)
        with autograd.record():
            rois, samples, matches = net.sampler(proposals, scores, x[0][:, :, :4])
        # The same draw again, inside the task: from the same random numbers.
        losses = [
            gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False), gluon.loss.HuberLoss(rho=1.0 / 9.0),
            gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss(rho=1.0),
            gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False),
        ]  # fmt: skip
        task = ForwardBackwardTask(net, None, *losses, False)
        mx.random.seed(5)
        result = task.forward_backward([photos, *x])
        assert np.array_equal(result[7][0][0].asnumpy() >= 0, samples.asnumpy() != 0), "another draw"
    # What trainer.step(batch_size) makes of a gradient: train_mask_rcnn.py passes the batch of this process.
    gradients = parameters(net, lambda parameter: parameter.grad() / B)
    return {
        **{f"weight_{name}": value for name, value in parameters(net, lambda parameter: parameter.data()).items()},
        **{f"gradient_{name}": value for name, value in gradients.items()},
        "boxes": boxes,
        "classes": classes[..., 0].astype(np.int64),
        "masks": np.packbits(masks.astype(bool)),
        "anchor_kinds": np.stack(kinds).astype(np.int8),
        "proposals": proposals.asnumpy(),
        "rois": rois.asnumpy(),
        "samples": samples.asnumpy().astype(np.int8),
        "matches": matches.asnumpy().astype(np.int64),
        # The first two come as means over images, the others as sums; each image's is the sum over the batch's count times B.
        "losses": np.array([float(part.asscalar()) * (B if place < 2 else 1) / B for place, part in enumerate(result[:5])]),
    }


def inside(boxes: np.ndarray) -> np.ndarray:
    """(B, M, 4) -> (B, M, H, W), 1 where a pixel's middle lies in its box."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)[..., None, None]
    return ((x > left) & (x < right) & (y > top) & (y < bottom)).astype(np.float32)


def detections(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> weights and what the net finds in one photo: classes, scores, boxes before and after validate()'s clipper, masks."""
    from gluoncv.nn.bbox import BBoxClipToImage

    with whole_regions():
        net = network(random, 1)
        photo = mx.nd.zeros((1, 3, HEIGHT, WIDTH))
        classes, scores, boxes, masks = net(photo)
        there = classes.asnumpy()[0, :, 0] >= 0
        clipped = BBoxClipToImage()(boxes, photo)
    return {
        **{f"weight_{name}": value for name, value in parameters(net, lambda parameter: parameter.data()).items()},
        "classes": classes.asnumpy()[0, there, 0].astype(np.int64),
        "scores": scores.asnumpy()[0, there, 0],
        "boxes": boxes.asnumpy()[0, there],
        "clipped": clipped.asnumpy()[0, there],
        "masks": masks.asnumpy()[0, there].astype(np.float16),
    }


def first_weights(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> of the published net, as train_mask_rcnn.py draws it: names, and (size, mean, deviation, least, most, kurtosis) of each.

    The trunk's are left out: it is trained before.
    """
    net = get_model("mask_rcnn_fpn_resnet50_v1b_coco", pretrained_base=False, per_device_batch_size=1)
    for parameter in net.collect_params().values():
        if parameter._data is None:
            parameter.initialize()
    with autograd.pause(train_mode=False), whole_regions():
        net(mx.nd.zeros((1, 3, 64, 64)))
    names, rows = [], []
    for name, parameter in net.collect_params().items():
        if "resnet" in name or "anchor" in name:
            continue
        values = parameter.data().asnumpy().astype(np.float64)
        centered = values - values.mean()
        kurtosis = (centered**4).mean() / values.var() ** 2 if values.any() else 0.0
        names.append(name)
        rows.append([values.size, values.mean(), values.std(), values.min(), values.max(), kurtosis])
    return {"names": np.array(names), "rows": np.array(rows)}

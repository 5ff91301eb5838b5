"""Whole training steps of GluonCV's Mask R-CNN, from weights and on photos that scripts/certificates/maskrcnn.py wrote.

    python scripts/originals/gluoncv_steps.py --names OUT.npz                     # its weights' names and shapes
    python scripts/originals/gluoncv_steps.py --batches B.npz --weights W.npz --steps 50 --out LOSSES.json

Runs where MXNet 1.9.1 and GluonCV are installed, without paceline and without torch. The net is mask_rcnn_fpn_resnet50_v1b_coco with
fewer places for regions; targets, losses, step and SGD are GluonCV's and MXNet's own, as train_mask_rcnn.py puts them together.
Two draws are taken out: anchors are those that B names, after a look that GluonCV could have drawn them; and the shuffle before
regions are chosen puts positives first, so that its two choices together take every candidate once.
Letters: M object slots   A anchors   N candidates for regions, proposals and objects
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)

import mxnet as mx  # noqa: E402
from gluoncv.model_zoo.rcnn.faster_rcnn.rcnn_target import RCNNTargetSampler  # noqa: E402
from gluoncv.model_zoo.rcnn.mask_rcnn import predefined_models  # noqa: E402
from gluoncv.model_zoo.rcnn.mask_rcnn.data_parallel import ForwardBackwardTask  # noqa: E402
from gluoncv.model_zoo.rcnn.mask_rcnn.mask_rcnn import MaskRCNN  # noqa: E402
from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator  # noqa: E402
from gluoncv_geometry import UNLIMITED, anchors_of, whole_regions  # noqa: E402
from mxnet import gluon  # noqa: E402

PROPOSALS, OBJECTS, SAMPLES, POSITIVE_SHARE = 112, 16, 128, 0.375  # 112 proposals and 16 slots are 128 candidates
MOMENTUM, CLIP = 0.9, 1.5
LOSSES = ("objectness", "rpn_box", "class", "box", "mask")


def stable_order(values: mx.nd.NDArray, is_ascend: bool = True) -> mx.nd.NDArray:
    """argsort that leaves equals in their order; MXNet's own leaves them in any."""
    array = values.asnumpy()
    return mx.nd.array(np.argsort(array if is_ascend else -array, kind="stable"))


class Sorted(RCNNTargetSampler):
    """GluonCV's sampler of regions, whose shuffle puts positives first and else keeps the order, as its choice of equals does."""

    def hybrid_forward(self, F, rois, scores, gt_boxes):
        draws = []
        for roi, objects in zip(rois, gt_boxes):
            overlap = F.contrib.box_iou(F.concat(roi, objects, dim=0), objects, format="corner").max(axis=-1)
            behind = (overlap < self._pos_iou_thresh).astype("float32")
            draws.append(behind + F.arange(0, len(behind)) * 1e-3 / len(behind))
        own = {"random": SimpleNamespace(uniform=lambda *_, **__: draws.pop(0)), "argsort": staticmethod(stable_order)}
        proxy = type("Drawn", (), {**own, "__getattr__": lambda self, name: getattr(F, name)})()
        chosen = super().hybrid_forward(proxy, rois, scores, gt_boxes)
        every = np.concatenate((rois.asnumpy(), gt_boxes.asnumpy()), axis=1)
        for before, after in zip(every, chosen[0].asnumpy()):
            assert np.array_equal(np.sort(before, axis=0), np.sort(after, axis=0)), "a region was taken twice, or left out"
        return chosen


def network(images: int) -> MaskRCNN:
    """The published net with the places above, and its parameters that train."""
    fewer = {
        "rpn_train_pre_nms": 12000, "rpn_train_post_nms": PROPOSALS, "num_sample": SAMPLES, "pos_ratio": POSITIVE_SHARE,
        "max_num_gt": OBJECTS, "alloc_size": (128, 128), "per_device_batch_size": images,
    }  # fmt: skip
    unused = ("name", "dataset", "pretrained")
    predefined_models.get_mask_rcnn = lambda **words: MaskRCNN(
        **{name: value for name, value in {**words, **fewer}.items() if name not in unused}
    )
    net = predefined_models.mask_rcnn_fpn_resnet50_v1b_coco(pretrained=False, pretrained_base=False)
    net.sampler = Sorted(
        num_image=images, num_proposal=PROPOSALS, num_sample=SAMPLES, pos_iou_thresh=0.5, pos_ratio=POSITIVE_SHARE,
        max_num_gt=OBJECTS,
    )  # fmt: skip
    net.initialize()
    with mx.autograd.train_mode(), whole_regions():  # shapes become known
        far = mx.nd.array(np.tile(np.float32([8, 8, 40, 40]), (images, OBJECTS, 1)))
        net(mx.nd.zeros((images, 3, 128, 128)), far, mx.nd.zeros((images, OBJECTS, 1)))
    return net


def named(net: MaskRCNN) -> dict[str, gluon.Parameter]:
    """Its parameters by the names of `save_parameters`, without constants."""
    constants = ("anchor_generator", "class_agnostic_encoder", "_box_encoder")
    return {
        name: parameter
        for name, parameter in net._collect_params_with_prefix().items()
        if not any(part in name for part in constants)
    }


def inputs(batch: dict[str, np.ndarray]) -> list[mx.nd.NDArray]:
    """What ForwardBackwardTask takes: photos, objects, masks, and the anchors' targets by GluonCV's own generator."""
    photos, boxes, classes, masks = (batch[name] for name in ("photos", "objects", "classes", "masks"))
    height, width = photos.shape[2:]
    every = mx.nd.concat(*anchors_of(height, width), dim=1)[0]
    parts = []
    for image, objects in enumerate(boxes):
        kind, target, weight = RPNTargetGenerator(num_sample=UNLIMITED)(
            mx.nd.array(objects[objects[:, 0] >= 0]), every, width, height
        )
        places, positive = batch["places"][image], batch["positive"][image]
        chosen = places[places >= 0]
        assert np.array_equal(kind[chosen] == 1, positive[places >= 0]) and (kind[chosen] >= 0).all()
        drawn = np.zeros(len(kind), bool)
        drawn[chosen] = True
        parts.append((np.where(drawn, kind, -1), target, weight * drawn[:, None]))
    label = np.concatenate((boxes, classes[..., None]), axis=2)
    return [mx.nd.array(part) for part in (photos, label, masks, *(np.stack(part) for part in zip(*parts)))]


def rate(step: int, start: dict[str, float]) -> float:
    """get_lr_at_iter of train_mask_rcnn.py, and a tenth after the decay."""
    ramp = min(1.0, step / start["warmup"])
    tenth = 0.1 if step >= start["drop"] else 1.0
    return start["peak"] * (start["from"] * (1 - ramp) + ramp) * tenth


def train(net: MaskRCNN, batches: dict[str, np.ndarray], steps: int) -> list[dict[str, float]]:
    start = {name: float(batches[name]) for name in ("peak", "warmup", "from", "drop", "decay")}
    net.collect_params().setattr("grad_req", "null")
    net.collect_train_params().setattr("grad_req", "write")
    for parameter in net.collect_params(".*bias").values():
        parameter.wd_mult = 0.0
    words = {"learning_rate": start["peak"], "wd": start["decay"], "momentum": MOMENTUM, "clip_gradient": CLIP}
    trainer = gluon.Trainer(net.collect_train_params(), "sgd", words, kvstore=None)
    losses = [
        gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False), gluon.loss.HuberLoss(rho=1.0 / 9.0),
        gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss(rho=1.0),
        gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=False),
    ]  # fmt: skip
    task, found = ForwardBackwardTask(net, None, *losses, False), []
    names = ("photos", "objects", "classes", "masks", "places", "positive")
    for step in range(steps):
        batch = {name: batches[f"{step}.{name}"] for name in names}
        images = len(batch["photos"])
        trainer.set_learning_rate(rate(step, start))
        result = task.forward_backward(inputs(batch))
        trainer.step(images)
        # The first two are means over images, the others sums over images of a loss that is divided by the batch's count.
        values = [float(part.asscalar()) / (1 if place < 2 else images) for place, part in enumerate(result[:5])]
        found.append(dict(zip(LOSSES, values)))
        print(f"gluoncv {step} {found[-1]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("names", "batches", "weights", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    if given.names is not None:
        np.savez(given.names, **{name: np.array(parameter.shape) for name, parameter in named(network(1)).items()})
        return
    with np.load(given.batches) as file:
        batches = dict(file)
    net = network(len(batches["0.photos"]))
    with np.load(given.weights) as file:
        for name, parameter in named(net).items():
            parameter.set_data(mx.nd.array(file[name]))
    with whole_regions():
        given.out.write_text(json.dumps(train(net, batches, given.steps)))


if __name__ == "__main__":
    main()

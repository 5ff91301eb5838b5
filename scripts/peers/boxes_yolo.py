"""Ultralytics YOLO11n from scratch with its CPU time: a peer of ssd-finetune-cpu. Its pretrained weights lie on a hub out of reach.

    pip install ultralytics==8.4.190     # in an environment of its own, with torch, torchvision and pycocotools; AGPL-3.0
    OMP_NUM_THREADS=1 python scripts/peers/boxes_yolo.py --data DIR --work WORK --seed 1 -- epochs=8 warmup_epochs=1 ...

Nothing of paceline is imported. DIR holds train2017, val2017 and annotations/instances_*.json; WORK gets links to the photos, labels
in YOLO's form and the run. Words after -- are settings of `train`, behind FIXED. The CPU time is the whole process's; photos are
scored once, at the end, by pycocotools. --hold-out scores every fourth training photo in val's place.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path
from typing import Any

import yaml
from boxes_scored import Split, score, splits
from ultralytics import YOLO

FIXED: dict[str, Any] = {
    "imgsz": 320,
    "batch": 16,
    "device": "cpu",
    "workers": 0,
    "val": False,
    "plots": False,
    "cache": "ram",
}
FIXED |= {"exist_ok": True, "verbose": False}


def write(split: Split, folder: Path) -> None:
    """Links to the photos, and a text file of `class x y w h` in fractions beside each."""
    label_of = {category: label for label, category in enumerate(sorted(split.coco.getCatIds()))}
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for number in split.numbers:
        info = split.coco.loadImgs(number)[0]
        width, height, lines = info["width"], info["height"], []
        for found in split.coco.loadAnns(split.coco.getAnnIds(number)):
            x, y, w, h = found["bbox"]
            where = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
            lines.append(" ".join([str(label_of[found["category_id"]]), *(f"{value:.6f}" for value in where)]))
        link = folder / "images" / info["file_name"]
        if not link.exists():
            link.symlink_to((split.folder / info["file_name"]).resolve())
        (folder / "labels" / info["file_name"]).with_suffix(".txt").write_text("\n".join(lines))


def detect(model: YOLO, split: Split) -> list[dict[str, Any]]:
    """-> detections in COCO's form."""
    categories, rows = sorted(split.coco.getCatIds()), []
    for number in split.numbers:
        path = split.folder / split.coco.loadImgs(number)[0]["file_name"]
        found = model.predict(
            str(path), imgsz=FIXED["imgsz"], conf=0.001, iou=0.7, max_det=300, device="cpu", verbose=False
        )[0].boxes
        assert found is not None
        for (x, y, right, bottom), label, sure in zip(found.xyxy.tolist(), found.cls.tolist(), found.conf.tolist()):
            box = [x, y, right - x, bottom - y]
            rows.append({"image_id": number, "category_id": categories[int(label)], "bbox": box, "score": sure})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold-out", action="store_true")
    parser.add_argument("words", nargs="*", help="KEY=VALUE of Ultralytics' train, after --")
    given = parser.parse_args()
    learned, scored = splits(given.data, given.hold_out)
    folder = (given.work / ("held" if given.hold_out else "whole")).resolve()
    write(learned, folder)
    names = [category["name"] for category in learned.coco.loadCats(sorted(learned.coco.getCatIds()))]
    # Ultralytics evaluates after training even with val=False: of one photo, so that it costs nothing.
    (folder / "one.txt").write_text(str(next((folder / "images").iterdir())))
    listed = folder / "data.yaml"
    listed.write_text(yaml.safe_dump({"path": str(folder), "train": "images", "val": "one.txt", "names": names}))
    settings = FIXED | {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in given.words)}
    model = YOLO("yolo11n.yaml")
    model.train(data=str(listed), seed=given.seed, project=str(given.work.resolve()), name="run", **settings)
    last = YOLO(given.work / "run" / "weights" / "last.pt")
    results = score(detect(last, scored), scored)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "seed": given.seed, "hold_out": given.hold_out}
    print(json.dumps(results | told | {"words": " ".join(given.words)}), flush=True)


if __name__ == "__main__":
    main()

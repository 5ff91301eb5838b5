"""How many planted faults `paceline data lint` finds, and how many sound photos and labels it names: results/lint.

    python scripts/lint_planted.py DATA RUN WORK [--seed N]

DATA has COCO's layout (train2017, val2017, annotations), RUN is a detector that was trained on it. WORK gets a copy in which, of the
validation split, ten objects have another class and ten boxes are moved by ten pixels; ten photos of train stand in val byte for byte,
ten others re-encoded at 0.7 of the side; and a class stands twice in the list. RUN scores the copy; then the lint looks at both.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.cli.main import main as paceline

MANY, PIXELS = 10, 10


def planted(data: Path, work: Path, seed: int) -> dict[str, set[str]]:
    """Write the copy -> fault -> the photos that have it."""
    random = np.random.default_rng(seed)
    shutil.copytree(data, work)
    files = {split: work / "annotations" / f"instances_{split}2017.json" for split in ("train", "val")}
    train, val = (json.loads(file.read_text()) for file in files.values())
    names = {image["id"]: image["file_name"] for image in val["images"]}
    # Objects that a person would see as wrong: of 24 pixels and more.
    whole = [one for one in val["annotations"] if not one.get("iscrowd") and min(one["bbox"][2:]) >= 24]
    chosen = random.permutation(len(whole))[: 2 * MANY]
    classes = [category["id"] for category in val["categories"]]
    found: dict[str, set[str]] = {"class": set(), "place": set(), "equal": set(), "near": set()}
    for place, number in enumerate(chosen.tolist()):
        one = whole[number]
        fault = "class" if place < MANY else "place"
        if fault == "class":
            one["category_id"] = int(random.choice([k for k in classes if k != one["category_id"]]))
        else:
            one["bbox"] = [one["bbox"][0] + PIXELS, one["bbox"][1] + PIXELS, *one["bbox"][2:]]
        found[fault].add(names[one["image_id"]])
    largest = max(names)
    for place, number in enumerate(random.permutation(len(train["images"]))[: 2 * MANY].tolist()):
        image = copy.copy(train["images"][number])
        photo, image["id"] = work / "train2017" / image["file_name"], largest + 1 + place
        image["file_name"] = f"copy{place}.jpg"
        to, fault = work / "val2017" / image["file_name"], "equal" if place < MANY else "near"
        if fault == "equal":
            shutil.copyfile(photo, to)
        else:
            small = Image.open(photo).convert("RGB")
            image["width"], image["height"] = round(0.7 * small.width), round(0.7 * small.height)
            small.resize((image["width"], image["height"])).save(to, quality=60)
        val["images"].append(image)
        found[fault].add(image["file_name"])
    for record in (train, val):
        record["categories"].append(
            {**record["categories"][0], "id": max(classes) + 1, "name": record["categories"][0]["name"].swapcase()}
        )
    for file, record in zip(files.values(), (train, val)):
        file.write_text(json.dumps(record))
    return found


def linted(data: Path, answers: Path) -> dict[str, list[str]]:
    """A finding's key -> its texts."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        paceline(["data", "lint", str(data), "--predictions", str(answers), "--json"])
    return {one["key"]: one["found"] for one in json.loads(text.getvalue())["findings"]}


def scored(run: str, data: Path, out: Path) -> Path:
    """The run's answers on the validation photos of `data`."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert paceline(["eval", run, "--data", str(data), "--output", str(out), "--no-confidence-intervals"]) == 0
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True)
    wanted = planted(asked.data, asked.work / "set", asked.seed)
    before = linted(asked.data, scored(asked.run, asked.data, asked.work / "before.json"))
    after = linted(asked.work / "set", scored(asked.run, asked.work / "set", asked.work / "after.json"))
    keys = {"class": "label_class", "place": "label_place", "equal": "equal_across", "near": "near_across"}
    rows: dict[str, Any] = {}
    for fault, photos in wanted.items():
        named = after.get(keys[fault], [])
        hit = {photo for photo in photos if any(f"/{photo}" in text.split(": ")[0] for text in named)}
        rows[fault] = {
            "planted": len(photos),
            "found": len(hit),
            "named": len(named),
            "named_before": len(before.get(keys[fault], [])),
        }
    rows["class_twice"] = {"planted": 1, "found": len(after.get("class_twice", []))}
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

"""A small folder of photos that a GPU machine can be given: class folders and COCO photos with their annotations.

    python scripts/gpu/photos.py DATA .gpu [--mb 18]      DATA holds imagenette224/ and coco_mini/

Of each class as many photos as fit; of COCO the first photos by id, training and validation three to one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import chain, zip_longest
from pathlib import Path

COCO_SHARE = 0.85  # of the bytes: COCO's photos are many times as large


def class_folders(source: Path, target: Path, budget: int) -> int:
    """Copy photos of every class by turns, four for training and one for validation, within `budget` bytes; -> how many.

    Each class has one in validation at least, whatever that takes: both splits must have the same classes.
    """
    splits, classes = {}, 0
    for split in ("train", "val"):
        folders = sorted(path for path in (source / split).iterdir() if path.is_dir())
        by_turns = chain.from_iterable(zip_longest(*(sorted(folder.glob("*.jpg")) for folder in folders)))
        classes = len(folders)
        splits[split] = [path for path in by_turns if path is not None]
    copied, spent = 0, 0
    for number in range(len(splits["val"])):
        group = [*splits["train"][4 * number : 4 * number + 4], splits["val"][number]]
        size = sum(path.stat().st_size for path in group)
        if spent + size > budget and number >= classes:
            break
        for path in group:
            copy(path, target / path.relative_to(source))
        copied, spent = copied + len(group), spent + size
    for path in source.glob("*.json"):
        copy(path, target / path.name)
    return copied


def coco(source: Path, target: Path, budget: int) -> int:
    """Copy training and validation photos, three to one, within `budget` bytes with their annotations; -> how many."""
    copied = 0
    for split, share in (("train", 0.75), ("val", 0.25)):
        name = f"annotations/instances_{split}2017.json"
        document = json.loads((source / name).read_text())
        spent, kept = 0, []
        for image in sorted(document["images"], key=lambda image: image["id"]):
            path = source / f"{split}2017" / image["file_name"]
            spent += path.stat().st_size
            if spent > share * budget:
                break
            copy(path, target / f"{split}2017" / path.name)
            kept.append(image)
        ids = {image["id"] for image in kept}
        document["images"] = kept
        document["annotations"] = [entry for entry in document["annotations"] if entry["image_id"] in ids]
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(json.dumps(document))
        copied += len(kept)
    return copied


def copy(source: Path, target: Path) -> None:
    """One file, its folder made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main() -> None:
    """Make the folder, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, default=18.0)
    asked = parser.parse_args()
    if asked.out.exists() and any(asked.out.iterdir()):
        parser.error(f"{asked.out} is not empty: name another folder, or remove it")
    budget = int(asked.mb * 1e6)
    found = {
        "imagenette224": class_folders(
            asked.data / "imagenette224", asked.out / "imagenette224", int(budget * (1 - COCO_SHARE))
        ),
        "coco_mini": coco(asked.data / "coco_mini", asked.out / "coco_mini", int(budget * COCO_SHARE)),
    }
    size = sum(path.stat().st_size for path in asked.out.rglob("*") if path.is_file())
    print(f"{found['imagenette224']} class photos, {found['coco_mini']} COCO photos, {size / 1e6:.1f} MB in {asked.out}")


if __name__ == "__main__":
    main()

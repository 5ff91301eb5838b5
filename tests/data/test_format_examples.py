"""`prepare` detects and reads the examples of docs/reference/dataset-formats.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from tiny_runs import command

from paceline.data.prepare.detect import find_kinds

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/dataset-formats.md").read_text()


def example(language: str) -> str:
    """Return the only block of this language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)
    return block


def write(root: Path, files: dict[str, str]) -> None:
    """Write text files, and an image for each empty text, all of them different."""
    for number, (name, text) in enumerate(files.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if text:
            (root / name).write_text(text)
        else:
            Image.new("RGB", (640, 480), (20 * number, 90, 160)).save(root / name)


FILES = {
    "folder": {f"{split}/{kind}/{split}.jpg": "" for split in ("train", "val") for kind in ("cat", "dog")},
    "coco": {
        place: text
        for split in ("train2017", "val2017")
        for place, text in ((f"annotations/instances_{split}.json", example("json")), (f"{split}/a.jpg", ""))
    },
    "yolo": {"data.yaml": example("yaml")}
    | {f"images/{split}/{name}.jpg": "" for split, name in (("train", "a"), ("val", "c"))}
    | {f"labels/{split}/{name}.txt": example("text") for split, name in (("train", "a"), ("val", "c"))},
    "voc": {f"Annotations/{name}.xml": example("xml").replace("a.jpg", f"{name}.jpg") for name in "ab"}
    | {f"JPEGImages/{name}.jpg": "" for name in "ab"}
    | {"ImageSets/Main/train.txt": "a\n", "ImageSets/Main/val.txt": "b\n"},
}


@pytest.mark.parametrize("kind", FILES)
def test_an_example_is_detected_and_read(kind, tmp_path, capsys):
    root, output_dir = tmp_path / "my-images", tmp_path / "mine"
    write(root, FILES[kind])
    assert list(find_kinds(str(root))) == [kind]
    assert command(capsys, "prepare", root, "--output-dir", output_dir).code == 0
    manifest = json.loads((output_dir / "manifest.json").read_text())
    assert manifest["classes"] == (["dog"] if kind == "voc" else ["cat", "dog"])
    splits = [(split["images"], split["per_class"]) for split in manifest["splits"].values()]
    assert splits == 2 * [{"folder": (2, [1, 1]), "voc": (1, [1])}.get(kind, (1, [1, 1]))]

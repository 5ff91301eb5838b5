"""The box input benchmark: every contender makes whole batches of the same photos, and the report holds its ratios."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from paceline.bench import input_boxes as bench
from paceline.bench.input_contenders import BATCH
from paceline.config.detection import BoxInput
from paceline.config.errors import DataError
from paceline.data.boxes import open_boxes
from paceline.data.manifest import Manifest
from paceline.prepare.box_folder import ensure_boxes_prepared

# torchvision 0.29 announces that its image decoders will go; the peer still has them.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Five photos a split in COCO's layout, the last of them without an object."""
    root = tmp_path_factory.mktemp("coco")
    (root / "annotations").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (5, 90, 120, 3), dtype=np.uint8)
    for split in ("train2017", "val2017"):
        (root / split).mkdir()
        images, annotations = [], []
        for i, pixels in enumerate(noise):
            Image.fromarray(pixels).save(root / split / f"{i}.jpg")
            images.append({"id": i + 1, "file_name": f"{i}.jpg", "height": 90, "width": 120})
            for row in range(3 if i < 4 else 0):
                annotations.append({
                    "id": len(annotations) + 1, "image_id": i + 1, "category_id": 1 + row % 2, "iscrowd": 0,
                    "bbox": [10 * row, 5, 60, 50], "area": 3000, "segmentation": [],
                })  # fmt: skip
        told = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(told))
    return root


@pytest.mark.parametrize("name", ["ours", "pil", "tensor"])
def test_every_box_contender_makes_whole_batches(coco, name):
    manifest = Manifest.load(ensure_boxes_prepared(coco, say=lambda _: None))
    photos = bench.photos_with_objects(open_boxes(manifest, "train"))
    assert photos.numbers.tolist() == [0, 1, 2, 3] and [len(boxes) for boxes in photos.boxes] == [3] * 4
    settings = BoxInput(size=64)
    make = {
        "ours": lambda: bench.ours(photos, settings, 2),
        "pil": lambda: bench.torchvision_loader(photos, settings, 0, "pil"),
        "tensor": lambda: bench.torchvision_loader(photos, settings, 0, "tensor"),
    }[name]
    with make() as take:
        assert [take() for _ in range(3)] == [BATCH] * 3


@pytest.mark.nightly
def test_the_box_report_holds_rates_and_ratios(coco, tmp_path, monkeypatch):
    real = bench.contenders
    monkeypatch.setattr(  # without worker processes, which take seconds to start
        bench,
        "contenders",
        lambda *args: {
            name: make
            for name, make in real(*args).items()
            if not name.startswith("torchvision") or "tensor, 0 workers" in name
        },
    )
    out = tmp_path / "input.json"
    report = bench.run_box_input_bench(coco, seconds=0.05, size=64, decoders=["simplejpeg"], out=out, rounds=2)
    assert json.loads(out.read_text()) == report
    assert {name.split(",")[1] for name in report["ratio_of_images_per_cpu_second"]} == {" hsv", " matrix"}
    assert report["photos"]["count"] == 4 and report["objects"] == 12
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report["images_per_cpu_second"].values())


def test_a_folder_without_boxes_is_refused_by_the_box_bench(tmp_path):
    with pytest.raises(DataError):
        bench.run_box_input_bench(tmp_path)

"""The mask input benchmark: every contender makes whole batches of the same photos with their masks, and ratios are told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from paceline.bench import input_masks as bench
from paceline.config.errors import DataError
from paceline.config.instances import InstanceInput
from paceline.data.manifest import Manifest
from paceline.prepare.box_folder import ensure_boxes_prepared

# torchvision 0.29 announces that its image decoders will go; the peer still has them. pycocotools has numpy's older protocol.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
SETTINGS = InstanceInput(short=(64,), long=106, flip=0.0)


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Five photos a split in COCO's layout with polygons; photo 0 has a crowd too, the last one no object."""
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
                left = 10.0 * row
                outline = [left, 5.0, left + 60, 5.0, left + 60, 55.0, left, 55.0]
                annotations.append({
                    "id": len(annotations) + 1, "image_id": i + 1, "category_id": 1 + row % 2, "iscrowd": 0,
                    "bbox": [left, 5, 60, 50], "area": 3000, "segmentation": [outline],
                })  # fmt: skip
        annotations.append({
            "id": len(annotations) + 1, "image_id": 1, "category_id": 1, "iscrowd": 1, "bbox": [0, 0, 90, 90],
            "area": 8100, "segmentation": {"counts": [0, 8100, 2700], "size": [90, 120]},
        })  # fmt: skip
        told = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(told))
    return root


@pytest.fixture(scope="module")
def task(coco):
    manifest = Manifest.load(ensure_boxes_prepared(coco, say=lambda _: None))
    return bench.instance_task(manifest, SETTINGS)


@pytest.mark.parametrize("name", ["ours", "pil", "tensor"])
def test_every_mask_contender_makes_whole_batches(coco, task, name):
    paths = bench.paths_of(task)
    assert [path.name for path in paths] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    photos, annotations = {path.name for path in paths}, coco / "annotations" / "instances_train2017.json"
    make = {
        "ours": lambda: bench.ours(task, 2),
        "pil": lambda: bench.torchvision_loader(paths[0].parent, annotations, photos, SETTINGS, 0, "pil"),
        "tensor": lambda: bench.torchvision_loader(paths[0].parent, annotations, photos, SETTINGS, 0, "tensor"),
    }[name]
    with make() as take:
        assert [take() for _ in range(2)] == [bench.BATCH] * 2


@pytest.mark.parametrize("decode", ["pil", "tensor"])
def test_torchvisions_side_has_the_masks_of_all_objects_but_crowds_at_the_same_size(coco, task, decode):
    from torchvision.transforms import v2

    paths = bench.paths_of(task)
    transform = v2.RandomShortestSize([64], 106, antialias=True)
    annotations = coco / "annotations" / "instances_train2017.json"
    photos = bench.coco_detection(paths[0].parent, annotations, {path.name for path in paths}, transform, decode)
    assert len(photos) == 4
    _, target = photos[0]
    _, objects = task.sample(0, 0)
    height, width = objects.size
    assert target["masks"].shape == (3, height, width) and len(objects.boxes) == 3
    np.testing.assert_allclose(target["boxes"].numpy(), objects.boxes, atol=0.5)


def test_the_mask_report_holds_rates_and_ratios(coco, tmp_path, monkeypatch):
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
    report = bench.run_mask_input_bench(coco, seconds=0.05, size=64, decoders=["simplejpeg"], out=out, rounds=2)
    assert json.loads(out.read_text()) == report
    assert report["photos"]["count"] == 4 and report["objects"] == 12
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in report["images_per_cpu_second"].values())
    (ratios,) = report["ratio_of_images_per_cpu_second"].values()
    assert all(ratio > 0 for ratio in ratios.values())


def test_a_folder_without_masks_is_refused_by_the_mask_bench(tmp_path):
    with pytest.raises(DataError):
        bench.run_mask_input_bench(tmp_path)

"""Mask R-CNN through the command line: train, evaluate, predict, plan; on drawn polygons, on COCO photos, on bad data."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from instance_sets import CATEGORY_IDS
from instance_sets import json_file as masks_file
from PIL import Image
from pycocotools.coco import COCO
from run_files import events_of
from shared_runs import MASKRCNN as SMALL
from shared_runs import MASKRCNN_NET as NET
from shared_runs import MASKRCNN_TOY as TOY
from shared_runs import VAL
from tiny_runs import command, refused

from paceline.models.maskrcnn.loss import TERMS
from paceline.models.registry import WORKLOADS

METRICS = WORKLOADS["instance-segmentation"].reporting.metrics

# pycocotools itself does what numpy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OF_COCO = f"{NET} --input.min-size 128 --input.max-size 192 --max-steps 2 --global-batch-size 2 --bn-batch-size 2 --optim.lr 0.001"
STEPS = 4


@pytest.fixture(scope="module")
def photos(maskrcnn_run) -> Path:
    return maskrcnn_run.data


@pytest.fixture(scope="module")
def trained(maskrcnn_run) -> Path:
    return maskrcnn_run.folder


def test_a_run_writes_the_numbers_of_boxes_and_masks_and_a_report(trained):
    (scored,) = events_of(trained, "eval")
    assert scored["step"] == STEPS and scored["images"] == VAL
    assert set(METRICS) <= scored.keys() and len(METRICS) == 24
    losses = events_of(trained, "train")
    assert len(losses) == STEPS
    for event in losses:
        terms = [event[f"loss_{term}"] for term in TERMS]
        assert min(terms) > 0 and event["loss"] == pytest.approx(sum(terms), rel=1e-5)
    predictions = json.loads((trained / "predictions" / f"step-{STEPS:06d}.json").read_text())
    assert predictions["kind"] == "instances" and len(predictions["images"]) == VAL
    assert sum(len(image["truth"]["masks"]) for image in predictions["images"]) > VAL
    assert sum(len(image["masks"]) for image in predictions["images"]) > VAL
    report = (trained / "report.html").read_text()
    assert "mask AP" in report and "box AP" in report


def test_predictions_of_photos_of_other_sizes_are_a_result_file_of_pycocotools(trained, tmp_path, capsys):
    sizes = {7: (140, 50), 12: (90, 201)}  # width, height
    for number, size in sizes.items():
        Image.effect_noise(size, 90).convert("RGB").save(tmp_path / f"{number:03d}.png")
    out = tmp_path / "answers"
    named = [tmp_path / f"{number:03d}.png" for number in sizes]
    assert command(capsys, "predict", trained, *named, "--output-dir", out).code == 0
    images = json.loads((out / "predictions.json").read_text())["images"]
    detections = json.loads((out / "coco_results.json").read_text())
    assert len(images) == 2 and {detection["image_id"] for detection in detections} == set(sizes)
    truth: Any = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": number, "width": size[0], "height": size[1]} for number, size in sizes.items()],
        "categories": [{"id": category} for category in CATEGORY_IDS],
        "annotations": [],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        loaded = truth.loadRes(str(out / "coco_results.json"))
    assert len(loaded.anns) == len(detections)
    for annotation in loaded.anns.values():
        width, height = sizes[annotation["image_id"]]
        assert loaded.annToMask(annotation).shape == (height, width)
    for number in sizes:
        (picture,) = out.glob(f"*{number:03d}*.jpg")
        with Image.open(picture) as drawn:
            assert min(drawn.size) > 0


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("maskrcnn",), ("7,330", "mask_ap 0.339", "GiB", "box_ap 0.377")),
        (("maskrcnn-nvidia-96", "--system", "h100x8"), ("8 rank", "12 images", "1,222", "GiB")),
    ],
)
def test_show_prints_the_published_plan_and_its_memory(capsys, words, wanted):
    said = command(capsys, "plan", *words)
    assert said.code == 0, said
    for text in wanted:
        assert text in said.out, said.out


def test_coco_photos_with_a_crowd_and_an_empty_image_train_evaluate_and_predict(shared_data, tmp_path, capsys):
    root, out = tmp_path / "few", tmp_path / "run"
    few_coco_photos(shared_data / "coco_mini", root)
    said = command(capsys, "train", "maskrcnn-demo", "--data", root, "--output-dir", out, *OF_COCO.split())
    assert said.code == 0 and "warning" not in said.err.lower(), said
    facts = json.loads((out / "run.json").read_text())
    assert len(facts["classes"]) == 80 and facts["data"]["category_ids"][-1] == 90
    assert (facts["data"]["train_images"], facts["data"]["val_images"]) == (6, 4)
    (scored,) = events_of(out, "eval")
    assert scored["images"] == 4 and 0 <= scored["mask_ap"] <= 1
    photo = next((root / "val2017").iterdir())
    assert command(capsys, "predict", out, photo, "--output-dir", tmp_path / "answers").code == 0
    with Image.open(photo) as opened:
        (image,) = json.loads((tmp_path / "answers" / "predictions.json").read_text())["images"]
        assert (image["width"], image["height"]) == opened.size
    for detection in image["detections"]:
        assert detection["segmentation"]["size"] == [image["height"], image["width"]]


def few_coco_photos(coco: Path, root: Path) -> None:
    """Six training and four validation photos: in each split crowds and a photo without annotations."""
    for split, count in (("train", 6), ("val", 4)):
        document = json.loads((coco / "annotations" / f"instances_{split}2017.json").read_text())
        crowds = {entry["image_id"] for entry in document["annotations"] if entry["iscrowd"]}
        annotated = {entry["image_id"] for entry in document["annotations"]}
        every = [image["id"] for image in document["images"]]
        kept = sorted(crowds)[:2] + [image for image in every if image not in annotated][:1]
        kept += [image for image in every if image not in kept][: count - len(kept)]
        dropped = [] if set(kept) - annotated else kept[-1:]  # where every photo is annotated, one of them no more
        document["images"] = [image for image in document["images"] if image["id"] in kept]
        document["annotations"] = [
            entry for entry in document["annotations"] if entry["image_id"] in set(kept) - set(dropped)
        ]
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(document))
        (root / f"{split}2017").mkdir()
        for image in document["images"]:
            shutil.copy(coco / f"{split}2017" / image["file_name"], root / f"{split}2017")


@pytest.mark.parametrize("verb", ["train", "preview"])
def test_boxes_without_masks_are_refused_with_what_learns_them(photos, tmp_path, capsys, verb):
    root, out = tmp_path / "boxes", tmp_path / "run"
    shutil.copytree(photos, root)
    for split in ("train", "val"):
        document = json.loads(masks_file(root, split).read_text())
        for entry in document["annotations"]:
            del entry["segmentation"]
        document["annotations"] = [entry for entry in document["annotations"] if not entry["iscrowd"]]
        masks_file(root, split).write_text(json.dumps(document))
    flags = SMALL if verb == "train" else TOY
    said = command(
        capsys,
        verb,
        "maskrcnn-demo",
        "--data",
        root,
        "--output-dir" if verb == "train" else "--output",
        out,
        *flags.split(),
    )
    refused(said, str(root), "no masks", "fasterrcnn-finetune", "ssd-finetune")
    assert not out.exists()


def test_training_photos_with_crowds_alone_are_refused_where_empty_ones_are_left_out(photos, tmp_path, capsys):
    root, out = tmp_path / "crowds", tmp_path / "run"
    shutil.copytree(photos, root)
    document = json.loads(masks_file(root, "train").read_text())
    document["annotations"] = [entry for entry in document["annotations"] if entry["iscrowd"]]
    masks_file(root, "train").write_text(json.dumps(document))
    flags = [*SMALL.split(), "--input.skip-empty"]
    said = command(capsys, "train", "maskrcnn-demo", "--data", root, "--output-dir", out, *flags)
    refused(said, str(root), "object", "12 training images")
    assert not out.exists()

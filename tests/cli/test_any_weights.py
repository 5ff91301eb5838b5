"""Files of weights in the place of a run: predict and eval find their network and names; torchvision is the oracle."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from by_night import ONE_MORE
from messages import check_line, raises
from PIL import Image
from tiny_runs import CLASSES, Said, command, make_photos, refused
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.transforms.functional import center_crop, normalize, to_tensor

import paceline
from paceline._utils.errors import CheckpointError
from paceline.config.recipes import RECIPES
from paceline.models.registry import get_workload
from paceline.models.weights.classes import COCO_80, COCO_90, category_ids
from paceline.models.weights.formats.torchvision import describe_missing
from paceline.models.weights.identify import identify_network
from paceline.models.weights.weight_file import open_weights
from paceline.training.factory import find_weights_file

ROOT = Path(paceline.__file__).parents[1]
DETECTION = torchvision.models.detection


@pytest.fixture
def photo(tmp_path) -> Path:
    """256 x 256, so that neither side resizes it for a classifier, and without loss."""
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((256, 256), Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def classifier(rows: int, place: Path) -> torchvision.models.ResNet:
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=rows).eval()
    torch.save(network.state_dict(), place)
    return network


def answers(folder: Path) -> list[dict]:
    return json.loads((folder / "predictions.json").read_text())["images"]


def predict(capsys, *words: object, out: Path) -> tuple[Said, dict]:
    said = command(capsys, "predict", *words, "--output-dir", out, "--no-save-images")
    assert said.code == 0, said.err
    return said, answers(out)[0]


def test_a_classifiers_best_five_are_torchvisions_with_imagenets_readable_names(photo, tmp_path, capsys, caplog):
    network = classifier(1000, tmp_path / "w.pth")
    said, found = predict(capsys, tmp_path / "w.pth", photo, out=tmp_path / "out")
    with Image.open(photo) as file:
        pixels = normalize(center_crop(to_tensor(file), [224, 224]), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.inference_mode():
        scores, best = network(pixels[None])[0].softmax(0).topk(5)
    names = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert found["names"] == [names[row] for row in best.tolist()]
    assert found["scores"] == pytest.approx(scores.tolist(), abs=1e-6)
    check_line(said.out, "w.pth", "resnet50 --model.depth 18", "1,000 classes", "tench, goldfish")
    with caplog.at_level("INFO", "paceline"):
        again = paceline.load(tmp_path / "w.pth").predict(photo)
    assert check_line(caplog.text, "INFO", "resnet50 --model.depth 18")
    assert again.to_dict() == {key: found[key] for key in again.to_dict()}


@pytest.mark.parametrize("masks", [True, pytest.param(False, marks=ONE_MORE)], ids=["Mask R-CNN", "Faster R-CNN"])
def test_a_detectors_objects_are_torchvisions_with_cocos_ids_and_names(tmp_path, capsys, masks):
    torch.manual_seed(0)
    trunk = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    network = (MaskRCNN if masks else FasterRCNN)(trunk, 91, min_size=128, max_size=256, box_score_thresh=0.4).eval()
    pixels = np.random.default_rng(1).integers(0, 255, (8, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((160, 128), Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
    with Image.open(tmp_path / "photo.png") as file, torch.inference_mode():
        layer, seen = network.roi_heads.box_predictor.cls_score, []
        heard = layer.register_forward_hook(lambda _, __, logits: seen.append(logits))
        network([to_tensor(file)])
        heard.remove()
        layer.bias -= seen[0].mean(0)  # of one that nobody trained: else every region is the same class
        spread = 2 / (seen[0] - seen[0].mean(0)).std()
        layer.weight *= spread
        layer.bias *= spread
        theirs = network([to_tensor(file)])[0]
    torch.save(network.state_dict(), tmp_path / "w.pth")
    name = "maskrcnn-finetune" if masks else "fasterrcnn-finetune"
    recipe = f"{name} --input.min-size 128 --input.max-size 256 --model.detect.score-threshold 0.4"
    said, found = predict(capsys, tmp_path / "w.pth", tmp_path / "photo.png", "--recipe", recipe, out=tmp_path / "out")
    assert all(("segmentation" in row) == masks for row in found["detections"])
    labels, boxes = theirs["labels"].tolist(), theirs["boxes"].clone()
    names = DETECTION.MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    boxes[:, 2:] -= boxes[:, :2]
    assert len(set(labels)) > 2 and 5 <= len(labels) < 100
    assert [row["category_id"] for row in found["detections"]] == labels
    assert [row["name"] for row in found["detections"]] == [names[label] for label in labels]
    assert np.abs(boxes.numpy() - [row["bbox"] for row in found["detections"]]).max() < 0.05
    assert np.abs(theirs["scores"].numpy() - [row["score"] for row in found["detections"]]).max() < 1e-4
    assert "--model.depth 18" in said.out and "--input.resize bilinear" in said.out  # torchvision's, and said


@pytest.mark.parametrize("made", ["maskrcnn-demo", "maskrcnn-finetune-cpu", "fasterrcnn-finetune-cpu"])
def test_a_file_with_a_mask_head_is_of_no_network_without_one(made, tmp_path):
    recipe = RECIPES[made]()
    network = get_workload(recipe.task).network.build(recipe, 3)
    get_workload(recipe.task).network.initialize(recipe, network, torch.Generator().manual_seed(1))
    torch.save(network.state_dict(), tmp_path / "w.pth")
    fit = identify_network(open_weights(tmp_path / "w.pth"), {})
    assert fit.called.split()[0] == made and fit.recipe.model.masks == recipe.model.masks and not fit.lacking


def test_rows_without_holes_have_cocos_ids_with_holes():
    assert category_ids(COCO_80)[:13] == (*range(1, 12), 13, 14) and category_ids(COCO_80)[-1] == 90
    assert category_ids(COCO_90) == tuple(range(1, 91)) and category_ids(("a", "b")) == (1, 2)


def test_a_checkpoint_alone_answers_as_its_run(resnet_run, photo, tmp_path, capsys):
    best = resnet_run.folder / "checkpoints" / "best"
    _, own = predict(capsys, resnet_run.folder, photo, out=tmp_path / "own")
    _, alone = predict(capsys, best, photo, out=tmp_path / "alone")
    assert alone == own
    _, file = predict(capsys, best / "average.safetensors", photo, out=tmp_path / "file")  # by its own card
    assert file == own


def test_a_run_stands_for_its_best_checkpoint_and_for_its_last_before_there_is_one(resnet_run, tmp_path):
    run = shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)
    kept = run / "checkpoints"
    assert find_weights_file(str(run)) == find_weights_file(str(kept / "best"))
    (kept / "best").unlink()
    assert find_weights_file(str(run)) == find_weights_file(str(kept / "last"))
    shutil.rmtree(kept)
    with raises(CheckpointError, "--weights", "checkpoint"):
        find_weights_file(str(run))


def test_eval_finds_the_network_and_names_the_data_that_the_file_is_not_for(tmp_path, capsys):
    data = make_photos(tmp_path / "set", train=1, val=2)
    classifier(3, tmp_path / "three.pth")
    classifier(1000, tmp_path / "thousand.pth")
    flags = ("--data", data, "--system", "cpu", "--json")
    found, named = (
        command(capsys, "eval", tmp_path / "three.pth", *flags, *more)
        for more in ((), ("--recipe", "resnet50 --model.depth 18"))
    )
    assert found.code == named.code == 0, found.err + named.err
    assert json.loads(found.out) == json.loads(named.out) and json.loads(found.out)["images"] == 2 * len(CLASSES)
    refused(
        command(capsys, "eval", tmp_path / "thousand.pth", *flags[:4]),
        "1,000 classes ... 3", "--recipe", lines=6,
    )  # fmt: skip


def text(place: Path) -> None:
    place.write_text("hello\n")


def cut(place: Path) -> None:
    classifier(3, place)
    place.write_bytes(place.read_bytes()[:100_000])


def strange(place: Path) -> None:
    torch.save({"classifier.weight": torch.ones(3, 4)}, place)


def of_timm(place: Path) -> None:
    torch.save({"stem.0.weight": torch.ones(4, 3, 4, 4), "stages.0.blocks.0.gamma": torch.ones(4)}, place)


def padded(place: Path) -> None:
    torch.save({"heads.0.fused.bias": torch.ones(344)}, place)


def trunk(place: Path) -> None:
    network = torchvision.models.resnet18(num_classes=3)
    torch.save({name: tensor for name, tensor in network.state_dict().items() if "fc." not in name}, place)


def newer(place: Path) -> None:
    names = ("rpn.head.conv.1.0.weight", "roi_heads.box_predictor.cls_score.weight")
    torch.save({name: torch.ones(1) for name in names}, place)


def of_mxnets_ssd(place: Path) -> None:
    torch.save(
        {"features.ssd0_expand_trans_conv0_weight": torch.ones(1), "predictors.0.predictor.weight": torch.ones(1)}, place
    )


BAD = {
    text: "damaged, truncated, or not a weight file",
    Path.mkdir: "run.json not found",
    cut: "damaged, truncated, or not a weight file",
    strange: "no network of paceline matches",
    of_timm: "a timm network that is not a plain ResNet",
    padded: "its padded heads do not show the number of classes",
    trunk: "2 tensors of resnet50 --model.depth 18 are missing (fc.weight, fc.bias)",
    of_mxnets_ssd: "a training checkpoint of the MXNet SSD, which is not supported",
    newer: "torchvision's fasterrcnn_resnet50_fpn_v2, which has two convolutions in the proposal head",
}


@pytest.mark.parametrize("make", BAD, ids=[make.__name__ for make in BAD])
def test_what_no_network_answers_with_is_refused_in_a_line_and_nothing_is_written(make, photo, tmp_path, capsys):
    make(tmp_path / "w.pth")
    said = command(capsys, "predict", tmp_path / "w.pth", photo, "--output-dir", tmp_path / "out")
    refused(said, f"{tmp_path / 'w.pth'}: ", BAD[make], lines=1)
    if printed := re.search(r"inspect .*, run  paceline (weights inspect .*)", said.err):
        assert f"{'fits' if make is trunk else 'not'}  " in command(capsys, *shlex.split(printed[1])).out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("maskrcnn_resnet50_fpn", ""), ("fasterrcnn_resnet50_fpn", ""),
        ("maskrcnn_resnet50_fpn_v2", "maskrcnn_resnet50_fpn_v2"), ("fasterrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn_v2"),
        ("keypointrcnn_resnet50_fpn", "key points"), ("retinanet_resnet50_fpn_v2", "one-stage"),
        ("fcos_resnet50_fpn", "one-stage"), ("ssd300_vgg16", "one-stage"),
    ],
)  # fmt: skip
def test_torchvisions_detectors_are_named_by_their_tensors(network, words):
    with torch.device("meta"):
        names = getattr(DETECTION, network)(weights=None, weights_backbone=None).state_dict()
    assert words in describe_missing(names) if words else not describe_missing(names)


def test_flags_of_runs_are_refused_for_weights_and_those_of_weights_for_runs(resnet_run, photo, tmp_path, capsys):
    classifier(3, tmp_path / "w.pth")
    refused(command(capsys, "predict", tmp_path / "w.pth", photo, "--checkpoint", "last"), "--checkpoint last")
    refused(command(capsys, "predict", resnet_run.folder, photo, "--recipe", "ssd"), "--recipe ssd", "recipe ... run.json")
    refused(command(capsys, "predict", tmp_path / "gone.pth", photo), "run ... weight")
    refused(command(capsys, "predict", "resnet3", photo), "run ... weight", "resnet34")
    refused(
        command(capsys, "predict", tmp_path / "w.pth", photo, "--recipe", "resnet50 --model.dept 3"), "model.dept", "depth"
    )


@pytest.mark.nightly("full-sized networks")
def test_full_sized_networks_answer_as_torchvisions(shared_data, tmp_path):
    photos = sorted((shared_data / "coco_mini" / "val2017").glob("*.jpg"))[:2]
    script = ROOT / "scripts" / "weights_answers.py"
    done = subprocess.run([sys.executable, script, *photos, "--keep", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""SSD on several processes: the same outputs, gradients, statistics, losses and metrics as on one, however images are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from small_run import Trainer, events, said, tensor_files
from ssd_rank import CLASSES, IMAGES, STEPS
from torch import Tensor
from zygote import Zygote

pytestmark = pytest.mark.multi

RECIPES = Path(__file__).with_name("ssd_rank.py")
TRAIN, VAL = 19, 7  # validation shares of 7 images on 2 and 3 ranks are uneven
FLAGS = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.loader-threads 1 --log-every 1"


def make_boxes(root: Path) -> Path:
    """A COCO-style set of small photos: noise with bright rectangles; a photo of val has no object."""
    random = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", VAL)):
        folder = root / f"{split}2017"
        folder.mkdir(parents=True)
        images, annotations = [], []
        for number in range(count):
            pixels = random.integers(0, 110, (60, 80, 3), dtype=np.uint8)
            for _ in range(0 if (split, number) == ("val", 2) else 1 + number % 4):
                left, top = (int(random.integers(0, most)) for most in (50, 35))
                width, height = (int(random.integers(14, most)) for most in (30, 25))
                label = int(random.integers(CLASSES))
                pixels[top : top + height, left : left + width, label] += 120
                annotations.append(
                    {"id": len(annotations) + 1, "image_id": number, "category_id": 3 + 2 * label, "iscrowd": 0,
                     "bbox": [left, top, width, height], "area": width * height, "segmentation": []}
                )  # fmt: skip
            Image.fromarray(pixels).save(folder / f"{number:03d}.jpg", quality=92)
            images.append({"id": number, "file_name": f"{number:03d}.jpg", "height": 60, "width": 80})
        categories = [{"id": 3 + 2 * label, "name": f"class{label}"} for label in range(CLASSES)]
        file = root / "annotations" / f"instances_{split}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Iterator[Trainer]:
    """Starts ranks of ssd_rank.py."""
    with Zygote("ssd_rank") as zygote:
        yield Trainer(zygote, tmp_path_factory.mktemp("ssd"))


@pytest.fixture(scope="module")
def boxes(ranks: Trainer) -> Path:
    return make_boxes(ranks.folder / "boxes")


def trained(ranks: Trainer, boxes: Path, name: str, recipe: str, *, world: int = 1, images: int = 0) -> Path:
    """A training on `world` ranks with so many images in a forward; -> its folder."""
    run = ranks.folder / f"{name}-{recipe}"
    flags = f"{FLAGS} --eval-every {STEPS} --system.images-per-forward {images}".split()
    ended = ranks.run(["train", f"{RECIPES}:{recipe}", "--data", str(boxes), "--out", str(run), *flags], ranks=world)
    assert [rank.code for rank in ended] == [0] * world, said(ended)
    return run


@pytest.fixture(scope="module", params=["by_image", "by_batch"])
def whole(request, ranks: Trainer, boxes: Path) -> tuple[str, Path]:
    """Name of a recipe, and its run on one rank with all eight images in one forward."""
    return request.param, trained(ranks, boxes, "whole", request.param)


@pytest.mark.parametrize(
    ("world", "images"),
    [
        pytest.param(1, 4, id="2 forwards of 4"),
        pytest.param(2, 4, id="2 ranks of 4"),
        pytest.param(2, 2, id="2 ranks, 2 forwards of 2 that share statistics"),
    ],
)
def test_a_batch_cut_in_any_way_gives_the_same_losses_and_statistics(ranks, boxes, whole, world, images):
    recipe, alone = whole
    run = trained(ranks, boxes, f"cut-{world}-{images}", recipe, world=world, images=images)
    rows, wanted = ([e for e in events(one) if e["event"] == "train"] for one in (run, alone))
    assert len(rows) == STEPS
    for name in ("loss", "loss_class", "loss_box"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in wanted], rel=2e-5, abs=1e-6)
    assert wanted[-1]["loss"] < 0.9 * wanted[0]["loss"]  # gradients had their say
    got, expected = (safetensors.torch.load(tensor_files(one)["model.safetensors"]) for one in (run, alone))
    running = [name for name in got if "running_" in name]
    assert len(running) > 10
    for name in running:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-5)


def test_both_ways_of_dividing_the_loss_are_not_the_same_run(ranks, boxes):
    losses = []
    for recipe in ("by_image", "by_batch"):
        run = ranks.folder / f"whole-{recipe}"
        losses.append([e["loss"] for e in events(run if run.exists() else trained(ranks, boxes, "whole", recipe))
                       if e["event"] == "train"])  # fmt: skip
    assert abs(losses[0][0] - losses[1][0]) > 1e-3


def test_an_evaluation_is_identical_on_1_2_and_3_ranks(ranks, boxes, whole):
    recipe, run = whole
    scores, predictions = [], []
    for world in (1, 2, 3):
        file = ranks.folder / f"{recipe}-{world}.json"
        ended = ranks.run(["eval", str(run), "--batch", "1", "--json", "--out", str(file)], ranks=world)
        assert [rank.code for rank in ended] == [0] * world, said(ended)
        scores.append(json.loads(next(line for line in ended[0].text.splitlines() if line.startswith("{"))))
        predictions.append(file.read_text())
    assert scores[0] == scores[1] == scores[2]
    assert predictions[0] == predictions[1] == predictions[2]
    assert scores[0]["images"] == VAL
    assert sum(len(image["boxes"]) for image in json.loads(predictions[0])["images"]) > VAL


def two_steps(ranks: Trainer, case: str, over: str, world: int) -> list[dict[str, Tensor]]:
    folder = ranks.folder / f"steps-{case}-{over}-{world}"
    folder.mkdir()
    ended = ranks.run(["steps", str(folder), case, over], ranks=world)
    assert [rank.code for rank in ended] == [0] * world, said(ended)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize(
    "case", [pytest.param("full", id="two ranks with objects"), pytest.param("empty", id="one rank without objects")]
)
def test_two_ranks_that_share_statistics_equal_one_process_with_the_joined_batch(ranks, case, over):
    (alone,), (first, second) = (two_steps(ranks, case, over, world) for world in (1, 2))
    assert first.keys() == alone.keys()
    assert alone["0.velocity.network.heads.0.loc.weight"].abs().max() > 1e-3
    for name, expected in alone.items():
        if ".output." in name:
            assert len(expected) == IMAGES
            got = torch.cat((first[name], second[name]))
        elif ".loss." in name:
            got = first[name] + second[name]  # each rank's share of the mean
        else:
            assert torch.equal(first[name], second[name]), f"ranks disagree about {name}"
            got = first[name]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    if case == "empty":
        assert second["0.loss.loss"] == 0 and first["0.loss.loss"] > 0

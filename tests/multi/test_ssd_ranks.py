"""SSD on several processes: the same outputs, gradients, statistics, losses and metrics as on one, however images are cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from by_night import ONE_MORE
from PIL import Image
from small_run import Trainer, assert_joined, assert_same_statistics, losses
from ssd_rank import CLASSES, IMAGES, STEPS

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

RECIPES = Path(__file__).with_name("ssd_rank.py")
TRAIN, VAL = 19, 7  # validation shares of 7 images on 2 and 3 ranks are uneven
FLAGS = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1 --log-every 1"
FLAGS += f" --eval-every {STEPS}"


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
def ranks(zygote, tmp_path_factory) -> Trainer:
    """Starts ranks of ssd_rank.py."""
    return Trainer(zygote, tmp_path_factory.mktemp("ssd"), "ssd_rank", recipes=RECIPES, flags=FLAGS, photos=make_boxes)


def trained(ranks: Trainer, name: str, recipe: str, *, world: int = 1, images: int = 0) -> Path:
    """A training on `world` ranks with so many images in a forward; -> its folder."""
    run = ranks.folder / f"{name}-{recipe}"
    return ranks.finished(run, f"--system.micro-batch-size {images}", ranks=world, recipe=recipe)


@pytest.fixture(scope="module", params=[pytest.param("by_image", marks=ONE_MORE), "by_batch"])
def whole(request, ranks: Trainer) -> tuple[str, Path]:
    """Name of a recipe, and its run on one rank with all eight images in one forward."""
    return request.param, trained(ranks, "whole", request.param)


@pytest.mark.parametrize(
    ("world", "images"),
    [
        pytest.param(1, 4, id="2 forwards of 4", marks=ONE_MORE),  # so is the last
        pytest.param(2, 4, id="2 ranks of 4", marks=ONE_MORE),  # the next is this and more
        pytest.param(2, 2, id="2 ranks, 2 forwards of 2 that share statistics"),
    ],
)
def test_a_batch_cut_in_any_way_gives_the_same_losses_and_statistics(ranks, whole, world, images):
    recipe, alone = whole
    run = trained(ranks, f"cut-{world}-{images}", recipe, world=world, images=images)
    wanted = losses(alone)
    assert len(losses(run)) == STEPS and wanted[-1] < 0.9 * wanted[0]  # gradients had their say
    for name in ("loss", "loss_class", "loss_box"):
        assert losses(run, name) == pytest.approx(losses(alone, name), rel=2e-5, abs=1e-6)
    assert_same_statistics(run, alone, rtol=1e-4)


def test_both_ways_of_dividing_the_loss_are_not_the_same_run(ranks):
    runs = [ranks.folder / f"whole-{recipe}" for recipe in ("by_image", "by_batch")]
    first, other = (losses(run if run.exists() else trained(ranks, "whole", run.name[6:]))[0] for run in runs)
    assert abs(first - other) > 1e-3


def test_an_evaluation_is_identical_on_1_2_and_3_ranks(ranks, whole):
    one, two, three = (ranks.evaluated(whole[1], "--batch-size", "1", ranks=world) for world in (1, 2, 3))
    assert one == two == three
    scores, predictions = one
    assert scores["images"] == VAL
    assert sum(len(image["boxes"]) for image in json.loads(predictions)["images"]) > VAL


@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize(
    "case", [pytest.param("full", id="two ranks with objects"), pytest.param("empty", id="one rank without objects")]
)
def test_two_ranks_that_share_statistics_equal_one_process_with_the_joined_batch(ranks, case, over):
    (alone,), both = (ranks.found(case, over, ranks=world) for world in (1, 2))
    assert both[0].keys() == alone.keys()
    assert alone["0.velocity.network.heads.0.loc.weight"].abs().max() > 1e-3
    assert all(len(alone[name]) == IMAGES for name in alone if ".output." in name)
    # Of the mean loss each rank has a share.
    assert_joined(both, alone, halves=(".output.",), shares=(".loss.",))
    if case == "empty":
        assert both[1]["0.loss.loss"] == 0 and both[0]["0.loss.loss"] > 0

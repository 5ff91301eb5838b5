"""A set whose photos are stored turned trains and is scored exactly as the same set stored upright (`--input.exif apply`)."""

from __future__ import annotations

import dataclasses
import io
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from instance_sets import make_instances
from messages import raises
from orientation import encode, stored
from PIL import Image

from paceline._utils.errors import DataError
from paceline.config.recipe import Recipe
from paceline.config.recipes import RECIPES
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.models.batch_shapes import ResizedShape
from paceline.models.registry import WORKLOADS

NAMES = ("ssd-demo", "maskrcnn-demo")


def lossless(folder: Path, turn: bool) -> Path:
    """Every photo again as PNG, with all eight orientations by turns or upright."""
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            orientation = 1 + number % 8 if turn else 1
            path.write_bytes(encode(stored(image.convert("RGB"), orientation), orientation, "PNG"))
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> tuple[Manifest, Manifest]:
    folder = tmp_path_factory.mktemp("sets")
    upright = lossless(make_instances(folder / "upright", train=16, val=6), False)
    turned = lossless(shutil.copytree(upright, folder / "turned"), True)
    return prepare_boxes(upright), prepare_boxes(turned)


def equal(ours, wanted) -> None:
    """Arrays, tuples and dataclasses of them, bit for bit."""
    if dataclasses.is_dataclass(ours):
        ours, wanted = vars(ours), vars(wanted)
    if isinstance(ours, dict):
        ours, wanted = list(ours.items()), list(wanted.items())
    if isinstance(ours, tuple | list):
        assert len(ours) == len(wanted)
        for pair in zip(ours, wanted):
            equal(*pair)
    else:
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_samples_groups_and_truth_are_those_of_the_upright_set(sets, name):
    recipe = RECIPES[name]()
    upright, turned = (WORKLOADS[recipe.task].open(recipe, manifest) for manifest in sets)
    for epoch in range(2):
        for number in range(upright.data.train_images):
            equal(turned.data.sample(epoch, number), upright.data.sample(epoch, number))
    equal(turned.evaluator.truth, upright.evaluator.truth)
    for number in range(upright.data.val_images):
        side = (352, 352, 3) if name == "maskrcnn-demo" else (192, 192, 3)
        pictures = [np.zeros(side, np.uint8) for _ in range(2)]
        where = (256, (352, 352)) if name == "maskrcnn-demo" else (192, (192, 192))
        for task, out in zip((upright, turned), pictures):
            task.data.render(task.data.val_index, partial(task.data.draw_val, ResizedShape(*where)), 0, number, out)
        equal(*pictures)
    if name == "maskrcnn-demo":
        equal(turned.data.shapes.groups, upright.data.shapes.groups)
        assert turned.facts["hash"] != upright.facts["hash"]


@pytest.mark.parametrize("name", ["ssd", "maskrcnn"])
def test_a_recipe_that_ignores_rotations_is_refused_on_boxes_that_count_with_them(sets, name):
    recipe: Recipe = RECIPES[name]()
    with raises(DataError, "14 images", "EXIF", "train", "--input.exif apply"):
        WORKLOADS[recipe.task].open(recipe, sets[1])


def test_class_folders_give_the_upright_sets_photos(tmp_path):
    for name in ("cat", "dog"):
        for split in ("train", "val"):
            for number in range(4):
                path = tmp_path / "upright" / split / name / f"{number}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.effect_noise((70 + number, 50), 90).convert("RGB").save(path)
    upright = lossless(tmp_path / "upright", False)
    turned = lossless(shutil.copytree(upright, tmp_path / "turned"), True)
    recipe = RECIPES["classify-demo"]()
    tasks = [WORKLOADS["classification"].open(recipe, prepare_folder(root)) for root in (upright, turned)]
    for number in range(8):
        equal(tasks[1].data.sample(0, number), tasks[0].data.sample(0, number))
        pictures = [np.zeros((160, 160, 3), np.uint8) for _ in range(2)]
        for task, out in zip(tasks, pictures):
            task.data.render(
                task.data.val_index, partial(task.data.draw_val, ResizedShape(160, (160, 160))), 0, number, out
            )
        equal(*pictures)

"""Training from a packed set: the batches are the source's, bit for bit; sizes are torchvision's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instance_sets import make_instances
from tiny_runs import make_photos
from torchvision.transforms.functional import _compute_resized_output_size

from paceline.config.plan import make_plan
from paceline.config.recipe import override
from paceline.config.system import System
from paceline.data.manifest import Manifest
from paceline.pack.encode import smaller_size
from paceline.pack.pack import pack
from paceline.pack.request import PackRequest
from paceline.prepare.box_folder import ensure_boxes_prepared
from paceline.prepare.folder import ensure_prepared
from paceline.recipes import RECIPES
from paceline.tasks.task import Place
from paceline.workloads import WORKLOADS


def batches(name: str, folder: Path) -> list[torch.Tensor]:
    """Three training steps and all validation batches."""
    recipe = override(RECIPES[name](), {"global_batch": 8, "bn_span": 8, "optim.lr": 0.01})
    workload, system = WORKLOADS[recipe.task], System()
    task = workload.open(workload, recipe, Manifest.load(folder))
    images = {"train_images": task.train_images, "val_images": task.val_images}
    plan, place = make_plan(recipe, system, world=1, most=8, **images), Place(0, 1, torch.device("cpu"), 2)
    with (
        task.train_loader(plan, system, place, first=0, one_batch=False) as train,
        task.val_loader(4, system, place) as val,
    ):
        taken = [batch.to("cpu", copy=True) for _ in range(3) for batch in next(train)[1]]
        taken += [batch.to("cpu", copy=True) for _, (batch,) in val]
    return [tensor for batch in taken for tensor in vars(batch).values()]


@pytest.mark.parametrize(
    "name, to",
    [
        ("resnet50-tiny", "webdataset"),
        ("resnet50-tiny", "recordio"),
        ("ssd-tiny", "webdataset"),
        ("maskrcnn-tiny", "webdataset"),
    ],
)
def test_a_packed_set_gives_the_batches_of_its_source(name, to, tmp_path):
    photos, prepared = (make_photos, ensure_prepared) if "resnet" in name else (make_instances, ensure_boxes_prepared)
    folder = prepared(photos(tmp_path / "set", train=12, val=6), say=print)
    pack(Manifest.load(folder), PackRequest(to, shards=2), tmp_path / "out")
    assert prepared(tmp_path / "out", say=print) == tmp_path / "out"
    expected, found = batches(name, folder), batches(name, tmp_path / "out")
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(16, 600))
def test_sizes_are_torchvisions(height, width, short):
    wanted = (
        (height, width)
        if min(height, width) <= short
        else tuple(_compute_resized_output_size((height, width), [short]))
    )
    assert smaller_size(height, width, short) == wanted

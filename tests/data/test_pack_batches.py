"""Training from a packed set: the batches are the source's, bit for bit; sizes are torchvision's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instance_sets import make_instances
from set_batches import batches
from tiny_runs import make_photos
from torchvision.transforms.functional import _compute_resized_output_size

from paceline.data.index.manifest import Manifest
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import PackRequest, smaller_size
from paceline.data.prepare.auto_prepare import prepare_if_needed


@pytest.mark.parametrize(
    "name, to",
    [
        ("classify-demo", "webdataset"),
        ("classify-demo", "recordio"),
        ("ssd-demo", "webdataset"),
        ("maskrcnn-demo", "webdataset"),
    ],
)
def test_a_packed_set_gives_the_batches_of_its_source(name, to, tmp_path):
    photos, kind = (make_photos, "class-folder") if "classify" in name else (make_instances, "boxes")
    folder = prepare_if_needed(photos(tmp_path / "set", train=12, val=6), kind=kind)
    pack(Manifest.load(folder), PackRequest(to, num_shards=2), tmp_path / "out")
    assert prepare_if_needed(tmp_path / "out", kind=kind) == tmp_path / "out"
    expected, found = batches(name, folder), batches(name, tmp_path / "out")
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(16, 600))
def test_sizes_are_torchvisions(height, width, short):
    wanted = (
        (height, width) if min(height, width) <= short else tuple(_compute_resized_output_size((height, width), [short]))
    )
    assert smaller_size(height, width, short) == wanted

"""Our mask scores are pycocotools' to the last bit, and so are the masks that we make of annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from mask_scenes import Scene, mask_scene
from official_coco import assert_same, judge, loaded, results_of, size_of, truth_of
from pycocotools import mask as official
from pycocotools.coco import COCO

from paceline.data.index.box_split import BoxSplit, has_masks, open_boxes, read_object_masks
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.rle import RLE, decode_mask
from paceline.models.metrics.coco import Detections, GroundTruth, score_masks


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    images=st.integers(0, 6),
    objects=st.integers(0, 30),
    found=st.sampled_from([0, 1, 7, 40]),
    crowds=st.sampled_from([0.0, 0.3, 1.0]),
    ties=st.booleans(),
    grid=st.booleans(),
)
@example(seed=0, images=1, objects=10, found=400, crowds=0.1, ties=True, grid=True)  # over 100 a class in one image
@example(seed=1, images=5, objects=30, found=0, crowds=0.3, ties=False, grid=False)  # nothing found
@example(seed=2, images=5, objects=0, found=40, crowds=0.0, ties=False, grid=False)  # nothing to find
@example(seed=3, images=0, objects=0, found=0, crowds=0.0, ties=False, grid=False)  # no image
def test_random_scenes_score_as_pycocotools_scores_them(seed, images, objects, found, crowds, ties, grid):
    scene = mask_scene(seed, images, objects, found, crowds=crowds, ties=ties, grid=grid)
    truth, wanted, detections, masks = scene
    files = truth_of(truth, segmentation=lambda row, image: {"size": size_of(truth, image), "counts": wanted[row]})
    assert_same(score_masks(*scene), judge(files, results_of(truth, detections, masks=masks), "segm"))


def opened(root: Path, split: str) -> tuple[BoxSplit, COCO]:
    """A real set as we prepare it, and its JSON as pycocotools loads it."""
    found = open_boxes(Manifest.load(prepare_if_needed(root, kind="boxes")), split)
    return found, loaded(root / "annotations" / f"instances_{split}2017.json")


@pytest.mark.parametrize(("name", "crowds"), [("coco_mini", 3), ("facades10", 0)])
def test_annotations_become_the_strings_that_pycocotools_makes_of_them(shared_data: Path, name: str, crowds: int) -> None:
    split, files = opened(shared_data / name, "val")
    assert has_masks(split) and split.crowd.sum() == crowds
    masks, known = read_object_masks(split, np.arange(len(split)))
    assert known.all() and len(masks) == len(split.classes) > 400
    for counts, annotation in zip(masks, split.annotation_ids.tolist()):
        assert counts == files.annToRLE(files.anns[annotation])["counts"]
    few = np.array([7, 3, 40, 3])
    rows = np.concatenate([np.arange(split.object_starts[image], split.object_starts[image + 1]) for image in few])
    assert list(read_object_masks(split, few).masks) == list(masks.take(rows))
    assert len(read_object_masks(split, np.zeros(0, np.int64)).masks) == 0


def test_real_annotations_score_as_pycocotools_scores_the_file(shared_data: Path, seed: int) -> None:
    """Detections are the masks moved by a few pixels, some of a wrong class; ids, crowds and the empty image are COCO's own."""
    split, files = opened(shared_data / "coco_mini", "train")
    assert split.crowd.any() and (np.diff(split.object_starts) == 0).any()
    truth = GroundTruth(**split.truth_arrays(), num_classes=len(split.names))
    wanted = read_object_masks(split, np.arange(len(split))).masks
    draw = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(split)), np.diff(split.object_starts))
    rows = np.flatnonzero(draw.random(len(owner)) < 0.4)
    moved = []
    for row in rows:
        bits = decode_mask(wanted[row], int(truth.heights[owner[row]]), int(truth.widths[owner[row]]))
        bits = np.roll(bits, draw.integers(-3, 4, 2), (0, 1))
        moved.append(official.encode(np.asfortranarray(bits))["counts"])
    right = draw.random(len(rows)) < 0.8
    classes = np.where(right, truth.classes[rows], draw.integers(1, truth.num_classes + 1, len(rows)))
    found = Detections(owner[rows], np.zeros((len(rows), 4)), classes, draw.random(len(rows)).round(2))
    scene = Scene(truth, wanted, found, RLE.of(moved))
    judged = judge(files, results_of(truth, found, split.category_ids.tolist(), scene.masks), "segm")
    assert 0.05 < judged.stats[0] < 0.95
    assert_same(score_masks(*scene), judged)

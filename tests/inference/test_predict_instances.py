"""Objects with masks in photos: pixels of each photo whatever its shape, and what the command prints, draws and writes."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn import some
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from stand_in_predictors import gray, pixels_of, predictor_of, take_for_a_run_s
from tiny_runs import command
from torch import nn

from paceline.config.maskrcnn import RPN, InstanceFilter, InstanceInput, MaskHead, MaskRCNNModel, RoI
from paceline.config.recipe import Recipe
from paceline.data.batch import DetectedInstances, InstanceBatch
from paceline.inference.drawing.boxes import class_color
from paceline.inference.trained_model import TorchPredictor
from paceline.models.maskrcnn.model import init_mask_rcnn
from paceline.models.object_predictions import InstanceScore
from paceline.models.registry import WORKLOADS

# pycocotools itself does what numpy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# Two objects and an empty place: ltrb fractions, score, class. The first one's mask is its left half, the second's all.
ROWS = [[0.0, 0.0, 0.8, 0.5, 0.8, 1], [0.1, 0.25, 0.5, 0.75, 0.4, 2], [0, 0, 0, 0, 0, 0]]
SIDE = 28


class Segmenter(nn.Module):
    """Finds ROWS in every image, the scores scaled by the photo's mean so that photos can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[InstanceBatch] = []

    def predict(self, batch: InstanceBatch) -> DetectedInstances:
        self.seen.append(batch)
        rows = torch.tensor(ROWS).repeat(len(batch.images), 1, 1)
        for place, (height, width) in enumerate(batch.sizes.tolist()):
            rows[place, :, 4] *= batch.images[place, :, :height, :width].float().mean() / 255
        masks = torch.zeros(len(batch.images), len(ROWS), SIDE, SIDE)
        masks[:, 0, :, : SIDE // 2] = 1
        masks[:, 1] = 1
        return DetectedInstances(rows, masks)


def predictor(*, facts=None, **settings) -> TorchPredictor:
    recipe = Recipe(
        task="instance-segmentation", model=MaskRCNNModel(), input=InstanceInput(min_size=(64,), max_size=128, **settings)
    )
    return predictor_of(recipe, Segmenter(), facts=facts)


def test_boxes_and_masks_come_in_pixels_of_each_photo_without_the_empty_places(tmp_path):
    wide, tall = gray(tmp_path / "wide.png", (200, 100)), gray(tmp_path / "tall.jpg", (40, 80))
    for found, (width, height) in zip(predictor().predict([wide, tall]), ((200, 100), (40, 80)), strict=True):
        scale = np.array([width, height] * 2)
        assert (found.width, found.height) == (width, height)
        assert found.boxes_xywh == pytest.approx(np.array([[0, 0, 0.8, 0.5], [0.1, 0.25, 0.4, 0.5]]) * scale, abs=1e-4)
        assert (found.class_ids, found.names) == ((0, 1), ("cat", "dog"))
        assert found.scores == pytest.approx((0.8, 0.4))
        first, second = found.mask(0), found.mask(1)
        assert first.shape == second.shape == (height, width) and first.dtype == bool
        assert first.mean() == pytest.approx(0.4 * 0.5, abs=0.03) and not first[:, width // 2 :].any()
        assert second.mean() == pytest.approx(0.4 * 0.5, abs=0.05) and second[height // 2, width // 3]
        assert (coco_mask.decode(found.rle(1)) == second).all()


@pytest.mark.parametrize(
    "size, seen, padded",
    [
        ((200, 100), (64, 128), (64, 128)),  # width, height of the photo -> height, width in the input, and of the input
        ((100, 100), (64, 64), (64, 64)),
        ((640, 40), (8, 128), (32, 128)),  # the longer side has 128 pixels at most
        ((3, 700), (128, 1), (128, 32)),
        ((1, 1), (64, 64), (64, 64)),
    ],
)
def test_the_network_sees_the_whole_photo_in_the_top_left_corner_of_its_input(tmp_path, size, seen, padded):
    one = predictor(padding_mode="multiple")
    one.predict([gray(tmp_path / "x.png", size)])
    (batch,) = one.trained.model.seen
    assert tuple(batch.sizes[0].tolist()) == seen and tuple(batch.images.shape) == (1, 3, *padded)
    assert batch.images.dtype == torch.uint8
    assert (batch.images[0, :, : seen[0], : seen[1]] == 255).all()
    assert (batch.images.sum(dtype=torch.int64)) == 3 * 255 * seen[0] * seen[1]


def test_photos_keep_their_order_in_any_batch_and_whatever_they_are_given_as(tmp_path):
    shades, sizes = (255, 200, 100, 150, 250), ((64, 48), (48, 64), (64, 48), (64, 64), (60, 47))
    paths = [gray(tmp_path / f"{shade}.png", size, shade) for shade, size in zip(shades, sizes)]
    photos = [paths[0], str(paths[1]), np.asarray(Image.open(paths[2])), Image.open(paths[3]), paths[4]]
    for batch in (1, 2, 5):
        found = predictor().predict(photos, batch=batch)
        assert [one.scores[0] for one in found] == pytest.approx([0.8 * shade / 255 for shade in shades], abs=0.01)
        assert [(one.width, one.height) for one in found] == list(sizes)
        assert [one.file for one in found] == [str(paths[0]), str(paths[1]), "", "", str(paths[4])]
    assert predictor().predict([]) == []


def test_photos_of_one_shape_share_a_forward_and_others_never_change_it(tmp_path):
    paths = [gray(tmp_path / f"{place}.png", size) for place, size in enumerate(((90, 60), (60, 90), (90, 60)))]
    one = predictor()
    one.predict(paths, batch=3)
    assert sorted(len(batch.images) for batch in one.trained.model.seen) == [1, 2]


# A network -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untrained() -> TorchPredictor:
    """A small network with random weights that shows its twenty best guesses."""
    model = MaskRCNNModel(
        **{"depth": 10, "width": 8, "fpn_channels": 16, "norm": "batch", "freeze_stages": 0},
        rpn=RPN(pre_nms_topk_test=50, post_nms_topk_test=30),
        roi=RoI(fc_channels=32),
        mask=MaskHead(num_convs=1),
        detect=InstanceFilter(score_threshold=0.0, max_detections=20, topk_candidates=100),
    )
    recipe = Recipe(task="instance-segmentation", model=model, input=InstanceInput(min_size=(96,), max_size=160))
    network = WORKLOADS["instance-segmentation"].network.build(recipe, 2)
    init_mask_rcnn(network.network, torch.Generator().manual_seed(1))
    return predictor_of(recipe, network.eval(), classes=("a", "b"))


def test_a_photo_s_answer_is_what_evaluation_scores_and_does_not_depend_on_its_neighbours(untrained, shared_data, seed):
    photos = some(sorted((shared_data / "coco_mini" / "val2017").iterdir()), 3, seed)
    together, alone = untrained.predict(photos, batch=3), [untrained.predict([photo])[0] for photo in photos]
    for one, other in zip(together, alone, strict=True):
        assert len(one.scores) > 0
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
        assert one.boxes_xywh == pytest.approx(other.boxes_xywh, abs=1e-2)
    seen = []
    kept = untrained.trained.model.predict
    model = Segmenter()
    model.predict = lambda batch: seen.append((batch, kept(batch))) or seen[-1][1]  # type: ignore[method-assign]
    (found,) = TorchPredictor(replace(untrained.trained, model=model)).predict(photos[:1])
    score = InstanceScore(np.array([found.height]), np.array([found.width]))
    score.add(*seen[0])
    assert tuple(score.masks[0]) == found.masks_rle


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch):
    take_for_a_run_s(monkeypatch, lambda: predictor(facts={"data": {"category_ids": [7, 90]}}))


def test_predict_prints_draws_and_writes_what_coco_s_tools_take(loaded, tmp_path, capsys):
    photo = gray(tmp_path / "000000000139.png", (800, 400), 250)
    (tmp_path / "run").mkdir()
    said = command(capsys, "predict", tmp_path / "run", photo, "--output-dir", tmp_path / "out")
    assert said.code == 0 and f"{photo}: cat 0.78  dog 0.39" in said.out and "1 image in " in said.out
    (record,) = json.loads((tmp_path / "out" / "predictions.json").read_text())["images"]
    first, second = record["detections"]
    assert {name: first[name] for name in ("category_id", "name", "bbox", "score")} == {
        **{"category_id": 7, "name": "cat", "bbox": [0.0, 0.0, 640.0, 200.0]},
        "score": pytest.approx(0.8 * 250 / 255, abs=1e-4),
    }
    assert record["image_id"] == 139 and record["annotated_image"] == "000000000139.jpg"
    assert first["segmentation"]["size"] == [400, 800] and isinstance(first["segmentation"]["counts"], str)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": 139, "height": 400, "width": 800}],
            "categories": [{"id": 7}, {"id": 90}],
            "annotations": [],
        }
        truth.createIndex()
        taken = truth.loadRes(str(tmp_path / "out" / "coco_results.json"))
    assert (taken.annToMask(taken.anns[2]) == coco_mask.decode(second["segmentation"])).all()
    picture = pixels_of(tmp_path / "out" / "000000000139.jpg")
    assert picture.shape == (400, 800, 3)
    assert picture[50, 50].argmax() == np.argmax(class_color(1)) and np.ptp(picture[50, 50]) > 40  # inside the mask
    assert picture[100, 500].min() > 235  # in the box, outside the mask


def test_score_above_decides_whose_masks_are_drawn_but_not_what_is_written(loaded, tmp_path, capsys):
    photo, out = gray(tmp_path / "x.png", (800, 400)), tmp_path / "out"
    said = command(capsys, "predict", tmp_path, photo, "--output-dir", out, "--score-threshold", 0.5)
    assert "cat 0.80" in said.out and "dog" not in said.out
    assert pixels_of(out / "x.jpg")[280, 250].min() > 235  # the dog is not drawn
    written = json.loads((out / "predictions.json").read_text())["images"][0]["detections"]
    assert len(written) == 2 and all("segmentation" in one for one in written)

"""torchvision's Mask R-CNN and Faster R-CNN as oracles: with the same weights the same detections, losses and gradients.

Both sides compute in float64, so nothing here is a matter of which photo it is: what is equal in the arithmetic is equal to 1e-9.
Pictures are rendered shapes; by night also real photos; which ones, and the weights, follow from PACELINE_SEED. They are resized
beforehand: the same uint8 pixels go to both, and torchvision's own resize, told to make the shorter side what it is, changes
nothing (asserted). Weights come from numpy, a tensor's from its name.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_night import ONE_MORE
from PIL import Image
from pycocotools import mask as coco
from torch import Tensor
from torchvision.models.detection import FasterRCNN as TorchvisionFasterRCNN
from torchvision.models.detection import MaskRCNN as TorchvisionMaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import FrozenBatchNorm2d
from trajectories import in_float64

from paceline.config.maskrcnn import InstanceInput, MaskRCNNModel
from paceline.data.batch import InstanceBatch, InstanceObjects, instance_batch
from paceline.data.shapes.render import render_shapes
from paceline.models.batch_shapes import padded_shape
from paceline.models.maskrcnn.module import ANCHOR_STREAM, REGION_STREAM, MaskRCNN, MaskRCNNWithLoss
from paceline.models.ops.sampling import random_bits, sample_candidates

CLASSES = 90
PAIRS = 60  # of a region and a class that are above the threshold in an image, before suppression
INPUT = InstanceInput(padding_mode="multiple")
# Factors on the filled numbers: what is summed up through 50 layers comes back to about 1, and class scores are far apart.
SCALES = {
    "rpn.head.bbox_pred.weight": 0.1,
    "roi_heads.box_predictor.cls_score.weight": 6.0,
    "roi_heads.box_predictor.cls_score.bias": 6.0,
    "roi_heads.box_predictor.bbox_pred.weight": 0.25,
    "roi_heads.box_predictor.bbox_pred.bias": 0.5,
    **{f"backbone.fpn.layer_blocks.{level}.0.weight": 2e-3 for level in range(4)},
}
# Variances so small that an epsilon of 1e-5 is half a percent of them, and gains that make up for them.
VARIANCE = 1e-3


@dataclass(frozen=True)
class Pictures:
    """A data set in COCO's layout, and the names of a wide and a tall picture of it, both with objects."""

    folder: Path
    table: dict[str, Any]
    wide: str
    tall: str


@pytest.fixture(scope="module", params=["shapes", pytest.param("photos", marks=ONE_MORE)])
def pictures(request, tmp_path_factory, seed) -> Pictures:
    if request.param == "shapes":
        folder = tmp_path_factory.mktemp("shapes")
        # 4 of 10 are wide and 4 tall: of 12, one draw in 500 has none of one kind.
        render_shapes("boxes", folder, train=1, val=40, side=192, seed=seed, processes=1)
    else:
        folder = request.getfixturevalue("shared_data") / "coco_mini"
    table = json.loads((folder / "annotations" / "instances_val2017.json").read_text())
    outlined = {row["image_id"] for row in table["annotations"] if not row["iscrowd"] and row["area"] > 0}
    rows = [image for image in table["images"] if image["id"] in outlined]
    random = np.random.default_rng(seed)
    wide, tall = (
        str(random.choice(sorted(row["file_name"] for row in rows if fits(row["width"] / row["height"]))))
        for fits in (lambda shape: shape > 1.1, lambda shape: shape < 1 / 1.1)
    )
    return Pictures(folder, table, wide, tall)


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Both sides compute in float64."""
    with in_float64():
        yield


def filled(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    values = np.random.RandomState(zlib.crc32(name.encode()) ^ seed).standard_normal(shape).astype(np.float32)
    if name.endswith("running_var"):
        values = VARIANCE * (np.abs(values) + 0.5)
    elif name.endswith("running_mean"):
        values = 0.1 * VARIANCE**0.5 * values
    elif name.endswith("bias"):
        values = 0.1 * values
    elif values.ndim == 1:
        values = VARIANCE**0.5 * (1 + 0.1 * values)
    else:
        values *= np.sqrt(2 / np.prod(shape[1:])).astype(np.float32)
    return torch.from_numpy(values.astype(np.float32)) * SCALES.get(name, 1.0)


@pytest.fixture(
    scope="module",
    params=[
        (18, True),
        pytest.param((18, False), marks=ONE_MORE),
        pytest.param((50, True), marks=ONE_MORE),
        pytest.param((50, False), marks=ONE_MORE),
    ],
    ids=lambda of: f"{'Mask' if of[1] else 'Faster'} R-CNN, ResNet-{of[0]}",
)
def settings(request) -> MaskRCNNModel:
    """torchvision's rules, over fewer proposals with ResNet-18, so that it takes seconds."""
    depth, masks = request.param
    full = MaskRCNNModel(depth=depth, masks=masks)
    few = replace(full.rpn, pre_nms_topk_train=300, post_nms_topk_train=200, pre_nms_topk_test=300, post_nms_topk_test=200)
    if depth == 50:
        return full
    return replace(
        full,
        rpn=few,
        roi=replace(full.roi, fc_channels=128, samples_per_image=128),
        detect=replace(full.detect, max_detections=20),
    )


@pytest.fixture(scope="module")
def state(settings, seed) -> dict[str, Tensor]:
    shapes = {name: tuple(tensor.shape) for name, tensor in network(settings).state_dict().items()}
    return {name: filled(name, shape, seed).double() for name, shape in shapes.items()}


def network(settings: MaskRCNNModel) -> MaskRCNN:
    return MaskRCNN(settings, CLASSES)


def ours(state: dict[str, Tensor], settings: MaskRCNNModel) -> MaskRCNNWithLoss:
    made = network(settings)
    made.load_state_dict(state)
    return MaskRCNNWithLoss(made, mean=INPUT.mean, std=INPUT.std, settings=settings)


def theirs(state: dict[str, Tensor], monkeypatch, settings: MaskRCNNModel) -> TorchvisionFasterRCNN:
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_"):  # its first weights are all overwritten
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    trunk = resnet_fpn_backbone(
        backbone_name=f"resnet{settings.depth}", weights=None, trainable_layers=5,
        norm_layer=partial(FrozenBatchNorm2d, eps=settings.bn_eps),
    )  # fmt: skip
    rpn, width = settings.rpn, settings.roi.fc_channels
    masks = {"mask_predictor": MaskRCNNPredictor(256, 256, CLASSES + 1)} if settings.masks else {}
    made = (TorchvisionMaskRCNN if settings.masks else TorchvisionFasterRCNN)(
        trunk, None, box_head=TwoMLPHead(256 * 7**2, width), box_predictor=FastRCNNPredictor(width, CLASSES + 1),
        **masks, rpn_post_nms_top_n_test=rpn.post_nms_topk_test,
        rpn_pre_nms_top_n_train=rpn.pre_nms_topk_train, rpn_post_nms_top_n_train=rpn.post_nms_topk_train,
        rpn_pre_nms_top_n_test=rpn.pre_nms_topk_test, box_detections_per_img=settings.detect.max_detections,
    )  # fmt: skip
    made.load_state_dict(state, strict=True)
    return made


def photo(pictures: Pictures, name: str, short: int) -> Tensor:
    """(3, h, w) uint8, shorter side `short`."""
    with Image.open(pictures.folder / "val2017" / name) as file:
        picture = file.convert("RGB")
    factor = short / min(picture.size)
    picture = picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def batch_of(photos: Sequence[Tensor], objects: Sequence[InstanceObjects] | None = None) -> InstanceBatch:
    height, width = padded_shape(*(max(side) for side in zip(*(entry.shape[1:] for entry in photos))), INPUT, 0)
    images = torch.full((len(photos), 3, height, width), 77, dtype=torch.uint8)  # whatever lies in the padding
    for row, entry in zip(images, photos):
        row[:, : entry.shape[1], : entry.shape[2]] = entry
    none = np.zeros((0, 4), np.float32)
    blank = [
        InstanceObjects(none, np.zeros(0, np.int64), np.zeros((0, 2, 2), np.uint8), none, tuple(entry.shape[1:]), 0)
        for entry in photos
    ]
    return instance_batch(images, objects or blank, torch.arange(len(photos)))


def unresized(model: TorchvisionFasterRCNN, photos: Sequence[Tensor]) -> list[Tensor]:
    """Its input in 0..1, and its resize told to do nothing."""
    model.transform.min_size = (min(photos[0].shape[1:]),)
    inputs = [entry / 255 for entry in photos]
    for entry in inputs:
        assert torch.equal(model.transform.resize(entry, None)[0], entry)
    return inputs


def background_for(model: TorchvisionFasterRCNN, photos: Sequence[Tensor]) -> float:
    """What to add to the background's logit so that PAIRS pairs of each image, or more, are above the threshold."""
    seen: list[Tensor] = []
    heard = model.roi_heads.box_predictor.register_forward_hook(lambda module, given, found: seen.append(found[0]))
    model(unresized(model, photos))
    heard.remove()
    # Above it: exp(own) > 0.05 (all), solved for the background's share of all.
    others = seen[0][:, 1:].logsumexp(1, keepdim=True)
    room = torch.log((20 * seen[0][:, 1:].exp() - others.exp()).clamp(min=1e-300)) - seen[0][:, :1]
    ordered = torch.cat(
        [part.flatten().sort(descending=True).values[None, PAIRS - 1 : PAIRS + 1] for part in room.chunk(len(photos))]
    )
    # Between two pairs: of an image that has just as many, none may stand at the threshold itself.
    return float(ordered.mean(dim=1).min())


@pytest.mark.parametrize(
    ("eps", "kinds"),
    [
        pytest.param(1e-5, "both", id="a wide and a tall one in a batch"),
        pytest.param(0.0, "wide", id="COCO_V1's epsilon", marks=ONE_MORE),
        pytest.param(1e-5, "tall", id="a tall one alone", marks=ONE_MORE),
    ],
)
def test_detections_and_masks_are_torchvisions(pictures, settings, state, monkeypatch, eps, kinds) -> None:
    names = [pictures.wide, pictures.tall] if kinds == "both" else [getattr(pictures, kinds)]
    photos = [photo(pictures, name, 128) for name in names]
    settings = replace(settings, bn_eps=eps)
    other = theirs(state, monkeypatch, settings).eval()
    bias = "roi_heads.box_predictor.cls_score.bias"
    with torch.inference_mode():
        state = {**state, bias: state[bias] + background_for(other, photos) * torch.eye(CLASSES + 1)[0]}
        other.roi_heads.box_predictor.cls_score.bias.copy_(state[bias])
        expected = other(unresized(other, photos))
        found = ours(state, settings).eval().predict(batch_of(photos))
    assert (found.masks is not None) == settings.masks
    every = found.masks if settings.masks else [None] * len(photos)
    for entry, theirs_found, table, masks in zip(photos, expected, found.detections, every):
        count, scores = len(theirs_found["labels"]), theirs_found["scores"]
        assert count >= 5 and scores.dtype == table.dtype == torch.float64
        assert not table[count:].any()
        height, width = entry.shape[1:]
        boxes = table[:count, :4] * torch.tensor([width, height, width, height])
        assert torch.equal(table[:count, 5].long(), theirs_found["labels"])
        assert float((boxes - theirs_found["boxes"]).abs().max()) < 1e-6
        assert float((table[:count, 4] - scores).abs().max()) < 1e-9
        if masks is None:
            assert "masks" not in theirs_found
            continue
        assert not masks[count:].any()
        pasted = paste_masks_in_image(masks[:count].unsqueeze(1), boxes, (height, width)) > 0.5
        theirs_pasted = theirs_found["masks"] > 0.5
        assert theirs_pasted.any() and not theirs_pasted.all()
        assert torch.equal(pasted, theirs_pasted)


class SameSample:
    """torchvision's sampler with our choice: positions are ours, whose objects' boxes follow after all places of proposals."""

    def __init__(self, batch: InstanceBatch, stream: int, count: int, share: float, places: int | None) -> None:
        """places: for proposals in ours; None for anchors."""
        self.batch, self.stream, self.count, self.share, self.places = batch, stream, count, share, places
        self.positives: list[int] = []

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
        for row, key, objects in zip(labels, self.batch.keys, (self.batch.labels > 0).sum(dim=1).tolist()):
            place, total = torch.arange(len(row)), len(row)
            if self.places is not None:
                place[len(row) - objects :] = self.places + torch.arange(objects)
                total = self.places + self.batch.labels.shape[1]
            bits = random_bits(key.view(1), total, self.stream)[:, place]
            drawn = sample_candidates(
                (row >= 1).unsqueeze(0), (row == 0).unsqueeze(0), bits,
                count=self.count, most_positive=int(self.count * self.share), fill="negatives",
            )  # fmt: skip
            for masks, kind in zip(chosen, (drawn.positive, ~drawn.positive)):
                rows = drawn.places[drawn.taken & kind]
                masks.append(torch.zeros(len(row), dtype=torch.bool).index_fill(0, rows, True))
            self.positives.append(int(drawn.positive.sum()))
        return chosen


def objects_of(
    table: dict[str, Any], name: str, shape: Sequence[int], key: int
) -> tuple[InstanceObjects, dict[str, Tensor]]:
    """A photo's objects at the input's resolution, as the input path hands them over and as torchvision wants them.

    name    of the photo; "" has no objects
    """
    height, width = shape[1:]
    side = max(height, width)
    images = {row["id"]: row for row in table["images"] if row["file_name"] == name}
    bitmaps, labels = [], []
    for row in table["annotations"]:
        if (image := images.get(row["image_id"])) and not row["iscrowd"]:
            whole = coco.decode(coco.merge(coco.frPyObjects(row["segmentation"], image["height"], image["width"])))
            bitmap = np.array(Image.fromarray(whole).resize((width, height), Image.Resampling.NEAREST))
            if bitmap.any():
                bitmaps.append(bitmap)
                labels.append(row["category_id"])
    boxes, canvases, frames = [], [], []
    for bitmap in bitmaps:
        rows, columns = bitmap.any(axis=1).nonzero()[0], bitmap.any(axis=0).nonzero()[0]
        left, top = int(columns[0]), int(rows[0])
        # A quarter of a pixel off the bitmap's own edges, as annotated boxes are anywhere.
        boxes.append((left + 0.25, top + 0.25, columns[-1] + 0.75, rows[-1] + 0.75))
        ring = np.pad(bitmap, ((1, side), (1, side)), mode="edge")
        canvases.append(ring[top : top + side + 2, left : left + side + 2])
        frames.append((left, top, 1, 1))
    return InstanceObjects(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(labels, np.int64),
        np.array(canvases, np.uint8).reshape(-1, side + 2, side + 2),
        np.array(frames, np.float32).reshape(-1, 4),
        (height, width),
        key,
    ), {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "masks": torch.from_numpy(np.array(bitmaps, np.uint8).reshape(-1, height, width)),
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' own
def test_training_losses_and_gradients_are_torchvisions_for_the_same_samples(
    pictures, settings, state, monkeypatch, seed
) -> None:
    photos = [photo(pictures, name, 96) for name in (pictures.wide, pictures.tall, pictures.wide)]
    shapes = [entry.shape for entry in photos]
    pairs = [
        objects_of(pictures.table, name, shape, key)
        for name, shape, key in zip((pictures.wide, pictures.tall, ""), shapes, (7 + seed, 2**32 - 1 - seed, 5 + seed))
    ]
    side = max(entry.canvases.shape[-1] for entry, _ in pairs)
    pairs = [(replace(entry, canvases=np.pad(entry.canvases, ((0, 0), *2 * [(0, side - entry.canvases.shape[-1])]))), row)
             for entry, row in pairs]  # fmt: skip
    assert [len(row["labels"]) > 0 for _, row in pairs] == [True, True, False]
    settings = replace(
        settings, roi=replace(settings.roi, samples_per_image=64), rpn=replace(settings.rpn, samples_per_image=128)
    )
    rpn, roi = settings.rpn, settings.roi
    batch = batch_of(photos, [entry for entry, _ in pairs])

    model = ours(state, settings).train()
    looked = []
    look = model.propose
    monkeypatch.setattr(model, "propose", lambda images: looked.append(look(images)) or looked[-1])
    found = model(batch)
    terms = (found["sums"].sum(0) / found["counts"].sum(0)).unbind()

    other = theirs(state, monkeypatch, settings).train()
    other.rpn.fg_bg_sampler = SameSample(batch, ANCHOR_STREAM, rpn.samples_per_image, rpn.positive_fraction, None)
    other.roi_heads.fg_bg_sampler = SameSample(
        batch, REGION_STREAM, roi.samples_per_image, roi.positive_fraction, rpn.post_nms_topk_train
    )
    filter_proposals = other.rpn.filter_proposals

    def same_proposals(*inputs) -> tuple[list[Tensor], list[Tensor]]:
        """Ours, after a look that they are theirs, in their order."""
        boxes, scores = filter_proposals(*inputs)
        mine = [regions[valid] for regions, valid in zip(looked[0].regions, looked[0].valid)]
        assert [len(one) for one in mine] == [len(one) for one in boxes]
        for one, theirs_one in zip(mine, boxes):
            apart = torch.cdist(one, theirs_one, p=torch.inf)
            assert float(apart.diagonal().max()) < 1e-6
        return mine, scores

    monkeypatch.setattr(other.rpn, "filter_proposals", same_proposals)
    for module in (other.backbone.body.conv1, other.backbone.body.layer1):
        module.requires_grad_(False)
    losses = other(unresized(other, photos), [row for _, row in pairs])
    assert other.rpn.fg_bg_sampler.positives[2] == 0 and min(other.rpn.fg_bg_sampler.positives[:2]) > 0
    assert min(other.roi_heads.fg_bg_sampler.positives[:2]) > 0
    names = ("loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask")[: len(terms)]
    assert losses.keys() == set(names)
    for term, name in zip(terms, names):
        assert term.item() == pytest.approx(losses[name].item(), rel=1e-9), name

    torch.stack(terms).sum().backward()
    torch.stack([losses[name] for name in names]).sum().backward()
    expected = dict(other.named_parameters())
    errors = {}
    for name, parameter in model.network.named_parameters():
        gradient, wanted = parameter.grad, expected[name].grad
        assert (gradient is None) == (wanted is None) == name.startswith(("backbone.body.conv1", "backbone.body.layer1"))
        if gradient is not None and wanted is not None:
            errors[name] = float((gradient - wanted).norm() / wanted.norm())
    assert len(errors) > 40 and max(errors.values()) < 1e-7, errors

"""A detector without default boxes, in one file outside the package: an object is a peak on its class's map, with a size.

    paceline train tests/center_points.py:recipe          # the built-in shapes

It brings a network, its loss, its first weights and its settings. Photos, boxes, evaluation, answers and pictures are SSD's.

Letters: B images   K classes   G object slots of an image   H, W cells of the maps, 8 pixels each   D places for detections
Sources: Zhou et al. 2019, "Objects as Points"; ellipses instead of circles: Liu et al. 2020, "Training-Time-Friendly Network".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.constraints import BelowOne, Count, check_bounds
from paceline.config.recipe import Recipe
from paceline.config.recipes.ssd import demo
from paceline.config.resnet import BackboneModel, Depth
from paceline.config.ssd import BoxInput, SSDModel, SSDParity, check_detection
from paceline.data.batch import Batch, DetectionBatch
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.layers.common import Conv2d, Normalize, init_layers
from paceline.models.ssd.workload import SSD
from paceline.models.workload import NetworkFactory

# Standard deviation of a peak along an axis, of the object's side there (TTFNet's 0.54 / 6); its least, in cells; and the
# probability of a peak before anything is learned (Lin et al. 2017, "Focal Loss for Dense Object Detection").
PEAK, MIN_PEAK, PRIOR = 0.54 / 6, 0.4, 0.01


@dataclass(frozen=True)
class Peaks:
    """From maps to detections."""

    score_threshold: BelowOne = 0.01  # a peak's score must be above this
    max_detections: Count = 100  # detections of an image at most


@dataclass(frozen=True)
class CenterModel(BackboneModel):
    """A trunk whose maps of stride 8 to 32 are added up, coarse to fine, to one that a single convolution reads."""

    depth: Depth = 10  # layers of the ResNet
    width: Count = 32  # filters of the stem; the stages have 1, 2, 4 and 8 times as many
    channels: Count = 64  # filters of the map that is read
    detect: Peaks = field(default_factory=Peaks)  # decoding
    parity: SSDParity = field(default_factory=SSDParity)  # as the task of SSD reads it


CenterRecipe = Recipe[CenterModel, BoxInput]


def recipe() -> CenterRecipe:
    """ssd-demo's data treatment, optimizer and schedule."""
    return replace(demo(), task=f"{__file__}:CENTERS", model=CenterModel(), target=(("box_ap", 0.30),))


def check(recipe: CenterRecipe) -> None:
    """Raises RecipeError naming the flag."""
    check_bounds(recipe)
    check_detection(replace(recipe, model=SSDModel()))


class CenterPoints(nn.Module):
    """Pixels and objects in, losses out; pixels in, detections out."""

    def __init__(self, recipe: CenterRecipe, classes: int) -> None:
        super().__init__()
        self.settings, self.classes = recipe.model, classes
        self.normalize = Normalize(recipe.input.mean, recipe.input.std)
        self.body = build_backbone(recipe.model, BackboneSpec())
        count = recipe.model.channels
        self.laterals = nn.ModuleList(Conv2d(inputs, count, 1) for inputs in self.body.channels[1:])
        self.blocks = nn.ModuleList(
            nn.Sequential(Conv2d(count, count, 3, padding=1, bias=False), BatchNorm(count), nn.ReLU(inplace=True))
            for _ in self.laterals
        )
        self.head = Conv2d(count, classes + 4, 1)

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, 8 H, 8 W) uint8 -> logits of the peaks (B, K, H, W) and boxes as `targets` has them (B, 4, H, W), float32."""
        stages = zip(self.laterals, self.body(self.normalize(images))[1:])
        fine, middle, coarse = (lateral(stage) for lateral, stage in stages)
        middle = middle + F.interpolate(self.blocks[2](coarse), middle.shape[2:])
        fine = fine + F.interpolate(self.blocks[1](middle), fine.shape[2:])
        maps = self.head(self.blocks[0](fine)).float()
        return maps[:, : self.classes], maps[:, self.classes :]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """-> float32 scalars "loss" and its parts "peak", "class" and "box": sums over each image's objects, divided by their
        number, summed over the images. In an image without objects only false peaks count."""
        assert isinstance(batch, DetectionBatch)
        logits, boxes = self.maps(batch.images)
        target, cell, box = targets(batch.boxes, batch.labels, self.classes, logits.shape[2:])
        there = (batch.labels > 0).float()
        count = there.sum(1, keepdim=True).clamp(min=1)
        # The focal loss hardly minds a wrong class of small probability: this tells classes apart.
        kind = F.cross_entropy(at(logits, cell), (batch.labels - 1).clamp(min=0), reduction="none")
        peak = (focal_loss(logits, target).flatten(1) / count).sum()
        kind, box = (kind * there / count).sum(), ((at(boxes, cell) - box).abs().sum(1) * there / count).sum()
        return {"loss": peak + kind + box, "peak": peak, "class": kind, "box": box}

    def predict(self, batch: Batch) -> Tensor:
        """-> (B, D, 6) float32: ltrb as fractions of the input, score, class 1..K; best first, empty places zeros."""
        logits, boxes = self.maps(batch.images)
        height, width = logits.shape[2:]
        detect, scores = self.settings.detect, logits.sigmoid() * logits.softmax(1)
        scores = scores * (F.max_pool2d(scores, 3, 1, padding=1) == scores)  # the best of the nine cells around it
        score, place = scores.flatten(1).topk(min(detect.max_detections, scores[0].numel()))
        cell, label = place % (height * width), place // (height * width) + 1
        across, down, wide, high = at(boxes, cell).unbind(1)
        x, y = (cell % width + across) / width, (cell // width + down) / height
        right, lower = wide.exp() / width / 2, high.exp() / height / 2
        rows = torch.stack((x - right, y - lower, x + right, y + lower, score, label.float()), 2)
        return F.pad(
            rows.where((score > detect.score_threshold).unsqueeze(2), 0.0), (0, 0, 0, detect.max_detections - rows.shape[1])
        )


def at(maps: Tensor, cell: Tensor) -> Tensor:
    """(B, C, H, W) and numbers of cells (B, G) -> (B, C, G)."""
    return maps.flatten(2).gather(2, cell.unsqueeze(1).expand(-1, maps.shape[1], -1))


def targets(boxes: Tensor, labels: Tensor, classes: int, size: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """What the maps should say.

    boxes   (B, G, 4) ltrb fractions, labels (B, G), size (H, W)
    return  (B, K, H, W): 1 at an object's center cell, an ellipse of its shape around it, the highest where several meet;
            (B, G) number of that cell; (B, 4, G) where in it the center lies and the logarithms of the sides, in cells
    """
    height, width = size
    cells = boxes.new_tensor([width, height])
    center = (boxes[..., :2] + boxes[..., 2:]) / 2 * cells
    side = ((boxes[..., 2:] - boxes[..., :2]) * cells).clamp(min=0.01)
    corner = torch.minimum(center.floor(), cells - 1)
    wide, high = (side * PEAK).clamp(min=MIN_PEAK).split(1, 2)
    x, y = (torch.arange(count, device=boxes.device) for count in (width, height))
    across, down = ((x - corner[..., :1]) / wide) ** 2, ((y - corner[..., 1:]) / high) ** 2
    ellipses = torch.exp(-(down.unsqueeze(3) + across.unsqueeze(2)) / 2)
    # A maximum is the same in any order, so this scatter has one answer. Class 0 takes the empty slots.
    maps = boxes.new_zeros(len(boxes), classes + 1, height, width)
    maps.scatter_reduce_(1, labels[..., None, None].expand_as(ellipses), ellipses, "amax")
    cell, box = corner[..., 1] * width + corner[..., 0], torch.cat((center - corner, side.log()), 2)
    return maps[:, 1:], cell.long(), box.transpose(1, 2)


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Of each entry, penalty-reduced (Law and Deng 2018): a target of 1 is a peak; another is none, the less wrong the nearer to 1."""
    other = (1 - target) ** 4 * logits.sigmoid() ** 2 * F.softplus(logits)
    return torch.where(target == 1, (-logits).sigmoid() ** 2 * F.softplus(-logits), other)


@torch.no_grad()
def initialize(model: CenterPoints, generator: torch.Generator) -> None:
    """First weights: convolutions N(0, 2 / fan_out); the head says PRIOR and a box of exp(2) cells, 59 pixels, almost everywhere."""
    model.body.draw("torchvision", generator, zero_init_residual=False)
    for part in (model.laterals, model.blocks, model.head):
        init_layers(part, "torchvision", generator)
    model.head.weight.normal_(std=0.01, generator=generator)
    model.head.bias.copy_(torch.tensor([math.log(PRIOR / (1 - PRIOR))] * model.classes + [0.5, 0.5, 2.0, 2.0]))


class CenterNetwork(NetworkFactory):
    """Photos, boxes, evaluation, answers and pictures are SSD's."""

    def check(self, recipe: CenterRecipe) -> None:
        check(recipe)

    def build(self, recipe: CenterRecipe, classes: int) -> CenterPoints:
        return CenterPoints(recipe, classes)

    def initialize(self, recipe: CenterRecipe, model: CenterPoints, generator: torch.Generator) -> None:
        initialize(model, generator)


CENTERS = replace(
    SSD,
    about="centre points: objects by their boxes",
    model=CenterModel(),
    network=CenterNetwork(),
    reporting=replace(SSD.reporting, benchmark=""),
)

"""What both sides of maskrcnn.py start from: first weights and batches of real photos with masks.

It lies in a folder DUMP: `first.pth`, our network's weights under torchvision's names, and `batches.npz` with the arrays of step t's
InstanceBatch under "t.name", and of the anchors that were drawn for it under "t.places" and "t.positive"; "drop" is the step
from which the rate is a tenth.
Letters: B images of a step   T steps   n objects   h, w a photo in the input of H, W   S sampled anchors
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from verdict import one_ulp_away

from paceline.config.maskrcnn import InstanceInput
from paceline.config.recipes.maskrcnn import MaskRCNNRecipe
from paceline.data.batch import InstanceBatch, instance_batch
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.batch_shapes import padded_shape
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.registry import WORKLOADS

CLASSES = 80
MAX_OBJECTS = 15  # of an image
WORKLOAD = WORKLOADS["instance-segmentation"]
NORMS = (".bn", ".downsample.1.", "running_")  # in names of what is no layer's weight


def first_weights(recipe: MaskRCNNRecipe, photos: list[Tensor]) -> dict[str, Tensor]:
    """Weights by the recipe's law, with what training would have given a trunk that comes trained.

    Frozen statistics are those of the photos, so that activations have a size; last gammas of residual units are a fifth, else the
    untrained depth magnifies rounding; biases are N(0, 0.1^2), so that their decay is seen.
    photos: (B, 3, H, W) float32, normalized, one or more
    """
    model = WORKLOAD.network.build(recipe, CLASSES)
    random = torch.Generator().manual_seed(recipe.seed)
    WORKLOAD.network.initialize(recipe, model, random)
    state = {name: tensor.detach().clone() for name, tensor in model.network.state_dict().items()}
    for name, tensor in state.items():
        if name.endswith(".bias") and not any(part in name for part in NORMS):
            tensor.normal_(0, 0.1, generator=random)
        elif name.endswith("bn3.weight"):
            tensor.fill_(0.2)
    trunk = torchvision.models.resnet50(weights=None, norm_layer=lambda channels: nn.BatchNorm2d(channels, momentum=None))
    body = {name.removeprefix("backbone.body."): tensor for name, tensor in state.items() if "backbone.body." in name}
    trunk.load_state_dict(body, strict=False)
    trunk.train()
    with torch.no_grad():
        for images in photos:
            trunk(images)
    for name, tensor in trunk.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            state[f"backbone.body.{name}"].copy_(tensor)
    return state


def nudged(state: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Weights and biases of all layers but the norms moved by one unit in the last place; seed 0: as they are."""
    if not seed:
        return dict(state)
    layers = {name: tensor.numpy() for name, tensor in state.items() if not any(part in name for part in NORMS)}
    return {**state, **{name: torch.from_numpy(array) for name, array in one_ulp_away(layers, seed).items()}}


def make_batches(recipe: MaskRCNNRecipe, data: Path, steps: int, *, whole: bool) -> list[InstanceBatch]:
    """T batches of real photos, drawn and flipped by our input path; none has more than MAX_OBJECTS objects.

    whole: only photos that need no padding
    """
    task = cast(Any, WORKLOAD.open(recipe, Manifest.load(prepare_if_needed(data, kind="boxes"))))
    made, place, count = [], 0, recipe.global_batch_size
    while len(made) < steps:
        samples = []
        while len(samples) < count:
            pixels, objects = task.data.sample(*divmod(place, task.data.train_images))
            place += 1
            if 0 < len(objects.classes) <= MAX_OBJECTS and (not whole or not any(side % 32 for side in objects.size)):
                samples.append((pixels, objects))
        shape = padded_shape(*(max(side) for side in zip(*(objects.size for _, objects in samples))), recipe.input, 0)
        images = torch.zeros(count, 3, *shape, dtype=torch.uint8)
        for image, (pixels, objects) in zip(images, samples):
            image[:, : objects.size[0], : objects.size[1]] = torch.from_numpy(pixels).permute(2, 0, 1)
        made.append(instance_batch(images, [objects for _, objects in samples], torch.arange(count)))
    return made


def write_start(dump: Path, recipe: MaskRCNNRecipe, data: Path, steps: int) -> None:
    """DUMP's two files."""
    batches = make_batches(recipe, data, steps, whole=recipe.model.parity.roi_pooling == "average")
    model = WORKLOAD.network.build(recipe, CLASSES)
    assert isinstance(model, MaskRCNNWithLoss)
    torch.save(first_weights(recipe, [photos_of(batch) for batch in batches[:4]]), dump / "first.pth")
    arrays: dict[str, Any] = {"drop": np.array(drop_of(steps))}
    for step, batch in enumerate(batches):
        arrays |= {f"{step}.{name}": tensor.numpy() for name, tensor in batch.tensors().items()}
        height, width = batch.images.shape[2:]
        maps = [torch.empty(1, 1, -(-height // stride), -(-width // stride)) for stride in model.network.backbone.strides]
        chosen, _ = model._sample_anchors(batch, torch.cat(model._anchors_of(batch.images, maps)))
        places = chosen.places.masked_fill(~chosen.taken, -1)
        arrays |= {f"{step}.places": places.numpy(), f"{step}.positive": chosen.positive.numpy()}
    np.savez(dump / "batches.npz", **arrays)


def drop_of(steps: int) -> int:
    """The step from which a run of so many has a tenth of the rate; never within the warm-up."""
    return max(24, steps * 4 // 5)


def read_drop(dump: Path) -> int:
    with np.load(dump / "batches.npz") as file:
        return int(file["drop"])


def read_batches(dump: Path, steps: int) -> list[tuple[InstanceBatch, Mapping[str, Tensor]]]:
    """The first batches, and beside each the sampled anchors: "places" (B, S), -1 where none is, and "positive" (B, S)."""
    names = ("images", "labels", "indices", "boxes", "sizes", "keys", "canvases", "frames")
    with np.load(dump / "batches.npz") as file:
        return [
            (
                InstanceBatch(**{name: torch.from_numpy(file[f"{step}.{name}"]) for name in names}),
                {name: torch.from_numpy(file[f"{step}.{name}"]) for name in ("places", "positive")},
            )
            for step in range(steps)
        ]


def photos_of(batch: InstanceBatch) -> Tensor:
    """(B, 3, H, W) float32, (x / 255 - mean) / std, zeros in the padding: for originals that take normalized photos."""
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (InstanceInput().mean, InstanceInput().std))
    photos = torch.zeros(batch.images.shape)
    for photo, pixels, (height, width) in zip(photos, batch.images, batch.sizes.tolist()):
        photo[:, :height, :width] = (pixels[:, :height, :width].float() / 255 - mean) / std
    return photos


def bitmaps(batch: InstanceBatch, image: int) -> Tensor:
    """(n, h, w) uint8, the masks of a photo's objects; they are stored at the input's resolution."""
    height, width = batch.sizes[image].tolist()
    count = int((batch.labels[image] > 0).sum())
    found = torch.zeros(count, height, width, dtype=torch.uint8)
    for mask, canvas, frame in zip(found, batch.canvases[image], batch.frames[image].tolist()):
        left, top, *pitch = frame
        assert pitch == [1, 1] and left == int(left) and top == int(top)
        part = mask[int(top) :, int(left) :][: len(canvas) - 2, : len(canvas) - 2]
        part.copy_(canvas[1:-1, 1:-1][: part.shape[0], : part.shape[1]])
    return found

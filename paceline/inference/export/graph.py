"""A model as one graph from photos to answers: normalization, network, decoding and suppression.

Shapes are fixed, except that Mask R-CNN without --image-size accepts inputs of any height and width, as `predict` makes them.

Letters: B photos   H, W pixels of the input   K classes   D places for detections   S side of a mask
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental import _config

from paceline._utils.errors import PacelineError
from paceline.config.model_card import MAX_PHOTOS, MAX_SIDE
from paceline.data.batch import Batch, DetectionBatch, InstanceBatch
from paceline.inference.graph.graph_model import BOXES, CLASSES
from paceline.inference.trained_model import TrainedModel
from paceline.models.batch_shapes import make_buckets
from paceline.models.ops.dispatch import Suppression, static_shapes
from paceline.models.registry import WORKLOADS

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions

MIN_SIDE = 64  # of inputs of any shape


class Graph(nn.Module):
    """Photos in, named answers out. Its `forward` is what the forms take down."""

    def __init__(self, trained: TrainedModel, flags: ExportOptions) -> None:
        """Raises PacelineError for a workload that is not ours, and for flags that its network cannot have."""
        super().__init__()
        self.task, self.flags, recipe = trained.recipe.task, flags, trained.recipe
        if self.task not in WORKLOADS:
            raise PacelineError(f"--format {flags.format}: custom tasks are not supported, only {', '.join(WORKLOADS)}.")
        self.model: Any = trained.model.cpu().to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
        if flags.score_threshold is not None:
            if self.task == "classification" or not 0 <= flags.score_threshold < 1:
                raise PacelineError(
                    f"--score-threshold {flags.score_threshold:g}: must be in [0, 1), and requires a detector."
                )
            detect = replace(recipe.model.detect, score_threshold=flags.score_threshold)
            self.model.settings = replace(recipe.model, detect=detect)
        self.shape: tuple[int, int] | None = _shape(trained, flags.image_size)  # None: any
        # Of both sides; and the shapes that `predict` pads to, none: to the next multiple.
        self.multiple, self.shapes = getattr(recipe.input, "size_divisor", 1), ()
        if getattr(recipe.input, "padding_mode", "") == "buckets":
            self.shapes = make_buckets(recipe.input.min_size[-1], recipe.input.max_size, self.multiple)
        if not 1 <= flags.batch_size <= MAX_PHOTOS:
            raise PacelineError(f"--batch-size {flags.batch_size}: must be 1 to {MAX_PHOTOS}.")
        if flags.verify_images < 0:
            raise PacelineError(f"--verify-images {flags.verify_images}: must be 0 or more.")

    def halve(self) -> None:
        """Compute the network in fp16. Decoding and suppression stay float32, as in training of mixed precision."""
        self.model.network.half()
        self.model.normalize = nn.Sequential(self.model.normalize, _Half())

    @property
    def any_batch(self) -> bool:
        """Whether a call takes any number of photos, else `flags.batch`. A network of boxes follows from that number."""
        return self.task == "classification"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their names, in order."""
        if self.task == "classification":
            return CLASSES
        return (*BOXES, "masks") if getattr(self.model.settings, "masks", False) else BOXES

    def forward(self, photos: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
        """
        photos  uint8 (B, H, W, 3), or with --input-dtype float float32 (B, 3, H, W) in [0, 1]; RGB
        sizes   of Mask R-CNN: (B, 2) int64, height and width of each photo, which is in its input's left upper corner
        return  of a classifier probabilities (B, K); else boxes (B, D, 4) left, top, right, bottom in pixels of the input,
                scores (B, D), labels (B, D) int64 from 0 on, and masks (B, D, S, S) of a network that has them.
                Best first; an empty place has the score 0 and the label -1
        """
        images = photos.permute(0, 3, 1, 2) if self.flags.input_dtype == "uint8" else photos * 255
        none = images  # in the place of what no prediction reads
        if self.task == "classification":
            return (self.model.predict(Batch(images, none, none)).float().softmax(dim=1),)
        if self.task == "detection":
            result = self.model.predict(DetectionBatch(images, none, none, none))
            height, width = images.shape[2:]
            return _columns(result, result.new_tensor([width, height, width, height]))
        assert sizes is not None
        result = self.model.predict(InstanceBatch(images, none, none, none, sizes, none, none, none))
        columns = _columns(result.detections, sizes.flip(1).repeat(1, 2).unsqueeze(1))
        return columns if result.masks is None else (*columns, result.masks)

    def example(self) -> tuple[Tensor, ...]:
        """Gray photos in the arguments' shapes."""
        photos = 2 if self.any_batch else self.flags.batch_size  # torch takes a batch of one for a constant
        shape = self.shape or (8 * self.multiple, 12 * self.multiple)
        images = torch.full((photos, *shape, 3), 128, dtype=torch.uint8)
        if self.flags.input_dtype == "float":
            images = images.permute(0, 3, 1, 2).contiguous() / 255
        sizes = torch.tensor([shape]).expand(photos, -1).contiguous()
        return (images, sizes) if self.task == "instance-segmentation" else (images,)

    def traced(self, *, suppression: Suppression | None = None) -> torch.export.ExportedProgram:
        """The graph, taken down once; it holds no paths of this machine. suppression: see `static_shapes`."""
        import torchvision  # noqa: F401  # which knows its kernels' shapes without running them

        example, sides = self.example(), {}
        if self.shape is None:
            first = 1 if self.flags.input_dtype == "uint8" else 2
            # From two cells at stride 32: torch traces no map of one.
            ends = {"min": -(-MIN_SIDE // self.multiple), "max": MAX_SIDE // self.multiple}
            names = enumerate(("rows", "columns"), first)
            sides = {index: self.multiple * Dim(name, **ends) for index, name in names}
        elif self.task == "instance-segmentation":
            with torch.no_grad():
                self(*example)  # which makes the anchors, constants of the graph then
        with torch.no_grad(), static_shapes(suppression=suppression), _any_shape() if sides else nullcontext():
            photos = {0: Dim("batch")} if self.any_batch else sides or None
            shapes = {"photos": photos, **({"sizes": None} if len(example) == 2 else {})}
            program = torch.export.export(self, example, dynamic_shapes=shapes, strict=False)
        for node in program.graph.nodes:
            for note in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                node.meta.pop(note, None)
        return program


@contextmanager
def _any_shape() -> Iterator[None]:
    """Let torch trace sides that may be one cell, and timm pad maps whose sides their stride divides.

    timm's own expression for TensorFlow's padding grows with each layer, and torch would not finish.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(_config, "backed_size_oblivious", True))
        if padding := sys.modules.get("timm.layers.padding"):
            multiple = lambda _, k, s, d: max((k - 1) * d + 1 - s, 0)  # noqa: E731
            stack.enter_context(patch.object(padding, "get_same_padding", multiple))
        yield


class _Half(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.half()


def _columns(result: Tensor, extent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, D, 6) of fractions -> boxes in pixels, scores, labels."""
    return result[..., :4] * extent, result[..., 4], result[..., 5].to(torch.int64) - 1


def _shape(trained: TrainedModel, size: str) -> tuple[int, int] | None:
    """H, W: as --image-size has it; of Mask R-CNN without it None, any shape; of others the only one.

    Raises PacelineError for what is no size, or none that the network takes.
    """
    recipe, workload = trained.recipe, trained.workload
    if recipe.task != "instance-segmentation":
        shape = workload.network.eval_shape(recipe, 1, 1)
        if size:
            raise PacelineError(f"--image-size {size}: not supported. The input of this model is {shape[0]}x{shape[1]}.")
        return shape
    multiple = recipe.input.size_divisor
    if not size:
        return None
    result = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
    shape = (int(result[1]), int(result[2])) if result else (0, 0)
    if any(side % multiple or not multiple <= side <= MAX_SIDE for side in shape):
        raise PacelineError(
            f"--image-size {size}: must be HxW, multiples of {multiple} up to {MAX_SIDE}. Example: 800x1344"
        )
    return shape

"""Memory and arithmetic of a training step, estimated without an accelerator: how many images fit in one forward.

The model runs once on torch's meta device, which computes shapes only. Tensors that autograd would keep for the backward are counted
through its saved-tensor hooks, each storage once. For an accelerator the largest tensor is recorded as well: kernels there count a
tensor's elements in 32 bits, so a forward must be small enough that none has 2^31 of them. The meta device takes two seconds to start
(its shapes come from Python code that imports torch.compile), so counts of the built-in networks are cached.

Multiplications and additions are counted in the forward alone. A product of two operands that both get a gradient is computed three
times: once forward, and once for each of them backward. Which of them gets one is known in the forward, so no backward has to run, and
no network needs one on torch's meta device. The formulas are torch.utils.flop_counter's own (two for each multiplication with its
addition): matrix products, convolutions, attention. Elementwise work, normalization, pooling and the update are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline._utils.cache import cached_answer
from paceline._utils.errors import RecipeError
from paceline._utils.hashing import source_sha256
from paceline._utils.user_code import is_in_file
from paceline.config.recipe import DATA_CLASSES, Recipe
from paceline.config.resnet import RESNET, BackboneModel
from paceline.config.system import HALF, System
from paceline.data.batch import Batch

if TYPE_CHECKING:
    from paceline.models.workload import WorkloadSpec

GIB = 2**30
# Object slots of an image: more than 99 in 100 images of COCO need.
TYPICAL_SLOTS = 64
# What the count misses on a CPU: convolution workspaces, the gradients of activations in flight, the allocator's fragmentation.
WORKING_SHARE = 0.35
# Most images of a forward: larger ones were not faster on any machine measured here or published.
MAX_IMAGES = 512
# A smaller input's sides are multiples of the pyramid's coarsest stride, so that every map shrinks alike.
SMALL_SIDE = 64
# A tensor of an accelerator must have fewer elements: its kernels count in 32 bits.
COUNTABLE = 2**31


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank. Total for f images: fixed + f * per_image."""

    fixed: int  # weights, gradients, optimizer state, weight average
    per_image: int  # kept activations and working space of one image
    parameters: int  # trainable numbers
    largest: int = 0  # elements of one image's largest tensor, in training or prediction; 0 = not counted, on a CPU
    flop: int = 0  # of a training step, an image of the largest shape: multiplications and additions
    flop_pixel: float = 0.0  # of these, for each pixel of the input; 0 where all inputs have one shape
    pixels: int = 0  # of the largest shape
    batch_norms: int = 0  # layers that normalize by a batch's statistics in training

    def total(self, images: int) -> int:
        """Bytes of a step whose forwards hold `images` images."""
        return self.fixed + images * self.per_image

    def flop_of(self, images: int, pixels: int) -> float:
        """Multiplications and additions of training on so many images, which have so many pixels in all."""
        return images * self.flop + self.flop_pixel * (pixels - images * self.pixels)


def estimate_recipe_memory(
    workload: WorkloadSpec, recipe: Recipe, system: System, classes: int = 0, shape: tuple[int, int] | None = None
) -> MemoryEstimate:
    """The need of a training step of this recipe on one rank.

    classes  0 = those of the data set that the recipe was written for
    shape    H, W of the largest input, where shapes vary; None: from the recipe alone
    """
    classes = classes or DATA_CLASSES.get(recipe.target_data, workload.classes)
    height, width = shape or workload.network.largest(recipe)
    small = (_smaller(height), _smaller(width))
    foreign = isinstance(recipe.model, BackboneModel) and recipe.model.backbone != RESNET
    return estimate_memory(
        lambda: workload.network.build(recipe, classes),
        lambda: workload.data().dummy_batch(recipe, 2, (height, width), TYPICAL_SLOTS),
        recipe,
        system,
        # A network of one's own, or of another library, may change between two runs.
        remember=""
        if is_in_file(recipe.task) or foreign
        else f"{classes} classes, {(height, width)}, {small if shape else None}",
        pixels=height * width,
        smaller=(math.prod(small), lambda: workload.data().dummy_batch(recipe, 2, small, TYPICAL_SLOTS)) if shape else None,
        share=WORKING_SHARE if system.device == "cpu" else workload.network.working_share,
    )


def _smaller(side: int) -> int:
    return max(SMALL_SIDE, side // 2 // SMALL_SIDE * SMALL_SIDE)


def estimate_memory(
    build: Callable[[], nn.Module],
    make_batch: Callable[[], Batch],
    recipe: Recipe,
    system: System,
    remember: str = "",
    pixels: int = 0,
    smaller: tuple[int, Callable[[], Batch]] | None = None,
    share: float = WORKING_SHARE,
) -> MemoryEstimate:
    """The need of one rank.

    build       makes the model on the current default device
    make_batch  makes a batch of two images there
    remember    what these follow from beside the recipe: the key of the cached counts; "": not cached
    pixels      of each of these images
    share       of the kept activations, that a step takes besides
    smaller     pixels of another shape, and what makes such a batch: separates the work that follows the pixels from the rest
    """
    counted = system.device != "cpu"
    if remember:
        question = {
            "recipe": asdict(recipe.model) | asdict(recipe.input),
            "task": f"{recipe.task}, {remember}, {'accelerator' if counted else 'CPU'}",
            "code": f"{source_sha256()}, torch {torch.__version__}",
        }
        result = cached_answer("memory", question, lambda: _count(build, make_batch, counted, smaller))
    else:
        result = _count(build, make_batch, counted, smaller)
    activations, parameters = result["activations"] / 2, result["parameters"]
    half = system.precision in HALF
    if half:
        activations /= 2
    # float32 weight, gradient and velocity; the average; a low-precision copy inside autocast.
    per_parameter = 12 + (4 if recipe.ema_decay else 0) + (2 if half else 0)
    per_image = int(activations * (1 + share))
    fewer = pixels - smaller[0] if smaller else 0
    return MemoryEstimate(
        parameters * per_parameter,
        per_image,
        parameters,
        -(-result["largest"] // 2),
        flop=result["flop"] // 2,
        flop_pixel=(result["flop"] - result["smaller_flop"]) / 2 / fewer if fewer else 0.0,
        pixels=pixels,
        batch_norms=result["batch_norms"],
    )


def _count(
    build: Callable[[], nn.Module],
    make_batch: Callable[[], Batch],
    counted: bool,
    smaller: tuple[int, Callable[[], Batch]] | None = None,
) -> dict[str, int]:
    """Of two images: bytes of kept activations in float32, the largest tensor's elements if `counted`, and FLOP."""
    with torch.device("meta"):
        model = build().to("meta")
        batch = make_batch()
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)  # a freed storage's address could be reused
        return tensor

    alive: list[object] = []
    seen, work, less = _Largest(), FlopCount(), FlopCount()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), seen if counted else nullcontext(), work:
        result = model(batch)
    del result  # kept until here for its graph
    if smaller is not None:
        with torch.device("meta"):
            batch_of_less = smaller[1]()
        with less:
            model(batch_of_less)
    if counted:
        with torch.no_grad(), seen:
            model.eval().predict(batch)  # type: ignore[operator]
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    result = {"activations": sum(kept.values()), "parameters": parameters, "largest": seen.elements}
    result["batch_norms"] = sum(isinstance(module, _BatchNorm) for module in model.modules())
    return {**result, "flop": work.flop, "smaller_flop": less.flop}


class _Largest(TorchDispatchMode):
    """Inside, `elements` is the size of the largest result of an operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        match = (leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.elements = max(self.elements, *match, 0)
        return result


def max_images_per_forward(memory: MemoryEstimate, system: System) -> int:
    """Most images of one forward: --system.micro-batch-size where given, else what the memory estimate allows.

    Raises RecipeError when not even one image fits, or when more are requested than an accelerator can count.
    """
    countable = (COUNTABLE - 1) // memory.largest if memory.largest else MAX_IMAGES
    if system.micro_batch_size:
        if memory.largest and system.micro_batch_size > countable:
            raise RecipeError(
                f"--system.micro-batch-size {system.micro_batch_size}: must be at most {countable}, because a tensor would "
                "have 2^31 elements or more, which kernels of accelerators do not support."
            )
        return system.micro_batch_size
    most = int((system.memory_gib * GIB - memory.fixed) / memory.per_image)
    if most < 1:
        raise RecipeError(
            f"--system.memory-gib {system.memory_gib:g}: one image of this recipe needs about {memory.total(1) / GIB:.2g} "
            "GiB. Use a machine with more memory, a smaller --input.image-size, or another --model."
        )
    return min(most, MAX_IMAGES, max(1, countable))


class FlopCount(TorchDispatchMode):
    """Inside, `flop` grows by the forward's work and that of its backward."""

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry  # takes half a second: only when counting

        self.flop, self._formulas = 0, flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            # A bias is added, not multiplied: matrix products have it as first argument, convolutions as third.
            first = 1 if func._overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.baddbmm) else 0
            operands = [operand for operand in args[first : first + 2] if isinstance(operand, Tensor)]
            backward = sum(operand.requires_grad for operand in operands) if torch.is_grad_enabled() else 0
            self.flop += int(formula(*args, **(kwargs or {}), out_val=result)) * (1 + backward)
        return result

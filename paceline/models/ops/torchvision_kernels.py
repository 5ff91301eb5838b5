"""torchvision's compiled kernels without its Python package: RoIAlign, RoIPool, and suppression on a CPU.

Importing the package takes longer than importing torch: it imports torch.compile's machinery, sympy, and networks and data sets that
nothing here uses. Only its compiled library is loaded, at the first call, as the package itself would do.

Letters: B images   C channels   H, W of the features   n regions   S cells along a pooled region's side
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WANTED = ("nms", "roi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward")


def roi_align(features: Tensor, regions: Tensor, side: int, *, scale: float, sampling_ratio: int, aligned: bool) -> Tensor:
    """He et al. 2017, with the gradient to the features, as torchvision.ops.roi_align.

    features        (B, C, H, W) float32
    regions         (n, 5) float32: number of the image, and ltrb in pixels that are `scale` features apart; without gradient
    side            S
    sampling_ratio  sample points along a cell's side; -1: as many as it has pixels
    aligned         shift by half a pixel
    return          (n, C, S, S) float32
    """
    return _RoIAlign.apply(features, regions, side, scale, sampling_ratio, aligned)  # type: ignore[return-value]


def roi_pool(features: Tensor, regions: Tensor, side: int, *, scale: float) -> Tensor:
    """Girshick 2015, with the gradient to the features, as torchvision.ops.roi_pool; arguments and result as in `roi_align`.

    A region is rounded to whole pixels, both ends included; its cells overlap where it does not divide evenly, and a cell without a
    pixel is 0.
    """
    return _RoIPool.apply(features, regions, side, scale)  # type: ignore[return-value]


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """(C, 4) ltrb, (C,) -> places of the boxes that are kept, best first: no better kept box overlaps them above `threshold`."""
    return _kernels().nms(boxes, scores, threshold)


class _RoIAlign(torch.autograd.Function):
    """The kernel's own gradient: torchvision joins the two in Python, or in its library, by its version."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, regions: Tensor, side: int, scale: float, sampling_ratio: int, aligned: bool
    ) -> Tensor:
        ctx.save_for_backward(regions)
        ctx.facts = (features.shape, side, scale, sampling_ratio, aligned)
        if features.device.type == "meta":
            return features.new_empty((len(regions), features.shape[1], side, side))
        return _kernels().roi_align(features, regions, scale, side, side, sampling_ratio, aligned)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (regions,), (shape, side, scale, sampling_ratio, aligned) = ctx.saved_tensors, ctx.facts
        to_features = _kernels()._roi_align_backward(gradient, regions, scale, side, side, *shape, sampling_ratio, aligned)
        return to_features, None, None, None, None, None


class _RoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, regions: Tensor, side: int, scale: float) -> Tensor:
        ctx.facts = (features.shape, side, scale)
        if features.device.type == "meta":
            return features.new_empty((len(regions), features.shape[1], side, side))
        pooled, locations = _kernels().roi_pool(features, regions, scale, side, side)
        ctx.save_for_backward(regions, locations)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (regions, locations), (shape, side, scale) = ctx.saved_tensors, ctx.facts
        to_features = _kernels()._roi_pool_backward(gradient.contiguous(), regions, locations, scale, side, side, *shape)
        return to_features, None, None, None


# Not a function's cache: torch.compile looks through those, and would take the search along.
_found = False


def _kernels() -> Any:
    """torch.ops.torchvision with the kernels in it. Raises ImportError where torchvision is missing or does not fit torch."""
    if not _found:
        _find()
    return torch.ops.torchvision


def _find() -> None:
    global _found
    failure: BaseException | None = None
    result = importlib.util.find_spec("torchvision")
    for folder in (result.submodule_search_locations or ()) if result is not None else ():
        for library in sorted(Path(folder).glob("_C*")):
            if not _there():
                try:
                    torch.ops.load_library(str(library))
                except OSError as problem:
                    failure = problem.__cause__ or problem
    if not _there():
        try:
            import torchvision  # noqa: F401  # it raises the reason, or finds the kernels elsewhere
        except RuntimeError as problem:
            # It misses an operator of the library, and does not name why the library was not loaded.
            failure = failure or problem
    if not _there() and failure is not None:  # as where memory was short
        raise ImportError(str(failure)) from failure
    _found = True


def _there() -> bool:
    return all(hasattr(torch.ops.torchvision, name) for name in WANTED)

"""Copies in a training step of Mask R-CNN in bf16 and channels_last, in the forms of an accelerator: the numbers may only fall.

Before maps were converted once for both heads, and gradients had the layout of their tensors, this step made 20 copies of maps and
regions (5,984,256 bytes read and written) and 6 operations on two layouts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.config.recipes.maskrcnn import demo
from paceline.models.ops.dispatch import static_shapes
from paceline.models.ops.roi_align import prepare_feature_maps
from paceline.models.registry import WORKLOADS

CHANNELS, LAST = 64, torch.channels_last
COPIES = ("_to_copy", "copy_", "clone")
MAX_COPIES, MAX_BYTES = 10, 3_293_184


class Layouts(TorchDispatchMode):
    """Inside, count copies of maps and regions, their bytes, and operations on tensors of one shape and two layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: Counter[str] = Counter()
        self.bytes, self.mixed = 0, Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        maps = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor) and is_map(part)]
        if name in COPIES and isinstance(out, Tensor) and is_map(out) and maps:
            source = maps[-1] if name == "copy_" else maps[0]
            self.copies[f"{name} {source.dtype} to {out.dtype}, {tuple(out.shape)}"] += 1
            self.bytes += source.nbytes + out.nbytes
        elif "convolution" not in name and len({part.stride() for part in maps if part.shape == maps[0].shape}) > 1:
            self.mixed[f"{name} {tuple(maps[0].shape)}"] += 1
        return out


def is_map(tensor: Tensor) -> bool:
    """Return True for maps and pooled regions: their sides are larger than those of weights."""
    return tensor.dim() == 4 and tensor.shape[1] == CHANNELS and min(tensor.shape[2:]) > 3


def counted() -> Layouts:
    recipe = demo()
    model = replace(
        recipe.model, norm="frozen", fpn_norm="none", rpn=replace(recipe.model.rpn, pre_nms_topk_train=20, post_nms_topk_train=16),
        roi=replace(recipe.model.roi, samples_per_image=8),
    )  # fmt: skip
    recipe, workload = replace(recipe, model=model), WORKLOADS["instance-segmentation"]
    network = workload.network.build(recipe, 3)
    workload.network.initialize(recipe, network, torch.Generator().manual_seed(0))
    network = network.to(memory_format=LAST).train()
    batch = workload.data().dummy_batch(recipe, 2, (128, 128), 8)
    layouts = Layouts()
    with static_shapes():
        with torch.autocast("cpu", dtype=torch.bfloat16), layouts:
            loss = network(batch)["sums"].sum()
        with layouts:
            loss.backward()
    return layouts


def test_a_step_copies_no_more_and_mixes_no_layouts() -> None:
    found = counted()
    assert found.mixed == Counter()
    assert found.copies.total() <= MAX_COPIES and found.bytes <= MAX_BYTES, (found.bytes, found.copies)


def test_gradients_of_all_heads_are_added_in_float32_and_have_the_layout_of_the_maps() -> None:
    drawn = torch.randn(2, 8, 6, 5, generator=torch.Generator().manual_seed(0))
    for dtype, layout in ((torch.bfloat16, LAST), (torch.float32, LAST), (torch.bfloat16, torch.contiguous_format)):
        feature = drawn.to(dtype).contiguous(memory_format=layout).requires_grad_()
        with static_shapes():
            [map] = prepare_feature_maps([feature])
            with torch.no_grad():
                assert prepare_feature_maps([feature])[0] is feature
        assert map.dtype == torch.float32 and map.is_contiguous() and torch.equal(map, feature.float())
        (map * (1 + 2**-8) + map * 2**-8).sum().backward()  # 1, if each is rounded to bf16 first
        assert feature.grad is not None and feature.grad.dtype == dtype
        assert feature.grad.is_contiguous(memory_format=layout)
        assert torch.equal(feature.grad, torch.full_like(feature, 1 + 2**-7))
    assert prepare_feature_maps([drawn])[0] is drawn
    with static_shapes():
        assert prepare_feature_maps([drawn])[0] is drawn  # nothing to convert

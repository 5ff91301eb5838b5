"""Our kernels of RoIAlign on a GPU, at the networks' sizes: beside the torch form, the same bits again, no wait, in a CUDA graph.

CI has no GPU, so these skip there.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from paceline.distributed.device.timing import find_host_wait
from paceline.models.ops.dispatch import set_triton
from paceline.models.ops.roi_align import assign_levels, pool_regions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
STRIDES = [4, 8, 16, 32]
# Of gradients and of pooled cells: torchvision's kernel places samples with fused multiply-adds, ours as a CPU does.
FAR = {torch.float32: 1e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", FAR)
@pytest.mark.parametrize(("side", "aligned"), [(7, False), (14, True)])
def test_they_pool_as_torchvision_s_give_the_same_bits_again_and_do_not_wait(side, aligned, dtype):
    random = torch.Generator(CUDA).manual_seed(side)
    stream = torch.cuda.Stream()
    # A backward runs each leaf's last node on the stream that was current when the leaf was made: a capture refuses another stream.
    with torch.cuda.stream(stream):
        maps = [torch.randn(2, 256, 200 // s, 333 // s, generator=random, device=CUDA) for s in (1, 2, 4, 8)]
        maps = [map.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_() for map in maps]
    torch.cuda.synchronize()
    ends = torch.rand(1000, 2, generator=random, device=CUDA) * torch.tensor([1332.0, 800.0], device=CUDA)
    boxes = torch.cat((ends, ends + torch.rand(1000, 2, generator=random, device=CUDA).pow(3) * 800), dim=1)
    image = torch.arange(1000, device=CUDA) % 3 - 1
    levels = assign_levels(boxes, levels=4, law="torchvision", first=2)
    upstream = torch.randn(1000, 256, side, side, generator=random, device=CUDA).to(dtype)
    pooled = partial(pool_regions, maps, STRIDES, image, boxes, levels, side=side, sampling_ratio=2, aligned=aligned)

    def step() -> tuple[Tensor, ...]:
        output = pooled()
        return output, *torch.autograd.grad(output, maps, upstream)

    with torch.cuda.stream(stream):
        wanted = step()
    set_triton(True)
    try:
        with torch.cuda.stream(stream):
            found, again = step(), step()
            assert find_host_wait(step, CUDA) == ""
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                replayed = step()
            graph.replay()
    finally:
        set_triton(False)
    torch.cuda.synchronize()
    for ours, second, third, theirs in zip(found, again, replayed, wanted, strict=True):
        assert torch.equal(ours, second) and torch.equal(ours, third) and ours.dtype == dtype
        assert (ours.float() - theirs.float()).norm() <= FAR[dtype] * theirs.float().norm()
    assert not found[0][image < 0].any()

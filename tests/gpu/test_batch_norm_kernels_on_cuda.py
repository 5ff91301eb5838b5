"""Our kernels of BatchNorm on a GPU, at sizes of networks: right to the last digit, the same bits again, no wait, in a CUDA graph.

CI has no GPU, so these skip there.
"""

from __future__ import annotations

import fused_batch_norm as fused
import pytest
import torch
from torch import Tensor

from paceline.distributed.device.timing import find_host_wait
from paceline.models.layers.batch_norm import BatchNorm, norm_add_relu
from paceline.models.ops.dispatch import set_triton

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
TYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGE = (((16, 64, 56, 56), 4), ((32, 2048, 7, 7), 1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "groups"), (*fused.SHAPES, *fused.WIDE, *LARGE))
def test_they_are_right_to_the_last_digit_and_give_the_same_bits_again(shape, groups, dtype):
    from paceline.models.layers.triton_batch_norm import FusedBatchNorm

    for shortcut, relu in ((False, False), (False, True), (True, True)):
        layer = fused.a_layer(shape, dtype, shortcut=shortcut, device="cuda")
        if (shape, groups) not in LARGE:  # among so many an output may be so near 0 that rounding decides
            fused.check(FusedBatchNorm.apply, layer, groups, relu)
        else:
            found = fused.taken(FusedBatchNorm.apply, layer, groups, relu)
            for own, exact in zip(found, fused.in_float64(layer, groups, relu), strict=True):
                far = (own.cpu().double() - exact).abs() > 1e-2 * exact.abs() + 1e-2
                assert far.float().mean() < 1e-4 if own.ndim == 4 else not far.any()
        both = [fused.taken(FusedBatchNorm.apply, layer, groups, relu) for _ in range(2)]
        assert all(torch.equal(*pair) for pair in zip(*both, strict=True))


@pytest.mark.parametrize("groups", [1, 4])
def test_a_layer_takes_them_does_not_wait_and_a_graph_repeats_it(groups):
    layer = fused.a_layer((8, 64, 14, 14), torch.bfloat16, shortcut=True, device="cuda")
    norm = BatchNorm(64).to(CUDA).train()
    norm.groups = groups
    leaves = [layer.images.requires_grad_(), layer.shortcut.requires_grad_(), norm.weight, norm.bias]

    def step() -> tuple[Tensor, ...]:
        output = norm_add_relu(norm, leaves[0], leaves[1])
        return output, *torch.autograd.grad(output, leaves, layer.upstream)

    set_triton(True)
    try:
        assert norm.fuses(leaves[0], leaves[1])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            sent = step()
            assert find_host_wait(step, CUDA) == ""
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                replayed = step()
            graph.replay()
    finally:
        set_triton(False)
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(sent, replayed, strict=True))

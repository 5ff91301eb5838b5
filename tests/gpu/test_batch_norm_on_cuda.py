"""Split and joined BatchNorm by the kernels of a GPU: the numbers of the plain form on a CPU, and no wait for the device.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there.
"""

from __future__ import annotations

import batch_norm_forms as forms
import pytest
import torch

from paceline.distributed.device.timing import find_host_wait
from paceline.models.layers import batch_norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("shape", "dtype", "layout"), forms.CASES)
def test_joined_ranks_equal_the_plain_form_on_a_cpu(monkeypatch, shape, dtype, layout):
    forms.check_joined(monkeypatch, shape, dtype, layout, "cuda")


@pytest.mark.parametrize(("shape", "dtype", "layout"), forms.CASES)
def test_split_forwards_equal_the_plain_form_on_a_cpu(shape, dtype, layout):
    forms.check_split(shape, dtype, layout, "cuda")


def test_no_form_waits_for_the_device_and_a_graph_repeats_it():
    layer = forms.a_layer((8, 16, 7, 9), torch.bfloat16, "channels last", "cuda")
    leaves = [layer[0].requires_grad_(), layer[2].requires_grad_(), layer[3].requires_grad_()]

    def step() -> tuple[torch.Tensor, ...]:
        output, statistics = batch_norm.split_batch_norm(*leaves, 4, forms.EPS)
        return output, statistics, *torch.autograd.grad(output, leaves, layer[1])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sent = step()
        assert find_host_wait(step, torch.device("cuda")) == ""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            replayed = step()
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(sent, replayed))

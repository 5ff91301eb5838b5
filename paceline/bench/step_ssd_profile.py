"""Where a training step's time goes, from torch.profiler, and what the machine's matrix products and the network's work are.

An operation counts for the outermost operation or autograd node around it that has a name here, so that the copies inside a
convolution are the convolution's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.bench.step_ssd_peers import LOSS
from paceline.bench.timing import seconds_of, settle

NODE = "autograd::engine::evaluate_function: "
# First match counts. Nodes that none of these names are the loss's.
KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (f"^{LOSS}$", LOSS),
        (rf"^aten::(_)?conv|^{NODE}Convolution", "convolutions"),
        (rf"batch_norm|^{NODE}\w*BatchNorm", "BatchNorm"),
        (rf"^aten::(relu|add_$)|^{NODE}(Relu|Add)", "activations and shortcuts"),
        (rf"^aten::max_pool|^{NODE}MaxPool", "pooling"),
        (rf"^aten::(cat|reshape|contiguous|clone)$|^{NODE}(Cat|Permute|\w*View|Clone|Slice|Transpose)", "head outputs"),
        (rf"^aten::(to|_to_copy)$|^{NODE}ToCopy", "number formats"),
        (r"^Optimizer|^aten::_(foreach|fused)", "optimiser"),
        (rf"^{NODE}torch::autograd::AccumulateGrad", "gradients"),
        (f"^{NODE}", LOSS),
    )
)
REST = "rest"


def where_time_goes(step: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """One profiled step: -> milliseconds of each kind of work, largest first; of the device where it is a GPU."""
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        step()
        settle(device)
    spent: Counter[str] = Counter()
    for event in profile.events() or []:
        # A GPU's kernels are counted on the operations that sent them.
        if event.device_type == torch.autograd.DeviceType.CPU:  # pyright: ignore[reportPrivateImportUsage]
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            spent[kind_of(event)] += microseconds / 1000
    return {kind: round(milliseconds, 3) for kind, milliseconds in spent.most_common()}


def kind_of(event: Any) -> str:
    """The kind of the outermost event around it that has one."""
    found = REST
    while event is not None:
        found = next((kind for pattern, kind in KINDS if pattern.search(event.name)), found)
        event = event.cpu_parent
    return found


@contextmanager
def loss_is_marked(model: nn.Module, network: nn.Module) -> Iterator[None]:
    """Inside, what `model`'s forward does after its `network` shows as the loss in a profile."""
    ranges = []

    def begin(*_: Any) -> None:
        ranges.append(torch.profiler.record_function(LOSS))
        ranges[-1].__enter__()

    def end(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = [network.register_forward_hook(begin), model.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gflop_of(network: nn.Module, size: int) -> float:
    """GFLOP of an image's forward and backward (a multiply-add is two), for a network on the meta device that gives two tensors.

    The input has no gradient, so the stem's share of the backward is smaller than the rest's.
    """
    with FlopCounterMode(display=False) as counter:
        first, second = network(torch.empty(1, 3, size, size, device="meta"))
        (first.sum() + second.sum()).backward()
    return counter.get_total_flops() / 1e9


def matrix_gflops(side: int, number: torch.dtype, seconds: float, device: torch.device) -> float:
    """GFLOP/s of a square matrix product of `side`, measured for some seconds."""
    left, right = (torch.randn(side, side, device=device).to(number) for _ in range(2))
    return 2 * side**3 / seconds_of(lambda: left @ right, seconds, device)[0] / 1e9

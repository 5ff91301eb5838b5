"""Milliseconds of depthwise convolutions and their gradients on one thread: torch's in both types, and
models/layers/common.py's.

    PYTHONPATH=. OMP_NUM_THREADS=1 python scripts/depthwise.py

8 images in channels_last; the least CPU time of five calls. One row: forward, input's gradient and weights' gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.layers.common import compute_input_gradient, compute_weight_gradient

# Channels, side of the map, side of the kernel, stride.
CASES = [
    (240, 52, 5, 1),
    (480, 26, 5, 1),
    (672, 26, 5, 1),
    (672, 26, 5, 2),
    (1152, 13, 5, 1),
    (240, 52, 3, 2),
    (96, 56, 7, 1),
]


def least(call: Callable[..., object], *given: Any, **named: Any) -> str:
    """Milliseconds."""
    found = []
    for _ in range(5):
        start = time.process_time()
        call(*given, **named)
        found.append(1e3 * (time.process_time() - start))
    return f"{min(found):.1f}"


def torchs(input: Tensor, weight: Tensor, stride: int) -> tuple[str, Tensor]:
    """-> forward and both gradients, and a gradient of the output."""
    channels, padding = input.shape[1], weight.shape[-1] // 2
    grad = torch.randn_like(F.conv2d(input, weight, stride=stride, padding=padding, groups=channels))
    row = [least(F.conv2d, input, weight, stride=stride, padding=padding, groups=channels)]
    sizes = None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], channels
    for wanted in ([True, False, False], [False, True, False]):
        row.append(least(torch.ops.aten.convolution_backward, grad, input, weight, *sizes, wanted))
    return ", ".join(row), grad


def main() -> None:
    torch.set_num_threads(1)
    print("channels, side, kernel, stride | fp32 torch | bf16 torch | bf16 ours (input, weights)")
    for channels, side, kernel, stride in CASES:
        input = torch.randn(8, channels, side, side).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(channels, 1, kernel, kernel)
        full, _ = torchs(input, weight, stride)
        input, weight = input.bfloat16(), weight.bfloat16()
        half, grad = torchs(input, weight, stride)
        ours = least(compute_input_gradient, grad, input, weight, stride, kernel // 2)
        ours += f", {least(compute_weight_gradient, grad, input, kernel, stride, kernel // 2)}"
        print(f"{channels}, {side}, {kernel}, {stride} | {full} | {half} | {ours}", flush=True)


if __name__ == "__main__":
    main()

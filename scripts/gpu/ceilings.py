"""What the machine can do at most: copies on the device and over the bus, and matrix products in each number format."""

from __future__ import annotations

from functools import partial

import torch
from item import Item, run

from paceline.distributed.device.timing import measure_seconds


def ceilings(item: Item) -> None:
    """GB/s of copies, TFLOP/s of products."""
    device, side = item.device, 64 if item.tiny else 8192
    size = 2**20 if item.tiny else 2**32
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    wall, _ = measure_seconds(partial(target.copy_, source), 0.2, device, item.block)
    item.tell(what="copy on the device", gb_per_second=round(2 * size / wall / 1e9, 1))
    size = 2**20 if item.tiny else 2**28
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(size, dtype=torch.uint8, device=device)
    for what, to, of in (("copy to the device", there, host), ("copy from the device", host, there)):
        wall, _ = measure_seconds(partial(to.copy_, of, non_blocking=True), 0.2, device, item.block)
        item.tell(what=what, gb_per_second=round(size / wall / 1e9, 2))
    for what, number, precision in (
        ("bf16", torch.bfloat16, "highest"),
        ("fp16", torch.float16, "highest"),
        ("fp32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        left, right = (torch.randn(side, side, device=device).to(number) for _ in range(2))
        wall, _ = measure_seconds(partial(torch.matmul, left, right), 1.0, device, item.block)
        item.tell(what=f"matrix product {what}", tflop_per_second=round(2 * side**3 / wall / 1e12, 2))


if __name__ == "__main__":
    run({"ceilings": ceilings})

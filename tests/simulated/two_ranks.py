"""Collectives of two ranks over two communicators, with an error in them where the first word names one."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main(plant: str) -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    groups = [dist.new_group(), dist.new_group()]
    for group in groups:
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    if rank and plant == "another order":
        groups.reverse()
    if rank and plant == "one skipped":
        groups.pop()
    for group in groups:
        x = torch.full((3,), float(rank + 1), device="cuda")
        dist.all_reduce(x, group=group)
        assert x.tolist() == [3.0] * 3
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

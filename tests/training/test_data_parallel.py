"""torch's data parallel as a step takes it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from paceline.config.system import System
from paceline.training.step import _data_parallel


def test_data_parallel_looks_at_its_own_pace_in_its_first_steps_alone() -> None:
    """Else every hundredth step waits for the device, and a capture that falls on such a step fails."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        network = _data_parallel(nn.Linear(2, 2), System(), None)
        for _ in range(103):
            network(torch.ones(1, 2)).sum().backward()
        assert network._get_ddp_logging_data()["iteration"] == 10  # 100 by torch's own rule
    finally:
        dist.destroy_process_group()

"""An SSD's network whose outputs are given: what comes after it in a Detector is what is tested."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from paceline.data.batch import Objects

NOTHING = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))


class ReadyOutputs(nn.Module):
    """Takes any images."""

    def __init__(self, logits: Tensor, deltas: Tensor) -> None:
        super().__init__()
        self.outputs = logits, deltas

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """-> (B, A, K + 1), (B, A, 4)"""
        return self.outputs

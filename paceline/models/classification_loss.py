"""Classification loss with label smoothing, in the two conventions that published results use.

Letters: B images   K classes
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Smoothing = Literal["torch", "mxnet"]


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, convention: Smoothing) -> Tensor:
    """Cross-entropy of each image against its smoothed label, computed in float32.

    logits     (B, K) any floating type
    labels     (B,) int64, 0..K-1
    smoothing  0 for none
    torch: the true class gets 1 - smoothing + smoothing / K, each other smoothing / K (Szegedy et al. 2015).
    mxnet: the true class gets 1 - smoothing, each other smoothing / (K - 1): MXNet's SoftmaxOutput, used by MLPerf.
    return     (B,) float32
    """
    classes = logits.shape[1]
    spread = smoothing
    if convention == "mxnet" and classes > 1:
        spread = smoothing * classes / (classes - 1)
    return F.cross_entropy(logits.float(), labels, label_smoothing=spread, reduction="none")

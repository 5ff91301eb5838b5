"""Classification loss: label smoothing in the two conventions that published results use, focal loss, class weights.

Letters: B images   K classes
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Smoothing = Literal["torch", "mxnet"]


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    convention: Smoothing,
    *,
    gamma: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of each image against its smoothed label, computed in float32.

    logits     (B, K) any floating type
    labels     (B,) int64, 0..K-1
    smoothing  0 for none
    torch: the true class gets 1 - smoothing + smoothing / K, each other smoothing / K (Szegedy et al. 2015).
    mxnet: the true class gets 1 - smoothing, each other smoothing / (K - 1): MXNet's SoftmaxOutput, used by MLPerf.
    gamma      of the focal loss: a class of probability p counts (1 - p)^gamma times (Lin et al. 2017, of a softmax); 0: once
    weights    (K,) float32, of each class's part, as torch's cross_entropy has them; None: 1
    return     (B,) float32, not divided by weights
    """
    classes = logits.shape[1]
    spread = smoothing
    if convention == "mxnet" and classes > 1:
        spread = smoothing * classes / (classes - 1)
    if not gamma:
        return F.cross_entropy(logits.float(), labels, weights, label_smoothing=spread, reduction="none")
    scores = logits.float().log_softmax(1)
    # Above 0, where a power below 1 has no finite slope; what such a class loses is 0 anyway.
    parts = -scores * (-scores.expm1()).clamp(min=torch.finfo(torch.float32).eps) ** gamma
    if weights is not None:
        parts = parts * weights
    return (1 - spread) * parts.gather(1, labels[:, None]).squeeze(1) + spread / classes * parts.sum(1)

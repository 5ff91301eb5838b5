"""Top-1 and top-5 accuracy, exact over any number of ranks: each rank keeps its images' best five classes, rank 0 joins them.

Letters: N images scored by one rank   K classes   5 the best classes kept (fewer when K < 5)
A class is correct at top-k when fewer than k classes have a larger logit; between equal logits the lower class index comes
first, so a tie cannot be counted in the model's favor twice. A photo whose logits are not finite is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.data.batch import Batch

KEPT = 5


@dataclass(frozen=True)
class TopK:
    """The best classes of every scored image, in the order of `indices`."""

    indices: np.ndarray  # (N,) int64, the image's number in the validation index
    labels: np.ndarray  # (N,) int32, true class
    classes: np.ndarray  # (N, <=5) int32, best first
    scores: np.ndarray  # (N, <=5) float32, softmax probabilities

    def right(self, k: int) -> np.ndarray:
        """(N,) bool: whether the true class is among the best k."""
        return (self.classes[:, :k] == self.labels[:, None]).any(axis=1)

    def accuracy(self, k: int) -> float:
        """Share of images whose true class is among the best k; 0 images give 0."""
        hits = self.right(k)
        return float(hits.sum()) / max(1, len(hits))

    def pack(self) -> bytes:
        """Compact bytes, to be sent to rank 0; nothing is pickled."""
        buffer = io.BytesIO()
        np.savez(buffer, indices=self.indices, labels=self.labels, classes=self.classes, scores=self.scores)
        return buffer.getvalue()


def top_classes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(N, K) logits -> (N, <=5) int64 classes, best first, and their softmax probabilities, float32."""
    probabilities = torch.softmax(logits.float(), dim=1)
    probabilities = torch.where(torch.isfinite(probabilities), probabilities, torch.full_like(probabilities, -1.0))
    # A stable sort keeps the lower class first among equals; topk promises no order there.
    scores, classes = torch.sort(probabilities, dim=1, descending=True, stable=True)
    scores, classes = scores[:, :KEPT], classes[:, :KEPT]
    return torch.where(scores < 0, torch.full_like(classes, -1), classes), scores.clamp(min=0)


class TopKScore:
    """One rank's share of an evaluation. On an accelerator nothing waits: copies are read when packed."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, batch: Batch, outputs: Tensor) -> None:
        """Images of one batch and their (N, K) logits."""
        classes, scores = top_classes(outputs)
        # Clones: on a CPU the loader writes the next batch into the same memory.
        self._parts.append((batch.indices.clone(), batch.labels.clone(), classes, scores))

    def pack(self) -> bytes:
        """This rank's images as bytes; a rank without images packs empty arrays."""
        return self.joined().pack()

    def joined(self) -> TopK:
        """Everything added so far."""
        if not self._parts:
            empty = np.zeros((0,), np.int64)
            return TopK(empty, empty.astype(np.int32), np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))
        indices, labels, classes, scores = (torch.cat(column).cpu().numpy() for column in zip(*self._parts))
        return TopK(indices, labels.astype(np.int32), classes.astype(np.int32), scores.astype(np.float32))


def unpack_top_k(packed: Sequence[bytes]) -> TopK:
    """Join the ranks' bytes, ordered by image number."""
    parts = []
    for data in packed:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if len(arrays["indices"]):
                parts.append(TopK(arrays["indices"], arrays["labels"], arrays["classes"], arrays["scores"]))
    if not parts:
        return TopKScore().joined()
    order = np.argsort(np.concatenate([part.indices for part in parts]), kind="stable")
    names = ("indices", "labels", "classes", "scores")
    return TopK(*(np.concatenate([getattr(part, name) for part in parts])[order] for name in names))


def check_every_image_once(scored: np.ndarray, expected: np.ndarray) -> None:
    """Raises RuntimeError, with the counts, unless each image was scored exactly once."""
    if np.array_equal(np.sort(scored), np.sort(expected)):
        return
    missing = len(np.setdiff1d(expected, scored))
    twice = len(scored) - len(np.unique(scored))
    raise RuntimeError(
        f"the evaluation scored {len(scored)} images, but the manifest has {len(expected)}: {missing} are missing, and "
        f"{twice} are duplicates"
    )

"""Draw a fixed number of anchors or regions of each image, a share of them positive, from a counter-based generator.

Letters: B images   N candidates' places of an image   S places of a sample
A random number is a hash of the image's key, a stream's number and the place: no state, no order of draws, so the same image gets
the same sample on any number of ranks, in any batch and on any device.
Sources: the hash is Wellons' lowbias32 (hash-prospector, 2018); a stream is a sequence state + place * gamma with an odd gamma of
its own, hashed, as in SplitMix (Steele, Lea, Flood 2014). Rules of sampling: torchvision's BalancedPositiveNegativeSampler
("negatives") and GluonCV's RCNNTargetSampler ("any").
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from paceline.models.ops.dispatch import uses_static_shapes

Fill = Literal["negatives", "any"]
Number = TypeVar("Number", int, Tensor)

LOW_32 = 0xFFFFFFFF
# 2^32 times the golden ratio's inverse: no pattern in common with keys and streams, which are small numbers.
GOLDEN = 0x9E3779B9
BITS = 31
# Behind every candidate's order.
NOT_A_CANDIDATE = 2**63 - 1
# A CPU first examines the candidates whose bits are so low that this many times what it needs are expected, then four times as many.
FIRST_LOOK = 2
GROWTH = 4


class SampledBoxes(NamedTuple):
    """The draw of each image: positives first, then negatives, then empty places."""

    places: Tensor  # (B, S) int64, which candidate; 0 where the place is empty
    positive: Tensor  # (B, S) bool, drawn as a positive
    taken: Tensor  # (B, S) bool, not empty


def hash_uint32(number: Number) -> Number:
    """Wellons' lowbias32 of numbers in [0, 2^32), a bijection. The second factor is 0x846ca68b - 2^32: modulo 2^32 the
    same, and no product leaves int64."""
    number = number ^ (number >> 16)
    number = (number * 0x7FEB352D) & LOW_32
    number = number ^ (number >> 15)
    number = (number * (0x846CA68B - 2**32)) & LOW_32
    return number ^ (number >> 16)


def random_bits(keys: Tensor, count: int, stream: int) -> Tensor:
    """(B, count) int64 in [0, 2^31): random numbers of the places 0 to count - 1 of each image.

    keys     (B,) int64; only their low 32 bits count
    count    numbers of each image; the first ones do not depend on it
    stream   which of an image's independent sequences, 0 to 2^32 - 1
    """
    state = hash_uint32((keys & LOW_32) ^ hash_uint32((stream + GOLDEN) & LOW_32)).unsqueeze(1)
    gamma = hash_uint32(state ^ GOLDEN) | 1
    positions = torch.arange(count, device=keys.device)
    return hash_uint32((positions * gamma + state) & LOW_32) >> (32 - BITS)


def sample_candidates(
    positive: Tensor, negative: Tensor, bits: Tensor, *, count: int, most_positive: int, fill: Fill
) -> SampledBoxes:
    """Draw `count` = S of each image's candidates, those with the smallest bits; of equal bits the earlier place.

    positive, negative  (B, N) bool, candidates of each kind; none is both
    bits           (B, N) int64 in [0, 2^31)
    most_positive  positives drawn at most; negatives fill what positives leave
    fill           what fills places that lack negatives: nothing ("negatives"), or the positives left over ("any")
    """
    form = sample_candidates_fixed if uses_static_shapes(positive) or not len(positive) else sample_candidates_cpu
    return form(positive, negative, bits, count=count, most_positive=most_positive, fill=fill)


def sample_candidates_fixed(
    positive: Tensor, negative: Tensor, bits: Tensor, *, count: int, most_positive: int, fill: Fill
) -> SampledBoxes:
    """`sample_candidates` with fixed shapes and no host synchronization, without sorting all places."""
    first = min(most_positive, count)
    positives, positive_count = select_smallest_fixed(positive, bits, first if fill == "negatives" else count, count)
    negatives, negative_count = select_smallest_fixed(negative, bits, count, count)
    take_positive = positive_count.clamp(max=first)
    take_negative = torch.minimum(negative_count, count - take_positive)
    if fill == "any":
        # Positives fill up only where even all negatives did not.
        take_positive = torch.minimum(positive_count, count - take_negative)
    positions = torch.arange(count, device=bits.device)
    is_positive = positions < take_positive
    taken = positions < take_positive + take_negative
    # Behind the positives come the negatives from their first on.
    from_negatives = negatives.gather(1, (positions - take_positive).clamp(min=0))
    return SampledBoxes(torch.where(is_positive, positives, from_negatives).masked_fill(~taken, 0), is_positive, taken)


def select_smallest_fixed(candidate: Tensor, bits: Tensor, most: int, width: int) -> tuple[Tensor, Tensor]:
    """Candidates with the smallest bits, in order, and how many candidates there are.

    candidate  (B, N) bool, bits (B, N) int64
    return     places (B, width) int64, of which the first min(candidates, most) are valid; (B, 1) int64
    """
    # One number for bits and place: no two are equal, so every device chooses the same ones.
    order = (bits << 32) + torch.arange(candidate.shape[1], device=bits.device)
    order = order.masked_fill(~candidate, NOT_A_CANDIDATE)
    indices = order.topk(min(most, order.shape[1]), dim=1, largest=False, sorted=True).indices
    return torch.nn.functional.pad(indices, (0, width - indices.shape[1])), candidate.sum(dim=1, keepdim=True)


def sample_candidates_cpu(
    positive: Tensor, negative: Tensor, bits: Tensor, *, count: int, most_positive: int, fill: Fill
) -> SampledBoxes:
    """`sample_candidates` on a CPU, which sorts few candidates; at least one image."""
    positions = torch.arange(count)
    rows = []
    for one_positive, one_negative, one_bits in zip(positive, negative, bits):
        most = min(most_positive, count) if fill == "negatives" else count
        positives = select_smallest_cpu(one_positive, one_bits, most)
        take_positive = min(len(positives), most_positive)
        negatives = select_smallest_cpu(one_negative, one_bits, count - take_positive)
        if fill == "any":
            take_positive = min(len(positives), count - len(negatives))
        taken = take_positive + len(negatives)
        indices = torch.cat((positives[:take_positive], negatives, bits.new_zeros(count - taken)))
        rows.append((indices, positions < take_positive, positions < taken))
    return SampledBoxes(*(torch.stack(part) for part in zip(*rows)))


def select_smallest_cpu(candidate: Tensor, bits: Tensor, most: int) -> Tensor:
    """Places of the `most` candidates with the smallest bits, in order, or of all: (N,), (N,) -> (at most `most`,)."""
    total, look = int(candidate.sum()), FIRST_LOOK * most
    while True:
        if total <= look:
            indices = candidate.nonzero().squeeze(1)
        else:
            # Whatever the bits are: candidates above the cut are none of the smallest where enough are below it.
            indices = (candidate & (bits < 2**BITS * look // total)).nonzero().squeeze(1)
        if total <= look or len(indices) >= most:
            return indices[bits[indices].argsort(stable=True)[:most]]
        look *= GROWTH

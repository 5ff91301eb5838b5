"""How large one step is: norms of the gradients and of the update, beside the weights', of the network and of each of its parts.

One step of an interval is looked at, the one that its train event is written after, and nothing is changed by it. The weights
are kept for the length of an update: as many bytes as they have, at a moment when activations are gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.optim.step_numbers import LossScaler

# A network is shown in so many parts at least, where it has them.
FEWEST_PARTS = 3
DEEPEST = 4  # levels of names


class StepSizes:
    """Looks at one step of a network at a time."""

    def __init__(self, network: nn.Module) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        self._parts = parts_of([name for name, _ in named])
        self._weights: list[Tensor] = [weight for _, weight in named]
        self._kept: list[Tensor] = []
        self._norms: tuple[Tensor, ...] = ()  # of gradients, updates, weights: (P,) float32 each, on the device

    @torch.no_grad()
    def before(self, scaler: LossScaler | None) -> None:
        """All gradients are there, before they are clipped; `scaler` has multiplied them."""
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self._weights]
        norms = _norms(gradients)
        self._norms = (norms if scaler is None else norms / scaler.current,)
        self._kept = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def after(self) -> None:
        """The weights are updated."""
        kept, self._kept = self._kept, []
        of_weights = _norms(kept)
        torch._foreach_sub_(kept, self._weights)  # pyright: ignore[reportPrivateImportUsage]
        self._norms = (*self._norms, _norms(kept), of_weights)

    def read(self) -> dict[str, float | dict[str, float]]:
        """What was seen since the last call, {} for nothing: `gradient_norm`; `update_ratio`, the norm of the update over that of
        the weights; both of each part as `gradient_norms`, `update_ratios`. A part whose weights are all 0 has no ratio.
        """
        if len(self._norms) != 3 or not self._weights:
            return {}
        gradients, updates, weights = (norms.tolist() for norms in self._norms)
        self._norms = ()
        whole = list(range(len(gradients)))
        ratios = {
            name: _length(updates, places) / length
            for name, places in {"": whole, **self._parts}.items()
            if (length := _length(weights, places)) != 0
        }
        facts: dict[str, float | dict[str, float]] = {"gradient_norm": _length(gradients, whole)}
        if "" in ratios:
            facts["update_ratio"] = ratios.pop("")
        return facts | {
            "gradient_norms": {name: _length(gradients, places) for name, places in self._parts.items()},
            "update_ratios": ratios,
        }


def parts_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Parameters by the part of the network that they belong to: the beginnings of their names, as few levels as make three parts.

    names   dotted, in the network's order
    return  beginning of the name -> places
    """
    parts: dict[str, list[int]] = {}
    for depth in range(1, DEEPEST + 1):
        parts = {}
        for place, name in enumerate(names):
            owners = name.split(".")[:-1] or [name]
            parts.setdefault(".".join(owners[:depth]), []).append(place)
        if len(parts) >= FEWEST_PARTS:
            break
    return parts


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)) if tensors else torch.zeros(0)  # pyright: ignore[reportPrivateImportUsage]


def _length(norms: Sequence[float], places: Sequence[int]) -> float:
    chosen = [norms[place] for place in places]
    return math.hypot(*chosen) if all(math.isfinite(norm) for norm in chosen) else math.nan

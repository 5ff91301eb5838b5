"""What one training step computes, tensor by tensor and in order: a digest of each, so that none need be kept.

Of a step come its rates and batches; what each module returns, as forwards pass; the losses; the weights' gradients, as the backward
reaches them; then, once the step is done, the optimizer's tensors, the weights and their average.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.config.plan import StepRates
from paceline.data.batch import Batch

# Groups of a checkpoint in the order in which a step writes them, and what a tensor of each is called.
GROUPS = {"optimizer": "optimizer state", "scaler": "loss scale", "model": "weights", "average": "average of weights"}
# Whole numbers as wide as a floating-point one.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TracedTensor(NamedTuple):
    """One tensor of a step."""

    kind: str  # rate, input, output, loss, gradient, or a value of GROUPS
    name: str  # of the module, the loss, or the tensor
    digest: str


class StepTrace:
    """The tensors of one step, in order.

    keep  the place of the one whose values are kept, as `kept`, on the CPU; None: of none
    """

    def __init__(self, keep: int | None = None) -> None:
        self.entries: list[TracedTensor] = []
        self.kept: Tensor | None = None
        self._keep = keep

    def add(self, kind: str, name: str, value: Any) -> None:
        """Note every tensor that is in a value: itself, or one in lists, dicts and dataclasses."""
        for tensor in _tensors_in(value):
            plain = tensor.detach().cpu().contiguous()
            if len(self.entries) == self._keep:
                self.kept = plain.clone()
            head = f"{plain.dtype} {tuple(plain.shape)}".encode()
            content = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
            digest = hashlib.blake2b(head, digest_size=16)
            digest.update(content)
            self.entries.append(TracedTensor(kind, name, digest.hexdigest()))

    def begin(self, rates: StepRates, batches: Sequence[Batch]) -> None:
        """Note what a step starts from."""
        for name, value in rates._asdict().items():
            self.add("rate", name, torch.tensor(value, dtype=torch.float64))
        for batch in batches:
            for name, tensor in batch.tensors().items():
                self.add("input", name, tensor)

    def end(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Note what a step left behind: the tensors of a checkpoint, by its groups."""
        for kind, name, tensor in list_common_tensors(state):
            self.add(kind, name, tensor)

    def _returned(self, name: str, output: Any) -> None:
        if name:
            self.add("output", name, output)
        else:  # the model itself returns its losses
            for key, value in output.items():
                self.add("loss", key, value)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Inside, what the model's modules return and the gradients of its weights are noted as they come."""
        hooks = [
            module.register_forward_hook(lambda _, __, output, name=name: self._returned(name, output))
            for name, module in model.named_modules()
        ]
        hooks += [
            weight.register_post_accumulate_grad_hook(lambda weight, name=name: self.add("gradient", name, weight.grad))
            for name, weight in model.named_parameters()
            if weight.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def find_first_difference(one: Sequence[TracedTensor], other: Sequence[TracedTensor]) -> int | None:
    """The place of the first entry in which two steps differ; None where all are equal to the bit."""
    apart = (index for index, pair in enumerate(zip(one, other)) if pair[0] != pair[1])
    return next(apart, None if len(one) == len(other) else min(len(one), len(other)))


def list_common_tensors(state: Mapping[str, Mapping[str, Tensor]]) -> Iterator[tuple[str, str, Tensor]]:
    """(kind, name, tensor) of all that two checkpoints of one step must have in common."""
    for group, kind in GROUPS.items():
        for name, tensor in state.get(group, {}).items():
            yield kind, name, tensor


def compare_states(
    one: Mapping[str, Mapping[str, Tensor]], other: Mapping[str, Mapping[str, Tensor]]
) -> tuple[int, list[dict[str, Any]]]:
    """-> (how many tensors either state has, `compare_tensors` of each that is not the same to the bit, with its kind and name)."""
    mine, its = ({(kind, name): tensor for kind, name, tensor in list_common_tensors(state)} for state in (one, other))
    keys = list(dict.fromkeys([*mine, *its]))
    results = [(key, compare_tensors(mine.get(key), its.get(key))) for key in keys]
    return len(keys), [{"kind": kind, "name": name, **apart} for (kind, name), apart in results if apart]


def compare_tensors(one: Tensor | None, other: Tensor | None) -> dict[str, Any]:
    """How two tensors on the CPU differ; {} where they are equal to the bit.

    shapes        of both, null for one that is not there, where they cannot be compared; else:
    elements      how many there are, and `differing`, how many of them differ
    largest       the largest difference, null where a value is not finite; `relative`: over the largest value of the first
    units         of it in the last place: floating-point numbers between the two; `most_units`: the most at any place
    at, values    where it is the largest, and both values there
    """
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return {"shapes": [None if tensor is None else list(tensor.shape) for tensor in (one, other)]}
    flat = [tensor.contiguous().reshape(-1) for tensor in (one, other)]
    apart = (flat[0].view(torch.uint8) != flat[1].view(torch.uint8)).reshape(len(flat[0]), -1).any(dim=1)
    if not apart.any():
        return {}
    values = [tensor.double() for tensor in flat]
    size = torch.where(apart, (values[0] - values[1]).abs(), torch.zeros(()).double()).nan_to_num(nan=torch.inf)
    position = int(size.argmax()) if size.any() else int(apart.int().argmax())
    largest, whole = float(size.max()), float(values[0].abs().nan_to_num().max())
    finite = largest < float("inf")
    units = (_steps(flat[0]) - _steps(flat[1])).abs() if one.is_floating_point() and finite else None
    return {
        "elements": len(flat[0]),
        "differing": int(apart.sum()),
        "largest": largest if finite else None,
        "relative": largest / whole if finite and whole else None,
        "units": None if units is None else int(units[position]),
        "most_units": None if units is None else int(units.max()),
        "at": [int(index) for index in torch.unravel_index(torch.tensor(position), one.shape)],
        "values": [float(value[position]) if finite else str(float(value[position])) for value in values],
    }


def _steps(values: Tensor) -> Tensor:
    """Each number's place among all of its format, 0 for both zeros: the difference of two counts the units between them."""
    bits = values.view(_BITS[values.element_size()])
    least = torch.iinfo(bits.dtype).min
    return torch.where(bits < 0, least - bits.long(), bits.long())


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_in(getattr(value, field.name))

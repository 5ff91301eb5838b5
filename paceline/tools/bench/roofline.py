"""How fast this machine computes at most, at the sizes that a step has; and the share of that which the step reaches.

The ceiling is the best of several kernels: square and tall matrix products, and the step's own convolutions and products, each
alone and in both memory layouts. No one kernel is a ceiling: on CPUs with AVX-512 oneDNN's convolutions are faster than matrix
products. A step that is faster than the best of them shows that the ceiling is wrong, not that the step is good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from paceline.distributed.device.timing import STEPS, measure_seconds

OF_A_KIND = 3  # the calls with most work of each kind (operation, kernel's sides) are tried
KEPT = 4  # of the fastest kernels are measured anew in each round
LAYOUTS = {torch.contiguous_format: "", torch.channels_last: " channels_last"}


class TensorShape(NamedTuple):
    """A tensor argument, without its values."""

    sizes: tuple[int, ...]
    number: torch.dtype


class OperationCall(NamedTuple):
    """An operation with its arguments; tensors are Shapes."""

    operation: Any
    arguments: tuple[Any, ...]

    @property
    def shapes(self) -> list[TensorShape]:
        """Of its tensors."""
        return [part for part in self.arguments if isinstance(part, TensorShape)]

    def __str__(self) -> str:
        sizes = ", ".join("x".join(map(str, shape.sizes)) for shape in self.shapes)
        return f"{self.operation._overloadpacket.__name__} {sizes} {str(self.shapes[0].number).removeprefix('torch.')}"


class ConvFlops(TorchDispatchMode):
    """Inside, convolutions and matrix products are counted: `gflop` of all (a multiply-add is two), `each` call's of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.gflop = 0.0
        self.each: dict[str, tuple[OperationCall, float, int]] = {}  # the call in words -> it, its GFLOP, how often

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            gflop = count(*args, **(kwargs or {}), out_val=out) / 1e9
            self.gflop += gflop
            call = OperationCall(
                func,
                tree_map(
                    lambda part: TensorShape(tuple(part.shape), part.dtype) if isinstance(part, Tensor) else part, args
                ),
            )
            _, _, often = self.each.get(str(call), (call, gflop, 0))
            self.each[str(call)] = call, gflop, often + 1
        return out

    def heaviest(self) -> list[tuple[OperationCall, float]]:
        """Of each kind the calls that make up most of the work, with the GFLOP of one."""
        kinds: dict[tuple[Any, ...], list[tuple[OperationCall, float, int]]] = {}
        for call, gflop, often in self.each.values():
            sides = call.shapes[-1].sizes[2:] if len(call.shapes[-1].sizes) == 4 else ()
            kinds.setdefault((call.operation, sides), []).append((call, gflop, often))
        order = [sorted(calls, key=lambda result: -result[1] * result[2])[:OF_A_KIND] for calls in kinds.values()]
        return [(call, gflop) for calls in order for call, gflop, _ in calls]


class PeakKernel(NamedTuple):
    """Something that the machine can do fast: in words, its GFLOP, and what makes it."""

    name: str
    gflop: float
    make: Callable[[], Callable[[], Any]]


def list_kernels(work: ConvFlops, side: int, number: torch.dtype, device: torch.device) -> Iterator[PeakKernel]:
    """Square and tall products about a matrix of `side`, and the work's own calls in both memory layouts."""
    tall = 8 * side, max(1, side // 4)
    for left, right in (((side, side), (side, side)), (tall, tall[::-1])):
        call = OperationCall(torch.ops.aten.mm.default, (TensorShape(left, number), TensorShape(right, number)))
        yield PeakKernel(str(call), 2 * left[0] * left[1] * right[1] / 1e9, _made(call, torch.contiguous_format, device))
    for call, gflop in work.heaviest():
        flat = all(len(shape.sizes) != 4 for shape in call.shapes)
        for layout, name in list(LAYOUTS.items())[: 1 if flat else 2]:
            yield PeakKernel(f"{call}{name}", gflop, _made(call, layout, device))


class MachinePeak:
    """The machine's GFLOP/s beside a piece of work, measured anew as often as it is asked."""

    def __init__(self, work: ConvFlops, side: int, number: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.best: dict[str, float] = {}  # GFLOP/s by kernel
        results = list(list_kernels(work, side, number, device))
        self._measure(results, 0.0)
        self.kept = sorted(results, key=lambda kernel: -self.best[kernel.name])[:KEPT]

    def measure(self, seconds: float) -> None:
        """Try the fastest once more, for so long together: neighbors on a busy machine may have been in their way."""
        self._measure(self.kept, seconds / KEPT)

    def _measure(self, tried: Sequence[PeakKernel], seconds: float) -> None:
        for kernel in tried:
            call = kernel.make()
            call()
            rate = kernel.gflop / max(measure_seconds(call, seconds, self.device, STEPS).wall, 1e-9)
            self.best[kernel.name] = max(rate, self.best.get(kernel.name, 0.0))

    def facts(self) -> dict[str, Any]:
        """The best kernel, its GFLOP/s, and all others'."""
        kernel = max(self.best, key=lambda name: self.best[name])
        return {"gflops": self.best[kernel], "kernel": kernel, "kernels": dict(self.best)}


def describe_above_peak(share: dict[str, float], ceiling: dict[str, Any]) -> str:
    """A sentence where a contender is faster than the ceiling, "" where none is."""
    name = max(share, key=lambda name: share[name])
    if share[name] <= 1:
        return ""
    return (
        f"{name} reaches {share[name]:.0%} of the ceiling, {ceiling['gflops']:,.0f} GFLOP/s of {ceiling['kernel']}, so the ceiling is "
        f"wrong. Either {__name__} lacks a faster kernel, or other processes slowed the measurement. Measure again."
    )


def _made(call: OperationCall, layout: torch.memory_format, device: torch.device) -> Callable[[], Callable[[], Any]]:
    def tensor(part: Any) -> Any:
        if not isinstance(part, TensorShape):
            return part
        values = torch.randn(part.sizes, device=device).to(part.number)
        return values.contiguous(memory_format=layout) if values.dim() == 4 else values

    def make() -> Callable[[], Any]:
        arguments = tuple(tensor(part) for part in call.arguments)
        return lambda: call.operation(*arguments)

    return make

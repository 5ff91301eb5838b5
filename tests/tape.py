"""What a CUDA graph does, on a CPU: the operations of one step with their very tensors, carried out again without any Python.

A tape holds what torch's dispatcher was asked for, with memory, not values: aliases of every argument and result. Played again, each
operation reads and writes where it did; a result that came in memory of its own is copied there. So what a step held as a Python
number, what it decided by a value, and what it bound anew after it was recorded, is wrong in a replay here as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

SEEN_BY_THE_HOST = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class HostReadError(AssertionError):
    """The host would learn a value, for which it waits until the device has computed it."""


def refuse_host_read(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raises HostReadError for an operation after which the host knows a value, or a shape that follows from values; and for
    one that takes a value from the host, which a replay would take again.
    """
    name = func._overloadpacket.__name__
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
            raise HostReadError(f"{name} by a mask")
    elif SEEN_BY_THE_HOST & set(func.tags):
        raise HostReadError(name)
    if name in ("_to_copy", "copy_"):
        to = kwargs.get("device") if name == "_to_copy" else args[0].device
        source = args[1] if name == "copy_" else args[0]
        if to is not None and torch.device(to).type != source.device.type:
            raise HostReadError(f"{name} from {source.device.type} to {torch.device(to).type}")
    elif len(devices := {tensor.device.type for tensor in _tensors((args, kwargs))}) > 1:
        raise HostReadError(f"{name} of tensors on {' and '.join(sorted(devices))}")


class NoHostReads(TorchDispatchMode):
    """Inside, what would make the host wait for a device raises HostReadError, on whatever device; `calls` counts the rest."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_host_read(func, args, kwargs or {})
        self.calls += 1
        fused = func._overloadpacket.__name__.startswith("_fused_")
        if fused and isinstance(args[0][0], FakeTensor):  # torch has no fake form of these, and they return nothing
            return None
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Inside, operations are carried out and taken down; `undo` takes back what they changed, `play` carries them out again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # memory from outside: its bytes, and what they were
        self._made: set[int] = set()  # memory of the step's own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_host_read(func, args, kwargs or {})
        if torch.Tag.inplace_view in func.tags:  # it touches no memory, and later aliases have the shape that it gives
            return func(*args, **(kwargs or {}))
        held, held_kwargs = tree_map_only(Tensor, _alias, (args, kwargs or {}))
        given = set()
        for tensor in _tensors((args, kwargs)):
            place = _place(tensor)
            given.add(place)
            if place and place not in self._made and place not in self._before:
                whole = _whole(tensor)
                self._before[place] = (whole, whole.clone())
        found = func(*args, **(kwargs or {}))
        fresh = [(number, _alias(tensor)) for number, tensor in enumerate(_tensors(found)) if _place(tensor) not in given]
        self._made |= {_place(tensor) for _, tensor in fresh}
        self.calls.append((func, held, held_kwargs, fresh))
        return found

    def undo(self) -> None:
        """Every memory that was there before is as it was."""
        for whole, bytes_ in self._before.values():
            whole.copy_(bytes_)
        self._before.clear()

    @torch.no_grad()
    def play(self) -> None:
        """The list alone."""
        for func, args, kwargs, fresh in self.calls:
            result = func(*args, **kwargs)
            if func.namespace == "c10d":  # a graph's next operation comes after the exchange, too
                Work.unbox(result[-1]).wait()
            found = list(_tensors(result)) if fresh else []
            for number, place in fresh:
                place.copy_(found[number])


class Recorder:
    """A `paceline.training.cuda_graphs.Capture` of tapes. `tapes` are those taken, `played` counts replays."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.played = 0

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, work: Callable[[], dict[str, Tensor]]) -> tuple[Callable[[], None], dict[str, Tensor]]:
        tape = Tape()
        with tape:
            losses = work()
        tape.undo()
        self.tapes.append(tape)

        def play() -> None:
            self.played += 1
            tape.play()

        return play, losses


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor))


def _place(tensor: Tensor) -> int:
    """Where its memory begins, whatever view of it this is; 0 for none."""
    return tensor.untyped_storage().data_ptr()


def _alias(tensor: Tensor) -> Tensor:
    return torch.ops.aten.alias(tensor.detach())


def _whole(tensor: Tensor) -> Tensor:
    """All bytes of its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[arg-type]

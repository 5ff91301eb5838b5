"""Right values on the device that computes nothing: a CPU's kernel carries out each operation on the same memory.

While a stream captures, the operation becomes a part of the graph, so that replays have values too. Where copies are late, so are
operations: in the order of their stream, when somebody waits for it. Types that a CPU has no kernel for are computed in float32.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import device
import sync_batch_norm
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CPU = torch.device("cpu")
# They compute nothing, or ask the device itself.
NOT_COMPUTED = {
    "_local_scalar_dense", "record_stream", "is_pinned", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "set_", "resize_", "_resize_output_", "_pin_memory", "is_same_size",
}  # fmt: skip
# What they return, or its shape, follows from values at once: computed on the CPU first, then copied to the device.
SHAPED_BY_VALUES = frozenset(
    ["nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "unique_dim", "nms", "equal"]
)
INDEXED = frozenset(["index", "index_put", "index_put_", "_index_put_impl_"])
# A CPU's kernels for float16 take twenty times as long as those for float32.
SLOW_IN_HALF = frozenset(["convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "cudnn_convolution_relu"])
NO_KERNEL_OF_TORCH = ("profiler", "prim", "prims", "c10d")


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, factor: float, eps: float
) -> tuple:
    output, saved_mean, saved_scale = aten.native_batch_norm(x.float(), weight, bias, mean, var, training, factor, eps)
    return output.to(x.dtype), saved_mean, saved_scale, None


def batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    saved_mean: Tensor,
    saved_scale: Tensor,
    eps: float,
    _: Tensor,
) -> tuple:
    found = aten.native_batch_norm_backward(
        grad.float(), x.float(), weight, mean, var, saved_mean, saved_scale, True, eps, [True] * 3
    )
    return found[0].to(x.dtype), found[1], found[2]


def log_softmax(x: Tensor, dim: int, to_float: bool) -> Tensor:
    return aten._log_softmax(x.float() if to_float else x, dim, False)


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return aten._log_softmax_backward_data(grad, output, dim, grad.dtype)


def convolution_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *sizes: Any) -> Tensor:
    stride, padding, dilation, groups = sizes
    return aten.convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], groups).relu()


def convolution_add_relu(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor | None, *sizes: Any) -> Tensor:
    stride, padding, dilation, groups = sizes
    return (aten.convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], groups) + alpha * z).relu()


# Operations, or forms of them, that no CPU has.
INSTEAD: dict[str, Callable[..., Any]] = {
    "_log_softmax": log_softmax,
    "_log_softmax_backward_data": log_softmax_backward,
    "cudnn_convolution_relu": convolution_relu,
    "cudnn_convolution_add_relu": convolution_add_relu,
    "cudnn_batch_norm": batch_norm,
    "cudnn_batch_norm_backward": batch_norm_backward,
    **sync_batch_norm.OPERATIONS,
}


generators: dict[int, torch.Generator] = {}  # a CPU's for each of the device's


def on_cpu(value: Any) -> Any:
    """A tensor of the device as a CPU's tensor over the same memory; any other value as it is."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if isinstance(value, torch.Generator) and value.device.type == "cuda":
        return generators.setdefault(id(value), torch.Generator().manual_seed(value.initial_seed()))
    if not isinstance(value, Tensor) or value.device.type != "cuda":
        return value
    storage = value.untyped_storage()
    if not storage.nbytes() or not storage.data_ptr():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    same = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), CPU, storage.nbytes())
    return torch.empty(0, dtype=value.dtype).set_(same, value.storage_offset(), value.shape, value.stride())


def in_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


class Operation:
    """One operation, to be carried out on a CPU as often as it is called."""

    def __init__(self, func: Any, args: Any, kwargs: Any, results: Sequence[tuple[int, Tensor]]) -> None:
        self.func, self.args, self.kwargs, self.results = func, args, kwargs, results

    def __call__(self) -> None:
        name = self.func._overloadpacket.__name__
        func = INSTEAD.get(name, self.func)
        args, kwargs = self.args, self.kwargs
        if name in SLOW_IN_HALF and any(isinstance(x, Tensor) and x.dtype == torch.float16 for x in args):
            args, kwargs = tree_map(in_float, args), tree_map(in_float, kwargs)
        try:
            found = func(*args, **kwargs)
        except RuntimeError as error:
            if "not implemented for" not in str(error) and not isinstance(error, NotImplementedError):
                raise RuntimeError(f"{self.func} on a CPU: {error}") from error
            found = func(*tree_map(in_float, args), **tree_map(in_float, kwargs))
        leaves = tree_flatten(found)[0]
        for place, result in self.results:
            if leaves[place] is not None:
                result.copy_(leaves[place])


# Operations by number: those of graphs stay, others are carried out once.
waiting: dict[int, Operation] = {}
of_graphs: set[int] = set()
numbers = itertools.count()
LATE = os.environ.get("SIMULATED_COPIES", "now") != "now"


@ctypes.CFUNCTYPE(None, ctypes.c_long)
def carry_out(number: int) -> None:
    operation = waiting[number] if number in of_graphs else waiting.pop(number)
    with torch.no_grad(), _disable_current_modes():
        operation()


class Values(TorchDispatchMode):
    """While it is on, every operation on the device has its value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        flat = tree_flatten((args, kwargs))[0]
        if not any(has_device(each) for each in flat) or name in NOT_COMPUTED or func.namespace in NO_KERNEL_OF_TORCH:
            return func(*args, **kwargs)
        masks = name in INDEXED and any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
        shaped = name in SHAPED_BY_VALUES or (name == "repeat_interleave" and kwargs.get("output_size") is None)
        if (masks or shaped) and not torch.cuda.is_current_stream_capturing():
            settle()
            found = func(*tree_map(on_cpu, args), **tree_map(on_cpu, kwargs))
            return (
                args[0] if name.endswith("_") else tree_map(lambda x: x.to("cuda") if isinstance(x, Tensor) else x, found)
            )
        return self.sent(func, args, kwargs, flat)

    def sent(self, func: Any, args: Any, kwargs: Any, flat: list[Any]) -> Any:
        before = {each.untyped_storage().data_ptr() for each in flat if isinstance(each, Tensor)}
        host_args, host_kwargs = tree_map(on_cpu, args), tree_map(on_cpu, kwargs)
        host_kwargs.pop("pin_memory", None)
        out = func(*args, **kwargs)
        leaves = tree_flatten(out)[0]
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        views = [each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns]
        only_a_view = views and all(views) and all(each.untyped_storage().data_ptr() in before for each in tensors)
        if only_a_view or torch.Tag.inplace_view in func.tags:
            return out
        new = [
            (n, on_cpu(x))
            for n, x in enumerate(leaves)
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in before
        ]
        operation = Operation(func, host_args, host_kwargs, [(n, x) for n, x in new if x.numel()])
        capturing = torch.cuda.is_current_stream_capturing()
        if LATE and not capturing and any(of_host(each) for each in (*flat, *leaves)):
            settle()
            operation()
        elif capturing or LATE:
            number = next(numbers)
            waiting[number] = operation
            if capturing:
                of_graphs.add(number)
            device.library().simulated_mark(stream(), carry_out, ctypes.c_long(number))
        else:
            operation()
        return out


def has_device(value: Any) -> bool:
    kind = value.device if isinstance(value, Tensor) else value
    return isinstance(kind, torch.device) and kind.type == "cuda"


def of_host(value: Any) -> bool:
    """Whether the host may read or write the tensor as soon as the call returns: pinned memory is in nobody's way before that."""
    return isinstance(value, Tensor) and value.device.type == "cpu" and not value.is_pinned()


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def settle() -> None:
    """What was sent to this stream before happens before a value that the host needs now, and no more than that."""
    if LATE:
        device.library().simulated_finish(stream())

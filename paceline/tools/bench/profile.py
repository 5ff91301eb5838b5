"""Where a training step's time goes, from torch.profiler: by the parts of a network that are named, else by kind of operation.

A part is a module, a method, or a function that is called by its name from a module of ours; for a profile another one takes its
place that marks the time until it returns. Backward work is its forward part's: autograd gives both the same sequence number.
What no part has counts for the outermost operation or autograd node around it that has a kind, so that the copies inside a
convolution are the convolution's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from inspect import ismethod
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from paceline.distributed.device.accelerators import synchronize

MARK, NODE, REST = "part: ", "autograd::engine::evaluate_function: ", "rest"
# The first match counts.
KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (rf"^aten::(_)?conv|^{NODE}Convolution", "convolutions"),
        (rf"batch_norm|^{NODE}\w*BatchNorm", "BatchNorm"),
        (rf"^aten::(relu|add_$)|^{NODE}(Relu|Add)", "activations and shortcuts"),
        (rf"^aten::max_pool|^{NODE}MaxPool", "pooling"),
        (rf"^aten::(cat|reshape|contiguous|clone)$|^{NODE}(Cat|Permute|\w*View|Clone|Slice|Transpose)", "head outputs"),
        (rf"^aten::(to|_to_copy)$|^{NODE}ToCopy", "dtype conversions"),
        (r"^Optimizer|^aten::_(foreach|fused)", "optimizer"),
        (rf"^{NODE}torch::autograd::AccumulateGrad", "gradients"),
    )
)


class ProfiledPart(NamedTuple):
    """Where a part is called, `owner.attribute`, and what it is called in the profile; an inner part counts for itself."""

    owner: Any
    attribute: str
    name: str


def resolve_part(name: str, *pieces: Any, called_in: ModuleType | None = None) -> list[ProfiledPart]:
    """What is called so: modules, bound methods, or functions by their names in `called_in`."""
    results = []
    for piece in pieces:
        if isinstance(piece, nn.Module):
            results.append(ProfiledPart(piece, "forward", name))
        elif ismethod(piece):
            results.append(ProfiledPart(piece.__self__, piece.__name__, name))
        else:
            assert vars(called_in)[piece.__name__] is piece
            results.append(ProfiledPart(called_in, piece.__name__, name))
    return results


def profile_step(step: Callable[[], Any], device: torch.device, parts: Sequence[ProfiledPart] = ()) -> dict[str, float]:
    """One profiled step: -> milliseconds of each part or kind of work, largest first; of the device where it is a GPU."""
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with ExitStack() as stack:
        for owner, attribute, name in parts:
            stack.enter_context(patch.object(owner, attribute, _marked(name)(getattr(owner, attribute))))
        profile = stack.enter_context(torch.profiler.profile(activities=activities, acc_events=True))
        step()
        synchronize(device)
    events = [
        (event, *_around(event))
        for event in profile.events() or []
        # A GPU's kernels are counted on the operations that sent them.
        if event.device_type == torch.autograd.DeviceType.CPU  # pyright: ignore[reportPrivateImportUsage]
    ]
    forward_of: dict[int, str] = {}
    for event, name, _, node in events:
        if name and node is None and event.sequence_nr >= 0:
            forward_of[event.sequence_nr] = name  # the last with a number: work without a gradient has that of what follows
    spent: Counter[str] = Counter()
    for event, name, kind, node in events:
        if node is not None and node.sequence_nr in forward_of:
            name = f"{forward_of[node.sequence_nr]}, backward"
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        spent[name or kind] += microseconds / 1000
    return {name: round(milliseconds, 3) for name, milliseconds in spent.most_common()}


def _around(event: Any) -> tuple[str, str, Any]:
    """The innermost part around an event, "" where there is none; the outermost kind; and the autograd node, or None."""
    name, kind, node = "", "", None
    while event is not None:
        if event.name.startswith(MARK):
            name = name or event.name.removeprefix(MARK)
        elif event.name.startswith(NODE):
            node = event
        kind = next((kind for pattern, kind in KINDS if pattern.search(event.name)), kind)
        event = event.cpu_parent
    return name, kind or (REST if node is None else f"{REST}, backward"), node


def _marked(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(MARK + name):
                return function(*args, **kwargs)

        return wraps(function)(call) if hasattr(function, "__name__") else call

    return wrap

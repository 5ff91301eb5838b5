"""State: everything that a checkpoint saves, in one object. Learning rate, data order and augmentation are functions of the step,
so they are not in it.

BatchNorm's running statistics differ between ranks and are averaged when read; the update is linear, so nothing is lost. A
checkpoint holds the average, for whoever loads the model, and every rank's own values beside it, so that a run resumed on as many
ranks continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline._utils.errors import CheckpointError
from paceline.distributed.comm.world import DistContext
from paceline.models.layers.batch_norm import average_running_statistics, list_batch_norms
from paceline.training.checkpoint.write import Snapshot
from paceline.training.meters import Meters
from paceline.training.optim.base import Optimizer
from paceline.training.optim.ema import EMA
from paceline.training.optim.step_scalars import LossScaler

# Fact of a checkpoint: an evaluation of its step follows. Its result stands in the run's events (training/eval_history.py).
EVALUATES = "evaluates"


def _is_interval(value: Any) -> bool:
    """Whether this is a value of Meters.facts."""
    sums = value.get("sums") if isinstance(value, dict) else None
    numbers = isinstance(sums, dict) and all(type(number) in (int, float) for number in sums.values())
    return numbers and type(value.get("steps")) is int


# Facts of every checkpoint, and the check of each.
FACTS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: type(value) is int and value >= 0,
    "world_size": lambda value: type(value) is int and value >= 1,
    "seconds": lambda value: type(value) is float,
    "meters": _is_interval,
    EVALUATES: lambda value: type(value) is bool,
    "recipe": lambda value: type(value) is dict,
    "data_hash": lambda value: type(value) is str,
    "train_images": lambda value: type(value) is int,
}


@dataclass
class State:
    """The training state of one rank."""

    model: nn.Module
    optimizer: Optimizer
    average: EMA | None
    scaler: LossScaler | None
    meters: Meters
    step: int = 0  # optimizer steps done

    def snapshot(self, world: DistContext, facts: Mapping[str, Any]) -> Snapshot:
        """The content of a checkpoint, with `facts`. Every rank must call it; the tensors are rank 0's own, not copies."""
        own = self._running()
        tensors: dict[str, dict[str, Tensor]] = {}
        if world.world > 1:
            flat = torch.cat([buffer.reshape(-1).float() for buffer in own]) if own else torch.zeros(0)
            packed = world.gather_bytes(flat.cpu().numpy().tobytes()) or []
            tensors["ranks"] = {
                f"{rank:04d}": torch.from_numpy(np.frombuffer(data, np.float32).copy()) for rank, data in enumerate(packed)
            }
        with self.averaged(world):
            tensors["model"] = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            if self.average is not None:
                tensors["average"] = {name: tensor.clone() for name, tensor in self.average.state().items()}
        tensors["optimizer"] = dict(self.optimizer.state())
        if self.scaler is not None:
            tensors["scaler"] = dict(self.scaler.state())
        own_facts = {"step": self.step, "meters": self.meters.facts(world), "world_size": world.world}
        return Snapshot(tensors, {**own_facts, **facts})

    def is_finite(self) -> bool:
        """Whether every weight and running statistic of this rank is a finite number; waits for the device."""
        tensors = [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()) if tensors else True

    def restore(self, snapshot: Snapshot, world: DistContext) -> None:
        """Load a checkpoint's state in place. Raises CheckpointError when it belongs to another model."""
        tensors, facts = snapshot.tensors, snapshot.facts
        for group, owner in (("average", self.average), ("scaler", self.scaler)):
            if owner is not None and group not in tensors:
                raise CheckpointError(
                    f"the checkpoint has no {group}, because --ema-decay or --system.precision was different. Resume with the "
                    "original values, or start a new run from the weights:  --weights RUN/checkpoints/last --output-dir NEW_RUN"
                )
        load_model(self.model, tensors["model"])
        self.optimizer.load_state(tensors["optimizer"])
        if self.average is not None:
            self.average.load_state(tensors["average"])
        if self.scaler is not None:
            self.scaler.load_state(tensors["scaler"])
        if world.world > 1 and facts["world_size"] == world.world:
            buffers = self._running()
            flat = tensors.get("ranks", {}).get(f"{world.rank:04d}")
            if flat is None or flat.shape != (sum(buffer.numel() for buffer in buffers),):
                raise CheckpointError("the running statistics of this rank are missing: this is not a paceline checkpoint.")
            with torch.no_grad():
                for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers])):
                    buffer.copy_(part.view_as(buffer))
        self.step = int(facts["step"])
        self.meters.restore(facts["meters"], world)

    @contextmanager
    def averaged(self, world: DistContext) -> Iterator[None]:
        """Running statistics are the ranks' average inside, and this rank's own again afterwards."""
        if world.world == 1:
            yield
            return
        own = self._running()
        saved = [buffer.clone() for buffer in own]
        average_running_statistics(self.model, world.group)
        if self.average is not None:
            for buffer in self._averaged_running():
                world.sum_(buffer)
                buffer /= world.world
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(own, saved):
                    buffer.copy_(value)

    @contextmanager
    def evaluated(self, world: DistContext) -> Iterator[None]:
        """Inside, the model is as evaluations score it: with statistics of all ranks, and averaged weights where these are kept."""
        applied = self.average.applied() if self.average is not None else nullcontext()
        with self.averaged(world), applied:
            yield

    def _running(self) -> list[Tensor]:
        """Every tensor that differs from rank to rank: running statistics, and their moving averages."""
        buffers = [
            buffer
            for module in list_batch_norms(self.model)
            for buffer in (module.running_mean, module.running_var)
            if buffer is not None
        ]
        return buffers + (self._averaged_running() if self.average is not None else [])

    def _averaged_running(self) -> list[Tensor]:
        assert self.average is not None
        return [
            tensor
            for name, tensor in sorted(self.average.state().items())
            if name.endswith(("running_mean", "running_var"))
        ]


def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's tensors into `model`, keeping each one's memory format. Raises CheckpointError as `check_tensors`."""
    own = model.state_dict()
    check_tensors(own, tensors)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def check_tensors(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Compare a checkpoint's tensors with a model's own. Raises CheckpointError naming the first of another name or shape."""
    odd = sorted(set(own) ^ set(tensors)) or sorted(name for name in own if own[name].shape != tensors[name].shape)
    if odd:
        raise CheckpointError(
            f"the tensors of the checkpoint do not match the model: {odd[0]} and {len(odd) - 1} more differ. "
            "The checkpoint was trained with a different recipe. To start from its weights, use --weights."
        )


def check_snapshot(snapshot: Snapshot) -> None:
    """Check that a whole checkpoint is one of ours. Raises CheckpointError naming facts or tensors that are missing or impossible."""
    for name, can_be in FACTS.items():
        if not can_be(snapshot.facts.get(name)):
            value = str(snapshot.facts.get(name, "missing"))[:60]
            raise CheckpointError(f"{name} is {value}, which is not valid in a paceline checkpoint")
    if "model" not in snapshot.tensors or "optimizer" not in snapshot.tensors:
        raise CheckpointError("the tensors of the model or the optimizer are missing")


def is_evaluation_due(facts: Mapping[str, Any]) -> bool:
    """Whether an evaluation of the step follows the checkpoint of these facts."""
    return facts[EVALUATES]

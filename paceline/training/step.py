"""One training step: forwards, losses, backward, gradient exchange, update. Nothing here waits for the device.

Letters: B global batch   W ranks   A forwards of a step on this rank
The model returns losses summed over a forward's images. Each is scaled by W/B: gradients add up over the A forwards, data
parallel averages them over the W ranks, and the optimizer gets the gradient of the mean over the global batch, however the batch
is cut. Where a loss is divided by a count over the global batch (SSD's positives), the model returns the undivided sum, and the
count as DIVIDE_BY; gradients are linear, so they are divided once, when the count of all ranks is known. Losses with a count for
each term are normalized before the backward instead (training/loss_normalization.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from paceline.config.plan import BatchPlan, StepRates
from paceline.config.system import System
from paceline.data.batch import DIVIDE_BY, Batch
from paceline.distributed.device.setup import autocast_for
from paceline.models.layers.batch_norm import update_running_statistics
from paceline.models.ops.dispatch import static_shapes
from paceline.training.cuda_graphs import Capture, GraphedStep, choose_capture
from paceline.training.loss_normalization import LossGroupModel, count_ahead, group_losses
from paceline.training.meters import Part, StepSizes, StepTimes
from paceline.training.optim.step_scalars import StepScalars
from paceline.training.state import State

# DistributedDataParallel's own default.
TORCHS_BUCKET_MIB = 25.0
NEVER = 2**31 - 1  # steps
COMPRESS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class TrainStep(GraphedStep):
    """Callable: one optimizer step of `state` on one rank's batches.

    group    the ranks that train together; None: all ranks
    numbers  its rates are written into these; None: floats on a CPU, scalars on any other device
    capture  records steps, to replay them (cuda_graphs.py); None: as the system says
    """

    def __init__(
        self,
        state: State,
        plan: BatchPlan,
        system: System,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        *,
        numbers: StepScalars | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.state = state
        self.plan = plan
        self.group = group
        self.device = device
        self.numbers = numbers or StepScalars(state.optimizer.optim, device)
        self.autocast = autocast_for(system, device)
        self.share = plan.world_size / plan.global_batch_size
        self.times: StepTimes | None = None
        self.sizes = StepSizes(state.model)
        self._measured = False
        network: nn.Module = state.model
        if system.compile == "on":
            network.compile(dynamic=False)
        # A compiled network needs fixed shapes: shapes that depend on values would be compiled again for each.
        self.forms = static_shapes if system.compile == "on" else nullcontext
        capture = capture or choose_capture(system, device)
        super().__init__(capture, plan.world_size, plan.micro_batches)
        if plan.world_size > 1:
            with nullcontext() if capture is None else capture.aside():
                network = _data_parallel(network, system, group)
        if capture is None:  # no clock can be read inside a replay
            self.times = StepTimes(state.model, device)
        self.network = network

    def __call__(
        self, batches: Sequence[Batch], rates: StepRates, *, replay: bool = True, measured: bool = False
    ) -> dict[str, Tensor]:
        """Take the step; -> this rank's share of each loss's mean over the global batch, on the device, valid until the next step.

        measured  whether `sizes` measures it; a captured step is not measured
        replay    where steps are captured: False runs this one directly, for a profiler, on every rank alike, because NCCL wants
                  an exchange either captured on all ranks or on none
        """
        self.numbers.write(rates)
        if self.times is not None:
            self.times.begins()
        self._measured = measured and self.times is not None
        try:
            return self._take(batches, replay)
        finally:
            self._measured = False

    def run_step(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """The step itself, by the rates last written. It only reads and writes tensors that keep their addresses."""
        state = self.state
        losses = self._gradients(batches)
        if (count := losses.pop(DIVIDE_BY, None)) is not None:
            self._divide(losses, count)
            if self.plan.world_size > 1:
                self._reached("exchange")
        with record_function("update"):
            if self._measured:
                self.sizes.before(state.scaler)
            state.optimizer.step(self.numbers, scaler=state.scaler)
            if self._measured:
                self.sizes.after()
            state.optimizer.zero_grad()
            update_running_statistics(state.model)
            if state.average is not None:
                state.average.update(self.numbers.fresh)
        self._reached("update")
        return losses

    def discard(self, batches: Sequence[Batch], *, update: bool = True) -> None:
        """Take a whole step and undo it: this compiles, allocates, and lets data parallel settle its gradient buckets.

        update  False leaves out the update, where it would settle nothing: then only running statistics are saved and restored

        Data parallel rebuilds its buckets after the first backward, and the order of a sum over three or more ranks
        follows the buckets; without this step a resumed run would add in another order than an unbroken one.
        """
        state = self.state
        tensors = [*state.model.buffers()]
        if update:
            tensors += [*state.model.parameters(), *state.optimizer.state().values()]
            for part in (state.average, state.scaler):
                tensors += () if part is None else part.state().values()
        saved = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        try:
            (self.run_step if update else self._gradients)(batches)
        finally:
            state.optimizer.zero_grad()  # gradients of a step that failed
            with torch.no_grad():
                for tensor, before in zip(tensors, saved):
                    tensor.copy_(before)

    def _gradients(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        plan, model = self.plan, self.state.model
        counted = count_ahead(model, batches, plan, self.autocast, self.group) if plan.loss_normalizer_images else []
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with self._exchange(last), self.forms():
                with record_function("forward"), self.autocast():
                    losses = self.network(batch)
                if plan.loss_normalizer_images:
                    terms = cast(LossGroupModel, model).terms
                    losses = group_losses(losses, terms, plan, counted[number], self.group)
                scaler = self.state.scaler
                loss = losses["loss"] * self.share
                self._reached("forward")
                with record_function("backward"):
                    (loss if scaler is None else scaler.scale(loss)).backward()
                self._reached("exchange" if last and plan.world_size > 1 else "backward")
            for name, value in losses.items():
                part = value.detach() / plan.global_batch_size
                totals[name] = totals[name] + part if name in totals else part
        return totals

    def _reached(self, part: Part) -> None:
        if self.times is not None:
            self.times.reached(part)

    def _divide(self, losses: dict[str, Tensor], count: Tensor) -> None:
        """Divide losses and gradients, in place, by a count over the global batch in place of its number of images.

        count  this rank's share of it, over B; where all ranks have none, zeros stay zeros
        """
        if self.plan.world_size > 1:
            dist.all_reduce(count, group=self.group)
        factor = 1 / count.clamp(min=1 / self.plan.global_batch_size)
        gradients = [weight.grad for weight in self.state.model.parameters() if weight.grad is not None]
        torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateImportUsage]
        losses.update({name: value * factor for name, value in losses.items()})

    def _exchange(self, last: bool) -> AbstractContextManager:
        """The context of a forward and backward: gradients travel once a step, with the last backward."""
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()


def _data_parallel(network: nn.Module, system: System, group: dist.ProcessGroup | None) -> DistributedDataParallel:
    """Wrap the network. Buffers stay each rank's own (BatchNorm averages its statistics when they are read); every parameter is used.

    Compressed gradients are divided by the ranks, rounded, summed in that format, and are float32 again for the optimizer.
    """
    with warnings.catch_warnings():
        # From torch 2.15 on the argument is deprecated, and says itself that rank-local buffers have nothing else yet.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        parallel = DistributedDataParallel(
            network,
            device_ids=None,
            process_group=group,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=False,
            # torch cuts buckets otherwise where its own size is named by hand.
            bucket_cap_mb=None if system.ddp_bucket_mib == TORCHS_BUCKET_MIB else system.ddp_bucket_mib,  # pyright: ignore[reportArgumentType]
        )
    # After its first ten steps it would wait for the device in every hundredth, to measure itself; a capture could not.
    parallel._set_ddp_runtime_logging_sample_rate(NEVER)
    if system.grad_compression != "none":
        parallel.register_comm_hook(group, COMPRESS[system.grad_compression])
    return parallel

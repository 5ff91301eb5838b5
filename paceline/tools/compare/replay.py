"""A run that is trained again beside its own records: the same samples, rates and steps, from its first weights or a checkpoint of it.

It writes nothing. Every step is followed tensor by tensor (step_trace.py), and what the run wrote down of it, the numbers of a train
event and the tensors of a checkpoint, is compared with what comes of it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline._utils.reporter import SILENT
from paceline.config.plan import limit_steps, make_plan, step_rates
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunRecord, RunSpec, from_json, get_initial_weights, relative_data, saved_system
from paceline.data.batch import Batch
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.distributed.device.provenance import collect_versions, describe_host
from paceline.distributed.device.setup import TYPES, choose_device, set_threads
from paceline.models.task import InputRank
from paceline.tools.compare.step_trace import StepTrace, compare_states, compare_tensors
from paceline.training.checkpoint.layout import list_steps, step_name
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.checkpoint.write import Snapshot
from paceline.training.eval_history import EvalHistory
from paceline.training.factory import build_model, build_state, load_first_weights, load_initial_weights
from paceline.training.logging.events import from_json_value, loss_facts, read_events, to_json_value
from paceline.training.open_data import open_task
from paceline.training.previous_run import SavedRun
from paceline.training.resume import ResumePoint
from paceline.training.run_arguments import read_saved_count
from paceline.training.state import State, check_snapshot
from paceline.training.step import TrainStep
from paceline.training.step_variants import choose_kernels

Follow = Literal["all", "state", "nothing"]
Moment = tuple[int, list[tuple[Tensor, Tensor]]]
# Facts of a train event that follow from the arithmetic alone.
NUMBERS = ("loss", "lr", "gradient_norm", "update_ratio")


class RunPair:
    """What a run wrote down: run.json, its train events, and the steps of its checkpoints.

    Raises PacelineError for a folder that is no run, and for a run that is still going on or left nothing to compare.
    """

    def __init__(self, folder: Path, facts: RunRecord) -> None:
        self.folder, self.facts = folder, facts
        events = read_events(folder / "events.jsonl")
        self.steps = list_steps(folder / "checkpoints")
        if not events or events[-1]["event"] != "end":
            raise PacelineError(
                f"{folder}: the run has not ended: it is still training, or was killed. Wait until it ends, or resume it with the "
                f"same --output-dir."
            )
        if not self.steps:
            raise PacelineError(f"{folder}: the run has no checkpoint, which is required to compare states.")
        self.last = int(events[-1]["step"])
        self.events = {int(event["step"]): event for event in events if event["event"] == "train"}

    def checkpoint(self, step: int) -> Snapshot:
        """Raises CheckpointError where it is damaged."""
        return load_checkpoint(self.folder / "checkpoints" / step_name(step), check_snapshot)

    def elsewhere(self) -> dict[str, list[str]]:
        """What the machine of the run had otherwise than this one: name -> [there, here]."""
        compiled = {"compilation": "on"} if self.facts.system.get("compile") else {}
        there = {**self.facts.versions, **self.facts.host, **compiled}
        host = {name: value for name, value in describe_host().items() if name in ("cpu", "cpu_capability")}
        here = {**collect_versions(), "compilation": "off", **host}
        both = {name: [str(there[name]), str(now)] for name, now in here.items() if name in there}
        return {name: values for name, values in both.items() if values[0] != values[1]}


def find_differing_number(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first number of two train events that is not the same, with both values; what only one of them has is passed over."""
    mine, its = _numbers(one), _numbers(other)
    both = ((name, value, its[name]) for name, value in mine.items() if name in its)
    return next((result for result in both if str(result[1]) != str(result[2])), None)  # a NaN equals itself


def _numbers(event: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in event.items():
        if name.startswith(NUMBERS):
            result |= {f"{name}.{part}": item for part, item in value.items()} if isinstance(value, dict) else {name: value}
    return result


class Replay:
    """A run at its first weights, or at a checkpoint of it; `take` trains on.

    data   where the data lie now; "" = where run.json has them
    start  the checkpoint; None: the first weights
    Raises PacelineError where it cannot be computed here: data or weights are gone or have changed, a device is missing.
    """

    def __init__(self, records: RunPair, recipe: Recipe, data: str, start: Snapshot | None, world: DistContext) -> None:
        folder, facts = records.folder, records.facts
        self.records, self.recipe, self.world = records, recipe, world
        self.system = replace(saved_system(facts, folder), compile=False, cuda_graph=False)
        named = {"data": data or relative_data(facts)}
        self.options = options = from_json(RunOptions(), {**facts.options, **named}, f"{folder}: options")
        if options.data and not Path(options.data).expanduser().is_dir():
            raise PacelineError(
                f"{folder}: the dataset was not found at {options.data}. Pass the folder of the dataset with --data DIR"
            )
        self.task = open_task(recipe, options, world)
        if self.task.facts["hash"] != facts.data.get("hash"):
            raise DataError(f"{folder}: the images or labels in {options.data} have changed since the training.")
        self.threads = set_threads(self.system, world)
        saved = SavedRun(folder, facts).threads()
        self.threads |= {"intra_op": saved} if saved else {}
        images = {"train_images": self.task.data.train_images, "val_images": self.task.data.val_images}
        most = read_saved_count(facts, "micro_batch_size")
        plan = limit_steps(make_plan(recipe, self.system, world=1, most=most, **images), steps=options.max_steps)
        self.run = RunSpec(facts.name, recipe, "", self.system, plan, options)
        self.state = self._state(start)
        self._step = TrainStep(self.state, plan, self.system, world.device, world.group)
        self._losses: dict[str, Tensor] = {}
        # What was compared with the run's own records: how many fitted, and the first of each kind that did not.
        self.fitted: list[int] = []
        self.misfits: dict[str, dict[str, Any]] = {}

    def _state(self, start: Snapshot | None) -> State:
        task = self.task
        model = build_model(task, self.run, self.world)
        weights = load_initial_weights(get_initial_weights(self.options), self.world, SILENT) if start is None else None
        load_first_weights(model, task, self.run, self.world, ResumePoint(EvalHistory(""), snapshot=start), weights, SILENT)
        state = build_state(model, self.run, self.world)
        if start is not None:
            state.restore(start, self.world)
        return state

    def loader(self) -> Any:
        """Batches from the next step on, as a context manager."""
        rank_info = InputRank(0, 1, self.world.device, self.threads["loader"])
        one, first = self.options.overfit_one_batch, self.state.step
        return self.task.data.train_loader(self.run.plan, self.system, rank_info, first=first, one_batch=one)

    def photos(self, step: int) -> list[str]:
        """The photos of 0-based `step`, by their files below the data folder."""
        step = 0 if self.options.overfit_one_batch else step
        return [name.removeprefix(f"{self.task.facts['root']}/") for name in self.task.data.images_of_step(step)]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """As a checkpoint would have them now, on the CPU."""
        groups = self.state.snapshot(self.world, {}).tensors
        return {group: {name: tensor.detach().cpu() for name, tensor in named.items()} for group, named in groups.items()}

    def take(self, batches: Sequence[Batch], keep: int | None = None, *, follow: Follow = "all") -> StepTrace:
        """Take the next step. keep: as StepTrace's; follow: of the trace only what the step leaves behind, or nothing."""
        step, trace = self.state.step, StepTrace(keep)
        torch.set_num_threads(self.threads["intra_op"])
        torch.use_deterministic_algorithms(self.options.deterministic)
        choose_kernels(self.system)
        rates = step_rates(self.recipe, self.run.plan, step)
        if follow != "nothing":
            trace.begin(rates, batches if follow == "all" else ())
        with trace.following(self.state.model) if follow == "all" else nullcontext():
            self._losses = self._step(batches, rates, replay=False, measured=step + 1 in self.records.events)
        self.state.step = step + 1
        if follow != "nothing":
            trace.end(self.tensors())
        return trace

    def compare(self) -> None:
        """Compare the step just taken with what the run wrote down of it, if anything: into `fitted` and `misfits`."""
        state, step = self.state, self.state.step
        state.meters.add(self._losses, step - 1)
        if (event := self.records.events.get(step)) is not None:
            means, _, _ = state.meters.read(self.world)
            rates = step_rates(self.recipe, self.run.plan, step - 1)
            here = from_json_value(to_json_value({**loss_facts(means), "lr": rates.lr, **self._step.sizes.read()}))
            state.meters.clear()
            apart = find_differing_number(event, here)
            self._note("event", apart and dict(zip(("number", "recorded", "here"), apart)))
        if step in self.records.steps:
            count, apart = compare_states(self.records.checkpoint(step).tensors, self.tensors())
            self._note("checkpoint", {"tensors": count, "differing": apart} if apart else None)

    def _note(self, kind: str, misfit: dict[str, Any] | None) -> None:
        if misfit is None:
            self.fitted.append(self.state.step)
        else:
            self.misfits.setdefault(kind, {"step": self.state.step, **misfit})

    def moment(self) -> Moment:
        """The step, and every tensor that a step changes with a copy of it."""
        state = self.state
        parts = [part.state().values() for part in (state.optimizer, state.average, state.scaler) if part is not None]
        changed = [*state.model.parameters(), *state.model.buffers(), *(tensor for part in parts for tensor in part)]
        return state.step, [(tensor, tensor.detach().clone()) for tensor in changed]

    @torch.no_grad()
    def go_back(self, moment: Moment) -> None:
        """No step was taken since."""
        self.state.step, copies = moment
        for tensor, before in copies:
            tensor.copy_(before)

    @contextmanager
    def nudged(self, draw: int) -> Iterator[None]:
        """Inside, a step finds its gradients with every weight moved by a unit in its last place, in the number format of matrix
        products, up or down at random; it then updates the weights as they were.
        """
        optimizer, weights = self.state.optimizer, [weight.detach() for weight in self.state.model.parameters()]
        own, before = optimizer.step, [weight.clone() for weight in weights]
        unit, random = (
            torch.finfo(TYPES.get(self.system.precision, torch.float32)).eps,
            torch.Generator().manual_seed(draw),
        )
        for weight in weights:
            weight *= 1 + unit * (2 * torch.randint(2, weight.shape, generator=random) - 1).to(weight)

        def step(*numbers: Any, **more: Any) -> None:
            for weight, was in zip(weights, before):
                weight.copy_(was)
            own(*numbers, **more)

        optimizer.step = step  # type: ignore[method-assign]
        try:
            yield
        finally:
            del optimizer.step

    @contextmanager
    def other_threads(self) -> Iterator[None]:
        """Inside, a CPU adds in another order: on two threads where it was one, else on one."""
        own = self.threads
        self.threads = {**own, "intra_op": 2 if own["intra_op"] == 1 else 1}
        try:
            yield
        finally:
            self.threads = own


@contextmanager
def open_single_rank(records: Sequence[RunPair]) -> Iterator[DistContext]:
    """The world of one process on the device of these runs; the process's own settings come back after it.

    Raises RecipeError for runs of several ranks, and where this machine lacks their device.
    """
    systems = [saved_system(one.facts, one.folder) for one in records]
    for one, system in zip(records, systems):
        if one.facts.world_size != 1:
            raise RecipeError(
                f"{one.folder}: trained by {one.facts.world_size} processes. Only runs of one process are supported."
            )
        if system.device != systems[0].device:
            raise RecipeError(f"{one.folder}: trained on {system.device}, and the other run on {systems[0].device}.")
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        with open_distributed(SINGLE, device=choose_device(systems[0], 0)) as world:
            yield world
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(exact)
        choose_kernels(replace(systems[0], kernels="torch"))


# Tried are the weights that differ most, in the bits whose flip is nearest to their difference; at most so many steps in all.
WEIGHTS, BITS, MAX_STEPS = 4, 3, 500


def find_flip(side: Replay, steps: range, recorded: Snapshot) -> dict[str, Any] | None:
    """-> {step, name, at, bit}: the 1-based step before which that bit of a weight flipped; None where no single one explains it.

    side      the run at a state it had, at the first of `steps` or before; of no use afterwards
    steps     0-based, before which it may have been
    recorded  the run's checkpoint after them
    """
    last = int(recorded.facts["step"])
    if len(steps) * WEIGHTS * BITS * (last - steps.start) > MAX_STEPS:
        return None
    batches, moments = {}, {}
    with side.loader() as loader:
        for step, ours in loader:
            if step in steps:
                moments[step] = side.moment()
            if step in range(steps.start, last):
                batches[step] = [batch.to(side.world.device, copy=True) for batch in ours]
            side.take(ours, follow="nothing")
            if step + 1 == last:
                break
    weights = {name: weight.detach() for name, weight in side.state.model.named_parameters()}
    tries = _tries(recorded.tensors["model"], weights)
    for step, (name, location, bit) in product(steps, tries):
        side.go_back(moments[step])
        flip_bit(weights[name], location, bit)
        for number in range(step, last):
            side.take(batches[number], follow="nothing")
        if not compare_states(recorded.tensors, side.tensors())[1]:
            return {"step": step + 1, "name": name, "at": list(location), "bit": bit}
    return None


def flip_bit(weight: Tensor, location: tuple[int, ...], bit: int) -> None:
    """Flip a bit, 0 the last of the mantissa, of the float32 at `location`, in memory."""
    weight.view(torch.int32)[location] ^= -(2**31) if bit == 31 else 1 << bit


def _tries(recorded: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, ...], int]]:
    """Weight, place and bit, the likeliest first: steps move weights by little, so a flip is most of the difference at its place."""
    results = [(name, compare_tensors(weight.cpu(), recorded[name])) for name, weight in weights.items()]
    apart = sorted((one for one in results if one[1].get("largest")), key=lambda one: -one[1]["largest"])[:WEIGHTS]
    tries = []
    for name, one in apart:
        here, there = (torch.tensor(value, dtype=torch.float32) for value in one["values"])
        flipped = here.repeat(32)
        for bit in range(32):
            flip_bit(flipped, (bit,), bit)
        nearest = (flipped.double() - there.double()).abs().nan_to_num(nan=torch.inf).argsort()
        tries += [(name, tuple(one["at"]), int(bit)) for bit in nearest[:BITS]]
    return tries

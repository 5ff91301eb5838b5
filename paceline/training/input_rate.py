"""Whether CPU cores make images as fast as an accelerator's step takes them. The plan states it, --input.decoder auto uses it.

The rate of one core is measured on the data set itself, once for each processor, data set and data treatment, and kept in the cache
folder. The rate of the step comes from published measurements, and is known only for the recipes' own input sizes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from paceline._utils.cache import cached_answer
from paceline._utils.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.reference_rates import find_reference_rate
from paceline.config.resnet import decoder_rule
from paceline.config.run import RunRecord
from paceline.config.system import System
from paceline.data.loader.gpu_decode import get_gpu_decoder
from paceline.data.transforms.sample import decode_and_transform, sample_spec
from paceline.distributed.device.accelerators import get_device_name
from paceline.distributed.device.provenance import collect_versions, get_cpu_name
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank, Task

SAMPLES = 64  # that are measured at most


@dataclass(frozen=True)
class InputRate:
    """Images a second of one rank."""

    one_core: float  # made by one core
    cores: int  # that make them
    step: float  # taken by the step at its published best; 0: not known

    @property
    def short(self) -> bool:
        """Whether the step would wait for images."""
        return 0 < self.one_core * self.cores < self.step

    def format_line(self) -> str:
        """A line for the plan, and for the note that the step waits."""
        made = f"{self.one_core:,.0f} images/s on one core, {self.one_core * self.cores:,.0f} on {self.cores}"
        return f"{made}; the step needs up to {self.step:,.0f} images/s (published)" if self.step else made

    @staticmethod
    def remedy(recipe: Recipe) -> str:
        """What helps where cores are short."""
        pack = "paceline data pack DIR --format recordio --resize-shorter-side 352 --output-dir SMALLER"
        smaller = f"Use more cores, or smaller images:  {pack}"
        return f"Set --input.decoder auto to decode on the GPU. {smaller}" if _fits_a_device(recipe) else smaller


def measure_input_rate(task: Task, rank_info: InputRank, world: int) -> InputRate | None:
    """None on a CPU, for made-up batches, and for a workload that is not ours."""
    if rank_info.device.type == "cpu" or not hasattr(task.data, "train_index") or task.recipe.task not in WORKLOADS:
        return None
    question = {"cpu": get_cpu_name(), "data": task.facts, "input": asdict(task.recipe.input), **collect_versions()}
    kept = cached_answer("input-rate", question, lambda: {"one_core": limit_to_one_core(task)})
    published, usual = find_reference_rate(task.recipe.task, get_device_name(rank_info.device), world), task.workload.input
    largest = task.workload.network.largest
    same = largest(task.recipe) == largest(replace(task.recipe, input=usual))
    return InputRate(kept["one_core"], rank_info.threads, published.rate if published is not None and same else 0.0)


def limit_to_one_core(task: Task) -> float:
    """Training images per second of CPU time of one core, which other processes do not change."""
    epochs, indices = task.data.samples(0)
    numbers, began = task.data.train_numbers[indices][:SAMPLES], 0.0
    fit = task.data.shapes.of_step(0, numbers)
    out, draw = np.empty((*fit.shape, 3), np.uint8), partial(task.data.draw_train, fit)
    records = task.data.train_index.records
    samples = list(zip(epochs.tolist(), numbers.tolist(), strict=False))
    for turn, (epoch, index) in enumerate([samples[0], *samples]):
        if turn == 1:  # what is made once has been made
            began = time.thread_time()
        data = records.read(index)
        decode_and_transform(data, sample_spec(data, records, draw, epoch, index, task.recipe.input.exif), out)
    return len(samples) / max(1e-6, time.thread_time() - began)


def resolve_decoder(recipe: Recipe, system: System, on_cpu: bool, saved: RunRecord | None) -> Recipe:
    """`auto` where no data are needed to decide: a resumed run keeps its decoder, and the CPU decodes where nothing else can.

    on_cpu  --deterministic asks for it, or --synthetic decodes nothing
    """
    if getattr(recipe.input, "decoder", "") != "auto":
        return recipe
    if saved is not None:
        return describe_decoder(recipe, saved.recipe["input"]["decoder"])
    where_it_can_be = system.device == "cuda" and not on_cpu and _fits_a_device(recipe)
    return recipe if where_it_can_be else describe_decoder(recipe, "simplejpeg")


def choose_decoder(recipe: Recipe, rank_info: InputRank, feeding: InputRate | None) -> str:
    """What `auto` is once the rates are known: the device decodes if the cores would be short, and if it can."""
    if feeding is not None and feeding.short and _fits_a_device(recipe):
        with suppress(RecipeError):  # a torchvision without CUDA
            get_gpu_decoder(rank_info.device)
            return "nvjpeg"
    return "simplejpeg"


def describe_decoder(recipe: Recipe, decoder: str) -> Recipe:
    """The recipe with this decoder."""
    return replace(recipe, input=replace(recipe.input, decoder=decoder))


def _fits_a_device(recipe: Recipe) -> bool:
    return decoder_rule(describe_decoder(recipe, "nvjpeg").input)[2]

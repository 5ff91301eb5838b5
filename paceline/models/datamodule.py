"""A data module: from the records of one data set to the batches of one recipe. The loop, evaluation and preview read it.

Here is what all workloads on photos share: loaders over the sample stream, and the images of a step. A workload's own data module
(task.py of each network) defines how a photo becomes a sample, `draw_train`.

Letters: n images   H, W pixels of the network's input
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from paceline._utils.errors import DataError, RecipeError
from paceline.config.plan import BatchPlan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.system import System, parse_store_cache_bytes
from paceline.data.batch import Batch, RepeatBatch
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.data.index.records import RecordReader
from paceline.data.index.splits import select_half
from paceline.data.loader.gpu_decode import choose_gpu_decoder
from paceline.data.loader.loader import Loader
from paceline.data.loader.sampler import (
    Order,
    batch_indices,
    evaluation_shard,
    format_rarest_first,
    format_sampling,
    sampled_order,
    sampling_rates,
    stream_positions,
)
from paceline.data.loader.slots import MicroBatch
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header, read_header
from paceline.data.transforms.sample import DrawSample, decode_and_transform, with_partners
from paceline.data.workers.crew import WORTH_PROCESSES
from paceline.models.batch_shapes import AspectBuckets, ResizedShape, Shape, SquareShapes
from paceline.models.task import Evaluator, InputRank

if TYPE_CHECKING:
    from paceline.models.weights.classes import Labels


# Each has as many requests in flight as the store allows (Store.at_once); while one waits for its last, the others go on.
BUCKET_THREADS = 2


class DataModule(ABC):
    """A data set as a recipe uses it: from its records to batches."""

    classes: Sequence[str]  # readable names, by class index
    category_ids: Sequence[int] = ()  # of a detector: the annotations' ids, as `classes`
    facts: Mapping[str, Any]  # about the data, for run.json
    train_index: Index
    val_index: Index
    train_numbers: np.ndarray  # of this run's training images in their index
    val_numbers: np.ndarray
    shapes: SquareShapes | AspectBuckets  # of the network's input
    max_objects = 0  # of one training image
    class_weights: np.ndarray | None = None  # (K,) float64, in the loss
    # Images (n, 3, H, W), labels of n, indices (n,), and the fewest object slots by name, `least` -> a batch
    batch: Callable[..., Batch]
    evaluator: Callable[[Any], Evaluator]  # of this data module; raises DataError for data that cannot be scored

    def __init__(self, recipe: Recipe, manifest: Manifest, limits: tuple[int, int] = (0, 0)) -> None:
        """limits: most images of training and of validation, evenly spread; 0 = all."""
        self.recipe, self.manifest, self.limits = recipe, manifest, limits

    def __getstate__(self) -> dict[str, Any]:
        """What worker processes need to draw samples."""
        return {name: value for name, value in vars(self).items() if name != "shapes"}  # orders of whole epochs

    def choose_images(self, usable: np.ndarray, **more: Any) -> None:
        """Choose this run's images, once both indexes are open, and record the facts.

        usable  numbers of the training images that can be used; of a fold, its own are left out and evaluated
        more    further facts
        """
        scored, fold, data_hash = np.arange(len(self.val_index)), self.manifest.fold, self.manifest.content_hash
        if fold is not None:
            usable, scored = usable[~fold.held_out[usable]], np.flatnonzero(fold.held_out)
        if half := self.manifest.half:
            scored = scored[select_half(map(self.val_index.relative_name, scored.tolist()), half)]
            if not len(scored):
                raise DataError(f"--val-subset {half}: has none of the validation images of {self.manifest.called}.")
        images = len(usable), len(scored)
        self.train_numbers = usable[select_evenly(images[0], self.limits[0])]
        self.val_numbers = scored[select_evenly(images[1], self.limits[1])]
        self.is_target_data = is_target_data(self.recipe, self.manifest, images)
        self.facts = {
            "root": str(self.manifest.root_path),
            "manifest": str(self.manifest.folder),
            "hash": data_hash if fold is None else fold.hash(data_hash),
            **({} if fold is None else {"fold": fold.facts(data_hash)}),
            **({"half": half} if half else {}),
            **more,
            **({"part_of": self.manifest.part_of} if self.manifest.part_of else {}),
            "train_images": self.train_images,
            "val_images": self.val_images,
        }

    def sampled(self, photos: np.ndarray, classes: np.ndarray) -> Order | None:
        """The order of the recipe's sampler, which becomes a fact; None: each image once an epoch.

        photos, classes  (M,) int: places among the training images, and the classes that each of them has; each pair once
        """
        recipe, images = self.recipe, self.train_images
        if recipe.sampler == "random":
            return None
        rates = sampling_rates(recipe.sampler, images, photos, classes, recipe.repeat_threshold)
        self.facts = {**self.facts, "draws": format_sampling(rates, photos, classes, self.classes)}
        kinds = np.zeros(images, np.int64)
        kinds[photos] = classes  # of several, any: photos of a class may replace each other
        return sampled_order(rates, kinds, seed=recipe.seed)

    def weigh(self, counts: np.ndarray) -> None:
        """Keep the class weights of the recipe's `model.class_weights`, which become a fact, where it has any.

        counts  (K,) int, how often each class is learned
        """
        if getattr(self.recipe.model, "class_weights", "none") == "none":
            return
        weights = counts.sum() / max(1, np.count_nonzero(counts)) / np.maximum(counts, 1)
        self.class_weights = np.where(counts == 0, 1.0, weights)  # never learned: any would do
        self.facts = {**self.facts, "class_weights": format_rarest_first(counts, weights, self.classes, ".3g")}

    @property
    def train_images(self) -> int:
        """Training images of this run."""
        return len(self.train_numbers)

    @property
    def val_images(self) -> int:
        """Validation images of this run."""
        return len(self.val_numbers)

    @staticmethod
    @abstractmethod
    def dummy_batch(recipe: Recipe, images: int, shape: Shape, slots: int) -> Batch:
        """A made-up batch: n images of H x W with `slots` object slots each."""

    @staticmethod
    @abstractmethod
    def draw_eval(recipe: Recipe, header: Header, name: str, shape: Shape) -> SampleSpec:
        """The Draw of a photo for an evaluation input of H x W."""

    @abstractmethod
    def draw_train(self, fit: ResizedShape, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        """Decide the sample of training photo `index` in this epoch, from its header without its pixels."""

    def draw_val(self, fit: ResizedShape, _: int, index: int, header: Header, name: str) -> SampleSpec:
        """Decide the sample of validation photo `index`."""
        return self.draw_eval(self.recipe, header, name, fit.shape)

    def setup(self, model: nn.Module) -> None:
        """Give the network what follows from the data: the class weights. Raises RecipeError where it has no place for them."""
        if self.class_weights is None:
            return
        weights = getattr(model, "class_weights", None)
        if weights is None:
            raise RecipeError(f"--model.class-weights: not supported by {type(model).__name__}. Set the flag to none.")
        # Background is first, and 1.
        weights[-len(self.class_weights) :].copy_(torch.from_numpy(self.class_weights))

    def labels(self) -> Labels:
        """The classes whose rows of a weight file are kept, by name."""
        from paceline.models.weights.classes import Labels

        folders = self.manifest.classes if self.manifest.kind == "class-folder" else ()
        return Labels(tuple(self.classes), tuple(self.category_ids), tuple(folders))

    @contextmanager
    def reading(self, train: RecordReader, val: RecordReader) -> Iterator[None]:
        """Inside, photos are read from these records: of a local copy, or of a cache in memory."""
        before = self.train_index, self.val_index
        self.train_index, self.val_index = replace(before[0], records=train), replace(before[1], records=val)
        try:
            yield
        finally:
            self.train_index, self.val_index = before

    def samples(
        self, step: int, *, rank: int = 0, world: int = 1, forwards: int = 1, join: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """-> epochs and places among the training images: a rank's share of a step, by forward; of one rank, the whole step."""
        share = {"rank": rank, "world": world, "forwards": forwards, "join": join}
        positions = stream_positions(step=step, global_batch_size=self.recipe.global_batch_size, **share)
        return batch_indices(self.train_images, positions, seed=self.recipe.seed, order=self.shapes.order)

    def train_loader(
        self, plan: BatchPlan, system: System, rank_info: InputRank, *, first: int = 0, one_batch: bool = False
    ) -> Loader | RepeatBatch:
        """Augmented batches from step `first` to the run's last; with one_batch, step 0's pixels again and again."""

        def schedule(step: int) -> Sequence[MicroBatch]:
            epochs, indices = self.samples(
                step, rank=rank_info.rank, world=plan.world_size, forwards=plan.micro_batches, join=plan.bn_ranks
            )
            # Padding must cover the global batch, not only this rank's photos.
            whole = self.samples(step)[1] if self.shapes.vary else indices
            fit = self.shapes.of_step(step, self.train_numbers[whole])
            split = (np.split(these, plan.micro_batches) for these in (epochs, self.train_numbers[indices]))
            draw = partial(self.draw_train, fit)
            return [MicroBatch(when, numbers, fit.shape, draw) for when, numbers in zip(*split)]

        # A new shape would be compiled, captured or autotuned again; elsewhere empty slots cost time. Slots by each batch's objects
        # would multiply a run's captures, ten of Mask R-CNN's shapes by five slots, and ranks would have to agree on them, since a
        # first capture exchanges: the batch's fullest image of all ranks decides, mostly 32 or 64 of COCO's 128 (results/step-calls).
        least = self.objects_per_probe(rank_info.device) if is_shape_costly(system, rank_info.device) else 0
        largest = self.shapes.largest_of_run(plan)
        loader = Loader(
            records=open_configured_records(self.train_index, system),
            io_threads=choose_fetch_threads(self.train_index.records, system),
            exif=self.recipe.input.exif,
            draw=partial(self.draw_train, largest),
            schedule=schedule,
            first_step=0 if one_batch else first,
            last_step=1 if one_batch else plan.stop_after,
            threads=rank_info.threads,
            processes=not one_batch
            and (plan.stop_after - first) * plan.global_batch_size >= WORTH_PROCESSES * plan.world_size,
            prefetch=system.prefetch_steps,
            image_shape=(*largest.shape, 3),
            device=rank_info.device,
            render_batch=choose_gpu_decoder(self.recipe.input, rank_info.device),
            make_batch=partial(self.batch, least=least),
            # A CPU's batches differ in their slots, and stay where they are rendered.
            like=()
            if rank_info.device.type == "cpu"
            else [self.warm_up_batch(plan, torch.device("meta"))] * plan.micro_batches,
        )
        return RepeatBatch.first_of(loader, first_step=first, last_step=plan.stop_after) if one_batch else loader

    def val_loader(self, batch: int, system: System, rank_info: InputRank) -> Loader | RepeatBatch:
        """This rank's share of the validation images, once, in batches of at most `batch`."""
        mine = self.val_numbers[list(evaluation_shard(self.val_images, rank_info.rank, rank_info.world))]
        parts, largest = self.shapes.evaluation(mine, batch)

        def schedule(step: int) -> Sequence[MicroBatch]:
            numbers, fit = parts[step]
            return [MicroBatch(np.zeros(len(numbers), np.int64), numbers, fit.shape, partial(self.draw_val, fit))]

        return Loader(
            records=open_configured_records(self.val_index, system),
            io_threads=choose_fetch_threads(self.val_index.records, system),
            exif=self.recipe.input.exif,
            draw=partial(self.draw_val, ResizedShape(min(largest), largest)),
            schedule=schedule,
            first_step=0,
            last_step=len(parts),
            threads=rank_info.threads,
            processes=len(mine) >= WORTH_PROCESSES,
            prefetch=system.prefetch_steps,
            image_shape=(*largest, 3),
            device=rank_info.device,
            render_batch=choose_gpu_decoder(self.recipe.input, rank_info.device),
            make_batch=self.batch,
        )

    def input_shapes(self, plan: BatchPlan) -> list[Shape]:
        """H, W of every input of this run's steps, the largest first. A batch's other shapes follow from `objects_per_probe`."""
        return list(dict.fromkeys(fit.shape for fit in self.shapes.of_run(plan)))

    def warm_up_batch(self, plan: BatchPlan, device: torch.device, shape: Shape | None = None) -> Batch:
        """A made-up batch for a discarded step. shape: H, W of its input; None: as large as any of this run."""
        shape = shape or self.shapes.largest_of_run(plan).shape
        batch = self.dummy_batch(self.recipe, plan.micro_batch_size, shape, self.objects_per_probe(device))
        return batch.to(device)

    def warm_up_step(self, plan: BatchPlan, device: torch.device, shape: Shape | None = None) -> list[Batch]:
        """The batches of such a step: a whole loss group, or two forwards if gradients accumulate over several."""
        forwards = max(plan.loss_micro_batches, min(plan.micro_batches, 2))
        return [self.warm_up_batch(plan, device, shape)] * forwards

    def objects_per_probe(self, device: torch.device) -> int:
        """Objects of an image of a warm-up batch: as many as every batch has room for where shapes must not change."""
        return self.max_objects

    def images_of_step(self, step: int) -> list[str]:
        """Files of the whole global batch of a step."""
        return [self.train_index.name(int(number)) for number in self.train_numbers[self.samples(step)[1]]]

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, Any]:
        """Training image `number` as the network gets it in this epoch, for preview: (H, W, 3) uint8 pixels, and its label."""
        index = int(self.train_numbers[number])
        fit = self.shapes.of_sample(index)
        pixels = np.empty((*fit.shape, 3), np.uint8)
        return pixels, self.render(self.train_index, partial(self.draw_train, fit), epoch, index, pixels).label

    def samples_of_step(self, step: int) -> Iterator[tuple[np.ndarray, Any]]:
        """`sample` of every image of a whole step; in place of the label a string may say what is seen."""
        return (self.sample(int(epoch), int(number)) for epoch, number in zip(*self.samples(step)))

    def render(self, index: Index, draw: DrawSample, epoch: int, number: int, out: np.ndarray) -> SampleSpec:
        """Render photo `number` of the index as a loader would, into `out`, (H, W, 3) uint8; -> its Draw."""
        data, name = index.read(number), index.name(number)
        exif = self.recipe.input.exif
        drawn = with_partners(draw(epoch, number, read_header(data, name, exif), name), index.records.read_many, exif)
        decode_and_transform(data, drawn, out)
        return drawn


def is_shape_costly(system: System, device: torch.device) -> bool:
    """Whether a step's first input of a new shape costs more than others: on accelerators, and where the network is compiled."""
    return device.type != "cpu" or system.compile == "on"


def open_configured_records(index: Index, system: System) -> RecordReader:
    """A split's photos by the system's settings: through its cache of remote stores, and their bytes compared or not."""
    records = index.records.kept_on_disk(parse_store_cache_bytes(system.disk_cache))
    return records if system.verify_checksums else records.unchecked()


def choose_fetch_threads(records: RecordReader, system: System) -> int:
    """The configured number; else enough for a store that serves several requests at once, and none for files."""
    return system.io_threads or (BUCKET_THREADS if records.at_once > 1 else 0)


def select_evenly(images: int, limit: int) -> np.ndarray:
    """Numbers of `limit` (0 = all) of `images` images, evenly spread: the first ones of a class-folder set would be a few classes."""
    kept = min(limit or images, images)
    return np.arange(kept) * images // max(1, kept)


def is_target_data(recipe: Recipe, manifest: Manifest, images: tuple[int, int]) -> bool:
    """Whether the recipe's quality target was set for this data; images: of training and validation that this recipe would use."""
    if images != DATA_IMAGES.get(recipe.target_data):
        return False
    return recipe.target_data in ("imagenet", "coco") or manifest.root_path.name.startswith(f"{recipe.target_data}-")

"""Convert the records of a dataset to the batches of a recipe, for training, evaluation, and preview.

`DataModule` has the parts that all tasks share: loaders over the sample stream, and the images of a step. The subclass of a task
(task.py of each network) defines how an image becomes a sample (`draw_train`).

Notation: n is the number of images. H and W are the height and width of the network input in pixels.
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
    """Convert a dataset to the batches of a recipe. Subclass it for a custom type of data.

    Attributes:
        classes (Sequence[str]), category_ids (Sequence[int]): class names, and, for detectors, ids in the annotation file.
        facts (Mapping[str, Any]): metadata of the dataset for run.json.
        train_index, val_index (Index): records of the training and validation images.
        train_numbers, val_numbers (ndarray): indices of the images of this run in `train_index` and `val_index`.
        shapes (SquareShapes or AspectBuckets): sizes of the network input.
        max_objects (int): maximum number of objects in a training image.
        class_weights (ndarray or None): weights of the classes in the loss, shape (K,), float64.
        batch (Callable): makes a batch from images (n, 3, H, W), n labels, indices (n,), and `least`, the minimum object slots.
        evaluator (Callable): returns the evaluator of a data module. It raises DataError if the data cannot be scored.
    """

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
        """Store the arguments. `limits`: maximum training and validation images, evenly spaced (0: all)."""
        self.recipe, self.manifest, self.limits = recipe, manifest, limits

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that worker processes need to draw samples."""
        return {name: value for name, value in vars(self).items() if name != "shapes"}  # orders of whole epochs

    def choose_images(self, usable: np.ndarray, **more: Any) -> None:
        """Select the images of this run, and record them in `facts`. Call it after both indexes are open.

        If the run has a fold, its images are removed from the training images, and become the validation images.

        Args:
            usable (ndarray): indices of the training images that can be used.
            **more (Any): additional entries of `facts`.
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
        """Return the sample order of the recipe's sampler, and record it in `facts`.

        Args:
            photos, classes (ndarray): training-image positions and their classes, one element per pair, shape (M,), int.

        Returns:
            Order or None: function that maps an epoch to its order. None: each image is used once per epoch.
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
        """Compute the class weights if the recipe requests them, and record them in `facts`.

        Args:
            counts (ndarray): number of training samples per class, shape (K,), int.
        """
        if getattr(self.recipe.model, "class_weights", "none") == "none":
            return
        weights = counts.sum() / max(1, np.count_nonzero(counts)) / np.maximum(counts, 1)
        self.class_weights = np.where(counts == 0, 1.0, weights)  # never learned: any would do
        self.facts = {**self.facts, "class_weights": format_rarest_first(counts, weights, self.classes, ".3g")}

    @property
    def train_images(self) -> int:
        """int: number of training images of this run."""
        return len(self.train_numbers)

    @property
    def val_images(self) -> int:
        """int: number of validation images of this run."""
        return len(self.val_numbers)

    @staticmethod
    @abstractmethod
    def dummy_batch(recipe: Recipe, images: int, shape: Shape, slots: int) -> Batch:
        """Return a synthetic batch of `images` images of size `shape` (H, W) with `slots` object slots each."""

    @staticmethod
    @abstractmethod
    def draw_eval(recipe: Recipe, header: Header, name: str, shape: Shape) -> SampleSpec:
        """Define how an image becomes an evaluation input of size `shape` (H, W). Messages use `name`."""

    @abstractmethod
    def draw_train(self, fit: ResizedShape, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        """Define the training sample of an image, including augmentation, from its header without its pixels.

        Args:
            fit (ResizedShape): size of the resized image and of the network input.
            epoch, index (int): epoch, and index of the image in `train_index`. They determine the random parameters.
            header (Header), name (str): size and format of the image, and its name for messages.
        """

    def draw_val(self, fit: ResizedShape, _: int, index: int, header: Header, name: str) -> SampleSpec:
        """Define the sample of the validation image `index`. The arguments are those of `draw_train`."""
        return self.draw_eval(self.recipe, header, name, fit.shape)

    def setup(self, model: nn.Module) -> None:
        """Copy the class weights to the network. Raise RecipeError if the network does not support them."""
        if self.class_weights is None:
            return
        weights = getattr(model, "class_weights", None)
        if weights is None:
            raise RecipeError(f"--model.class-weights: not supported by {type(model).__name__}. Set the flag to none.")
        # Background is first, and 1.
        weights[-len(self.class_weights) :].copy_(torch.from_numpy(self.class_weights))

    def labels(self) -> Labels:
        """Return the classes of the dataset, which are matched by name with those of a weight file."""
        from paceline.models.weights.classes import Labels

        folders = self.manifest.classes if self.manifest.kind == "class-folder" else ()
        return Labels(tuple(self.classes), tuple(self.category_ids), tuple(folders))

    @contextmanager
    def reading(self, train: RecordReader, val: RecordReader) -> Iterator[None]:
        """Read images from other records in a `with` block, such as a local copy or a cache in memory."""
        before = self.train_index, self.val_index
        self.train_index, self.val_index = replace(before[0], records=train), replace(before[1], records=val)
        try:
            yield
        finally:
            self.train_index, self.val_index = before

    def samples(
        self, step: int, *, rank: int = 0, world: int = 1, forwards: int = 1, join: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of a rank in a step, by micro-batch. The defaults return the global batch.

        Args:
            step (int): step, from 0.
            rank, world (int): rank, and number of training ranks. Default: 0 and 1
            forwards, join (int): micro-batches per step, and ranks that share BatchNorm statistics. Default: 1 and 1

        Returns:
            tuple[ndarray, ndarray]: epochs and positions among the training images, shape (global_batch_size // world,), int64.
        """
        share = {"rank": rank, "world": world, "forwards": forwards, "join": join}
        positions = stream_positions(step=step, global_batch_size=self.recipe.global_batch_size, **share)
        return batch_indices(self.train_images, positions, seed=self.recipe.seed, order=self.shapes.order)

    def train_loader(
        self, plan: BatchPlan, system: System, rank_info: InputRank, *, first: int = 0, one_batch: bool = False
    ) -> Loader | RepeatBatch:
        """Return a loader of augmented training batches from step `first` to the end of the run.

        If `one_batch` is True, the loader repeats the batch of step 0.
        """

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
        """Return a loader of this rank's part of the validation images, in batches of at most `batch`."""
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
        """Return all input sizes (H, W) of this run, largest first.

        The other dimensions of a batch follow from `objects_per_probe`.
        """
        return list(dict.fromkeys(fit.shape for fit in self.shapes.of_run(plan)))

    def warm_up_batch(self, plan: BatchPlan, device: torch.device, shape: Shape | None = None) -> Batch:
        """Return a synthetic micro-batch for a warm-up step, which is discarded.

        `shape` is the input size (H, W). The default is the largest input of the run.
        """
        shape = shape or self.shapes.largest_of_run(plan).shape
        batch = self.dummy_batch(self.recipe, plan.micro_batch_size, shape, self.objects_per_probe(device))
        return batch.to(device)

    def warm_up_step(self, plan: BatchPlan, device: torch.device, shape: Shape | None = None) -> list[Batch]:
        """Return the synthetic micro-batches of a warm-up step.

        They are a complete loss group, and at least two micro-batches if the run accumulates gradients.
        """
        forwards = max(plan.loss_micro_batches, min(plan.micro_batches, 2))
        return [self.warm_up_batch(plan, device, shape)] * forwards

    def objects_per_probe(self, device: torch.device) -> int:
        """Return the number of objects per image in a warm-up batch.

        If shapes must not change, every training batch has at least this many object slots. The default is `max_objects`.
        """
        return self.max_objects

    def images_of_step(self, step: int) -> list[str]:
        """Return the file names of the images in the global batch of a step."""
        return [self.train_index.name(int(number)) for number in self.train_numbers[self.samples(step)[1]]]

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, Any]:
        """Return a training image as the network receives it in an epoch, for preview.

        `number` is the position among the training images. The result is pixels of shape (H, W, 3), uint8, and the label.
        """
        index = int(self.train_numbers[number])
        fit = self.shapes.of_sample(index)
        pixels = np.empty((*fit.shape, 3), np.uint8)
        return pixels, self.render(self.train_index, partial(self.draw_train, fit), epoch, index, pixels).label

    def samples_of_step(self, step: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield the result of `sample` for each image in the global batch of a step.

        Instead of the label, a subclass may return a text that describes the image.
        """
        return (self.sample(int(epoch), int(number)) for epoch, number in zip(*self.samples(step)))

    def render(self, index: Index, draw: DrawSample, epoch: int, number: int, out: np.ndarray) -> SampleSpec:
        """Decode and transform image `number` of the index as a loader does, and return its definition.

        The pixels are written to `out`, shape (H, W, 3), uint8. `draw` defines the sample.
        """
        data, name = index.read(number), index.name(number)
        exif = self.recipe.input.exif
        drawn = with_partners(draw(epoch, number, read_header(data, name, exif), name), index.records.read_many, exif)
        decode_and_transform(data, drawn, out)
        return drawn


def is_shape_costly(system: System, device: torch.device) -> bool:
    """Return True if the first step of a new input shape is slow: on accelerators, or if compiled."""
    return device.type != "cpu" or system.compile == "on"


def open_configured_records(index: Index, system: System) -> RecordReader:
    """Open the records of a split with the disk cache and the checksum setting of the system."""
    records = index.records.kept_on_disk(parse_store_cache_bytes(system.disk_cache))
    return records if system.verify_checksums else records.unchecked()


def choose_fetch_threads(records: RecordReader, system: System) -> int:
    """Return the configured number of threads. 0 selects 2 for a parallel store, and none for files."""
    return system.io_threads or (BUCKET_THREADS if records.at_once > 1 else 0)


def select_evenly(images: int, limit: int) -> np.ndarray:
    """Return `limit` (0: all) evenly spaced indices, as the first images may be of only a few classes."""
    kept = min(limit or images, images)
    return np.arange(kept) * images // max(1, kept)


def is_target_data(recipe: Recipe, manifest: Manifest, images: tuple[int, int]) -> bool:
    """Return True if the target was set for this dataset, with these training and validation counts."""
    if images != DATA_IMAGES.get(recipe.target_data):
        return False
    return recipe.target_data in ("imagenet", "coco") or manifest.root_path.name.startswith(f"{recipe.target_data}-")

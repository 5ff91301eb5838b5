"""`paceline bench input --task maskrcnn`: annotated photos to Mask R-CNN training batches, beside torchvision's v2 transforms.

Measured as the photos of classification are (bench/input.py): one process, contenders in turn, CPU-seconds of all
processes. Every contender reads the file and decodes it, makes the shorter side 800 pixels (at most 1333 for the longer one),
flips every second photo, and hands over pixels, boxes, classes and masks of all objects but crowds, of the same photos.
torchvision's side is CocoDetection, wrapped for the v2 transforms: a bitmap of the whole photo for each object, resized and
flipped along. Ours are small canvases around each object, made after the resize. Two things are left out of torchvision's
side, to its advantage: photos are not padded into one batch, and the annotations are in memory as Python objects.
`bare decode` decodes whole photos and does nothing else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from paceline.bench.input import ROUNDS, installed_decoders, measure_in_turn, require_linux, show, summary
from paceline.bench.input_contenders import Take, bare_decode
from paceline.config.errors import DataError
from paceline.config.instances import InstanceInput, MaskRCNNModel
from paceline.config.plan import make_plan
from paceline.config.recipe import Quality, Recipe
from paceline.config.system import System
from paceline.data.decode import Decoder, require_decoder
from paceline.data.manifest import Manifest
from paceline.prepare.box_folder import ensure_boxes_prepared
from paceline.systems.detect import cpu_cores
from paceline.tasks.maskrcnn import InstanceSegmentation
from paceline.tasks.task import Place
from paceline.workloads import WORKLOADS

BATCH = 8  # photos: a batch of them takes 25 MB, and torchvision's masks of its objects twice that
STEPS = 1_000_000  # more than are ever taken


def run_mask_input_bench(
    data: Path,
    *,
    seconds: float = 3.0,
    size: int = 800,
    decoders: list[Decoder] | None = None,
    out: Path | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure, print a table, write JSON to `out`, return what was written.

    data      a data set with masks in COCO's layout; its training photos that have objects are used
    seconds   measured per contender and round
    size      the shorter side, pixels; the longer one has 5/3 of it at most
    decoders  ours to run; None: the default and every extra that is installed
    Raises DataError for data that cannot be used, RecipeError when a decoder is missing, UserError off Linux.
    """
    require_linux()
    chosen = installed_decoders() if decoders is None else decoders
    for decoder in chosen:
        require_decoder(decoder)
    console = Console()
    manifest = Manifest.load(ensure_boxes_prepared(data, say=console.print))
    settings = InstanceInput(short=(size,), long=int(size * 1333 / 800))
    task = instance_task(manifest, settings)
    if not task.train_images:
        raise DataError(f"{data}: no training photo has an object. Give annotated photos:  --data DIR")
    annotations = sorted((data / "annotations").glob("instances_train*.json"))
    if not annotations:
        raise DataError(
            f"{data}: no annotations/instances_train*.json, from which torchvision's data set reads.\n"
            "Give a data set in COCO's layout:  --data DIR"
        )
    cores = cpu_cores()
    menu = contenders(manifest, task, annotations[0], settings, cores, chosen)
    console.print(f"{task.train_images} photos, {len(menu)} contenders, {rounds} rounds of {seconds:g} s each")
    measured = measure_in_turn(menu, rounds, seconds, console)
    report = summary(measured, paths_of(task), size, seconds, cores)
    report["objects"] = int(task.wanted.sum())
    show(report, "decode + resize + flip with boxes and masks (medians over rounds)", console, out)
    return report


def instance_task(
    manifest: Manifest, settings: InstanceInput, batch: int = BATCH, images: int = STEPS * BATCH
) -> InstanceSegmentation:
    """The training task with this input, on so many images."""
    recipe = Recipe(
        task="maskrcnn", model=MaskRCNNModel(), input=settings, target_data="coco", global_batch=batch,
        images_seen=images, bn_span=1, quality=Quality(unit="run"),
    )  # fmt: skip
    return InstanceSegmentation(WORKLOADS["maskrcnn"], recipe, manifest)


def paths_of(task: InstanceSegmentation) -> list[Path]:
    """The photos that every contender reads."""
    return [Path(task.train.index.name(int(number))) for number in task.train_numbers]


@contextmanager
def ours(task: InstanceSegmentation, threads: int) -> Iterator[Take]:
    """The batches of a training run on the CPU, with so many threads."""
    system = System("cpu", images_per_forward=BATCH)
    plan = make_plan(
        task.recipe, system, world=1, most=BATCH, train_images=task.train_images, val_images=task.val_images
    )
    place = Place(0, 1, torch.device("cpu"), threads)
    with task.train_loader(plan, system, place, first=0, one_batch=False) as loader:
        yield lambda: len(next(loader)[1][0])


def coco_detection(root: Path, annotations: Path, photos: set[str], transform: Any, decode: str) -> Any:
    """torchvision's CocoDetection, wrapped for v2 transforms: these photos, without crowds; decode "pil" or "tensor"."""
    from torchvision import datasets, tv_tensors
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    class Photos(datasets.CocoDetection):
        def _load_image(self, id: int) -> Any:
            if decode == "pil":
                return super()._load_image(id)
            path = os.path.join(self.root, self.coco.loadImgs(id)[0]["file_name"])
            return tv_tensors.Image(decode_jpeg(read_file(path), mode=ImageReadMode.RGB))  # pyright: ignore

        def _load_target(self, id: int) -> list[Any]:
            return [entry for entry in super()._load_target(id) if not entry["iscrowd"]]

    with redirect_stdout(io.StringIO()):  # pycocotools says that it is loading
        dataset = Photos(str(root), str(annotations), transforms=transform)
    dataset.ids = [number for number in dataset.ids if dataset.coco.loadImgs(number)[0]["file_name"] in photos]
    return datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels", "masks"))


@contextmanager
def torchvision_loader(
    root: Path,
    annotations: Path,
    photos: set[str],
    settings: InstanceInput,
    workers: int,
    decode: str,
    intra_op_threads: int | None = None,
) -> Iterator[Take]:
    """torchvision.transforms.v2 in a torch DataLoader; batches are lists, as its detection training has them.

    intra_op_threads  of this process, which matter with workers=0 (worker processes have one); None: torch's default
    """
    from torchvision.transforms import v2

    steps: list[Any] = [
        v2.RandomShortestSize([settings.short[0]], settings.long, antialias=True),
        v2.RandomHorizontalFlip(settings.flip),
    ]
    if decode == "pil":
        steps.append(v2.PILToTensor())
    before = torch.get_num_threads()
    torch.set_num_threads(intra_op_threads or before)
    dataset = coco_detection(root, annotations, photos, v2.Compose(steps), decode)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=1 << 40),
        num_workers=workers,
        collate_fn=_listed,
        multiprocessing_context="fork" if workers else None,
    )
    batches = iter(loader)
    try:
        yield lambda: len(next(batches)[0])
    finally:
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        torch.set_num_threads(before)


def _listed(samples: list[Any]) -> tuple[list[Any], list[Any]]:
    return [image for image, _ in samples], [target for _, target in samples]


def contenders(
    manifest: Manifest,
    task: InstanceSegmentation,
    annotations: Path,
    settings: InstanceInput,
    cores: int,
    decoders: list[Decoder],
) -> dict[str, Callable[[], Any]]:
    """name -> a function that makes the contender; names begin as in bench/input_contenders.py."""
    paths = paths_of(task)
    root, photos = paths[0].parent, {path.name for path in paths}
    menu: dict[str, Callable[[], Any]] = {}
    for decoder in decoders:
        other = instance_task(manifest, replace(settings, decoder=decoder))
        menu[f"paceline {decoder}, {cores} threads"] = partial(ours, other, cores)
    theirs = partial(torchvision_loader, root, annotations, photos, settings)
    for decode in ("pil", "tensor"):
        for workers in sorted({0, cores}):
            menu[f"torchvision {decode}, {workers} workers"] = partial(theirs, workers, decode)
    menu["tuned torchvision tensor, 0 workers"] = partial(theirs, 0, "tensor", 1)
    menu[f"bare decode, {cores} threads"] = partial(bare_decode, paths, cores)
    return menu

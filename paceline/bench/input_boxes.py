"""`paceline bench input --task ssd`: annotated photos to SSD training batches, beside torchvision's v2 transforms.

Measured as the photos of classification are (bench/input.py): one process, contenders in turn, CPU-seconds of all
processes. Every contender reads the file and decodes, takes SSD's random crop, flips every second one, resizes to
(size, size), jitters brightness, contrast, saturation and hue by the same ranges, and drops and shifts the boxes.
torchvision's RandomIoUCrop differs in one thing, to its advantage: the best object's IoU counts, not every object's, so
crowded photos need fewer proposals. `bare decode` decodes whole photos and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from paceline.batch.detection import detection_batch
from paceline.bench.input import ROUNDS, installed_decoders, measure_in_turn, require_linux, show, summary
from paceline.bench.input_contenders import BATCH, Take, bare_decode, load_pil, load_tensor
from paceline.config.detection import BoxInput
from paceline.config.errors import DataError
from paceline.data.box_sample import draw_training_sample
from paceline.data.boxes import BoxSplit, open_boxes
from paceline.data.decode import Decoder, require_decoder
from paceline.data.draw import Draw
from paceline.data.header import Header
from paceline.data.loader import Loader
from paceline.data.manifest import Manifest
from paceline.data.randomness import SampleRandom
from paceline.data.stream import batch_indices
from paceline.prepare.box_folder import ensure_boxes_prepared
from paceline.systems.detect import cpu_cores


def run_box_input_bench(
    data: Path,
    *,
    seconds: float = 3.0,
    size: int = 300,
    decoders: list[Decoder] | None = None,
    out: Path | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure, print a table, write JSON to `out`, return what was written.

    data      a data set with boxes; its training photos that have objects are used
    seconds   measured per contender and round
    decoders  ours to run; None: the default and every extra that is installed
    Raises DataError for data that cannot be used, RecipeError when a decoder is missing, UserError off Linux.
    """
    require_linux()
    chosen = installed_decoders() if decoders is None else decoders
    for decoder in chosen:
        require_decoder(decoder)
    console = Console()
    manifest = Manifest.load(ensure_boxes_prepared(data, say=console.print))
    photos = photos_with_objects(open_boxes(manifest, "train"))
    if not photos.numbers.size:
        raise DataError(f"{data}: no training photo has an object. Give annotated photos:  --data DIR")
    cores = cpu_cores()
    settings = BoxInput(size=size)
    menu = contenders(photos, settings, cores, chosen)
    console.print(f"{len(photos.numbers)} photos, {len(menu)} contenders, {rounds} rounds of {seconds:g} s each")
    measured = measure_in_turn(menu, rounds, seconds, console)
    report = summary(measured, photos.paths, size, seconds, cores)
    report["objects"] = sum(len(classes) for classes in photos.classes)
    show(report, "decode + SSD crop + flip + resize + colour jitter into a batch (medians over rounds)", console, out)
    return report


class Photos:
    """What every contender is given: photos with at least one object that training may use.

    numbers  (n,) int64, their rows in the index; paths, boxes (xywh pixels) and classes by position in it
    """

    def __init__(self, split: BoxSplit, numbers: np.ndarray) -> None:
        self.split, self.numbers = split, numbers
        self.paths = [Path(split.index.name(number)) for number in numbers.tolist()]
        self.boxes, self.classes = [], []
        for number in numbers.tolist():
            objects = split.objects(number)
            usable = objects.usable.astype(bool)
            self.boxes.append(objects.boxes[usable])
            self.classes.append(objects.classes[usable])


def photos_with_objects(split: BoxSplit) -> Photos:
    """The photos of a split of which training may use an object."""
    before = np.concatenate(([0], np.cumsum(split.usable)))
    return Photos(split, np.flatnonzero(before[split.object_starts[1:]] > before[split.object_starts[:-1]]))


@contextmanager
def ours(photos: Photos, settings: BoxInput, threads: int) -> Iterator[Take]:
    """paceline's loader on the CPU, with so many threads."""

    place_of = {number: place for place, number in enumerate(photos.numbers.tolist())}

    def draw(epoch: int, number: int, header: Header, name: str) -> Draw:
        place = place_of[number]
        boxes, classes = photos.boxes[place], photos.classes[place]
        return draw_training_sample(header, name, boxes, classes, SampleRandom(0, epoch, place), settings)

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        epochs, places = batch_indices(len(photos.numbers), seed=0, step=step, global_batch=BATCH)
        return [(epochs, photos.numbers[places])]

    with Loader(
        records=photos.split.index.records,
        draw=draw,
        schedule=schedule,
        threads=threads,
        image_shape=(settings.size, settings.size, 3),
        device=torch.device("cpu"),
        make_batch=detection_batch,
    ) as loader:
        yield lambda: len(next(loader)[1][0])


class _Annotated(torch.utils.data.Dataset):
    """A map-style data set of (image, {"boxes", "labels"}) in tv_tensors, as torchvision's detection examples have."""

    def __init__(self, photos: Photos, load: Callable[[Path], Any], transform: Callable[..., Any]) -> None:
        self.paths, self.boxes, self.classes = photos.paths, photos.boxes, photos.classes
        self.load, self.transform = load, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        image = self.load(self.paths[index])
        boxes = torch.tensor(self.boxes[index], dtype=torch.float32)
        boxes[:, 2:] += boxes[:, :2]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=functional.get_size(image)),  # pyright: ignore
            "labels": torch.tensor(self.classes[index], dtype=torch.int64),
        }
        return self.transform(image, target)


def _stack(samples: list[Any]) -> tuple[torch.Tensor, list[Any]]:
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


@contextmanager
def torchvision_loader(
    photos: Photos, settings: BoxInput, workers: int, decode: str, intra_op_threads: int | None = None
) -> Iterator[Take]:
    """torchvision.transforms.v2 in a torch DataLoader; decode "pil" or "tensor".

    intra_op_threads  of this process, which matter with workers=0 (worker processes have one); None: torch's default
    """
    from torchvision.transforms import v2

    (narrow, wide), (small, large) = settings.crop_aspect, settings.crop_side
    steps: list[Any] = [
        v2.RandomIoUCrop(small, large, narrow, wide, trials=settings.crop_attempts),
        v2.RandomHorizontalFlip(settings.flip),
        v2.Resize((settings.size, settings.size), antialias=True),
        v2.ColorJitter(settings.brightness, settings.contrast, settings.saturation, settings.hue),
        v2.SanitizeBoundingBoxes(),
    ]
    load = load_tensor
    if decode == "pil":
        steps.append(v2.PILToTensor())
        load = load_pil
    before = torch.get_num_threads()
    torch.set_num_threads(intra_op_threads or before)
    loader = torch.utils.data.DataLoader(
        _Annotated(photos, load, v2.Compose(steps)),
        batch_size=BATCH,
        sampler=torch.utils.data.RandomSampler(photos.paths, replacement=True, num_samples=1 << 40),
        num_workers=workers,
        collate_fn=_stack,
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


def contenders(photos: Photos, settings: BoxInput, cores: int, decoders: list[Decoder]) -> dict[str, Callable[[], Any]]:
    """name -> a function that makes the contender; names begin as in bench/input_contenders.py.

    "matrix" is less work than the others do, a linear jitter; every ratio that is told should be that of "hsv".
    """
    menu: dict[str, Callable[[], Any]] = {}
    for decoder in decoders:
        for jitter in ("hsv", "matrix"):
            chosen = replace(settings, decoder=decoder, jitter=jitter)
            menu[f"paceline {decoder}, {jitter}, {cores} threads"] = partial(ours, photos, chosen, cores)
    for decode in ("pil", "tensor"):
        for workers in sorted({0, cores}):
            name = f"torchvision {decode}, {workers} workers"
            menu[name] = partial(torchvision_loader, photos, settings, workers, decode)
    menu["tuned torchvision tensor, 0 workers"] = partial(torchvision_loader, photos, settings, 0, "tensor", 1)
    menu[f"bare decode, {cores} threads"] = partial(bare_decode, photos.paths, cores)
    return menu

"""Beside our input: torchvision.transforms.v2 in a torch DataLoader, on photos alone, with boxes, and with masks.

Photos: RandomResizedCrop and flip. Boxes: SSD's crop, flip, resize and color jitter by the same ranges; RandomIoUCrop differs in one
thing, to torchvision's advantage: the best object's IoU counts, not every object's, so crowded photos need fewer proposals. Masks: its
CocoDetection, wrapped for the v2 transforms, a bitmap of the whole photo for each object, resized and flipped along; two things are
left out, to its advantage: photos are not padded into one batch, and the annotations are in memory as Python objects.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from paceline._utils.errors import PacelineError
from paceline.config.maskrcnn import InstanceInput
from paceline.config.ssd import BoxInput
from paceline.tools.bench.input import InputBenchmark
from paceline.tools.bench.input_cases import BATCH, Take


def contenders(contest: InputBenchmark, cores: int) -> dict[str, Callable[[], Any]]:
    """Both decoders with several numbers of workers; and "tuned", which no loader argument gives: without workers, and told to use one
    intra-op thread, so that small pictures are not split over all cores.
    """
    workers = sorted({0, cores} | ({1} if contest.task == "classification" else set()))
    menu: dict[str, Callable[[], Any]] = {
        f"torchvision {decode}, {count} workers": partial(loader_of(contest), count, decode)
        for decode in ("pil", "tensor")
        for count in workers
    }
    menu["tuned torchvision tensor, 0 workers"] = partial(loader_of(contest), 0, "tensor", 1)
    return menu


def loader_of(contest: InputBenchmark) -> Callable[..., Any]:
    """-> (workers, decode, intra-op threads) -> the contender."""
    make = {"classification": photos_of, "detection": boxes_of, "instance-segmentation": masks_of}[contest.task]
    return lambda *how: torchvision_loader(lambda decode: make(contest, decode), *how)


def photo_loader(paths: list[Path], size: int, workers: int, decode: str, intra_op_threads: int | None = None) -> Any:
    """Of photos alone, at this size."""
    return torchvision_loader(
        lambda decode: (Photos(paths, crop(size), decode), BATCH, None), workers, decode, intra_op_threads
    )


@contextmanager
def torchvision_loader(
    make: Callable[[str], tuple[Any, int, Any]], workers: int, decode: str, intra_op_threads: int | None = None
) -> Iterator[Take]:
    """A DataLoader over a data set; decode "pil" or "tensor".

    make              takes decode, -> the data set, the images of a batch, and what collates them (None: torch's own)
    intra_op_threads  of this process, which matter with workers=0 (worker processes have one); None: torch's default
    """
    if workers and not Path("/dev/shm").is_dir():
        raise PacelineError(
            "bench input: torch's DataLoader needs /dev/shm for its workers. Give the container one: --ipc=host."
        )
    before = torch.get_num_threads()
    torch.set_num_threads(intra_op_threads or before)
    dataset, batch, collate = make(decode)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=batch,
        # It never ends, so the workers live until the iterator goes.
        sampler=torch.utils.data.RandomSampler(range(len(dataset)), replacement=True, num_samples=1 << 40),
        num_workers=workers,
        collate_fn=collate,
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


class Photos(torch.utils.data.Dataset):
    """A map-style data set as torchvision's ImageFolder: a path, a load, a transform; label 0, or boxes in tv_tensors."""

    def __init__(
        self, paths: list[Path], transforms: list[Any], decode: str, contest: InputBenchmark | None = None
    ) -> None:
        from torchvision.transforms import v2

        self.paths, self.contest = paths, contest
        self.load = load_pil if decode == "pil" else load_tensor
        self.transform = v2.Compose(transforms + [v2.PILToTensor()] * (decode == "pil"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = self.load(self.paths[index])
        if self.contest is None:
            return self.transform(image), 0
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        boxes = torch.tensor(self.contest.boxes[index], dtype=torch.float32)
        boxes[:, 2:] += boxes[:, :2]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=functional.get_size(image)),  # pyright: ignore
            "labels": torch.tensor(self.contest.classes[index], dtype=torch.int64),
        }
        return self.transform(image, target)


def load_pil(path: Path) -> Image.Image:
    """One file by Pillow, RGB."""
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read())).convert("RGB")


def load_tensor(path: Path) -> Any:
    """One file by torchvision.io, (3, H, W) uint8."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)


def crop(size: int) -> list[Any]:
    """ResNet's training transforms."""
    from torchvision.transforms import v2

    return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]


def photos_of(contest: InputBenchmark, decode: str) -> tuple[Any, int, Any]:
    """Photos alone."""
    return Photos(contest.paths, crop(contest.settings.image_size), decode), BATCH, None


def boxes_of(contest: InputBenchmark, decode: str) -> tuple[Any, int, Any]:
    """With boxes, as torchvision's detection examples have them."""
    from torchvision.transforms import v2

    settings: BoxInput = contest.settings
    (narrow, wide), (small, large) = settings.crop_ratio, settings.crop_scale
    steps = [
        v2.RandomIoUCrop(small, large, narrow, wide, trials=settings.crop_trials),
        v2.RandomHorizontalFlip(settings.hflip),
        v2.Resize((settings.image_size, settings.image_size), antialias=True),
        v2.ColorJitter(settings.brightness, settings.contrast, settings.saturation, settings.hue),
        v2.SanitizeBoundingBoxes(),
    ]
    return Photos(contest.paths, steps, decode, contest), BATCH, _stacked


def masks_of(contest: InputBenchmark, decode: str) -> tuple[Any, int, Any]:
    """With masks; batches are lists, as torchvision's detection training has them."""
    from torchvision.transforms import v2

    settings: InstanceInput = contest.settings
    steps: list[Any] = [
        v2.RandomShortestSize([settings.min_size[0]], settings.max_size, antialias=True),
        v2.RandomHorizontalFlip(settings.hflip),
    ]
    transform = v2.Compose(steps + [v2.PILToTensor()] * (decode == "pil"))
    return coco_detection(contest, transform, decode), 8, _listed


def coco_detection(contest: InputBenchmark, transform: Any, decode: str) -> Any:
    """torchvision's CocoDetection, wrapped for v2 transforms: the same photos, without crowds."""
    from torchvision import datasets, tv_tensors

    class Annotated(datasets.CocoDetection):
        def _load_image(self, id: int) -> Any:
            if decode == "pil":
                return super()._load_image(id)
            name = self.coco.loadImgs(id)[0]["file_name"]
            return tv_tensors.Image(load_tensor(Path(os.path.join(self.root, name))))  # pyright: ignore

        def _load_target(self, id: int) -> list[Any]:
            return [entry for entry in super()._load_target(id) if not entry["iscrowd"]]

    photos = {path.name for path in contest.paths}
    with redirect_stdout(io.StringIO()):  # pycocotools says that it is loading
        dataset = Annotated(str(contest.paths[0].parent), str(contest.annotations), transforms=transform)
    dataset.ids = [number for number in dataset.ids if dataset.coco.loadImgs(number)[0]["file_name"] in photos]
    return datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels", "masks"))


def _stacked(samples: list[Any]) -> tuple[torch.Tensor, list[Any]]:
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def _listed(samples: list[Any]) -> tuple[list[Any], list[Any]]:
    return [image for image, _ in samples], [target for _, target in samples]

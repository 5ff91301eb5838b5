"""FFCV: its own file format, which the same JPEG bytes are put into, decoded and resized by compiled pipelines."""

from __future__ import annotations

import io
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField, rgb_image  # pyright: ignore[reportMissingImports]
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder  # pyright: ignore[reportMissingImports]
from ffcv.loader import Loader, OrderOption  # pyright: ignore[reportMissingImports]
from ffcv.transforms import RandomHorizontalFlip, ToTensor  # pyright: ignore[reportMissingImports]
from ffcv.writer import DatasetWriter  # pyright: ignore[reportMissingImports]
from peer_protocol import Contender, Task, serve, whole  # pyright: ignore[reportMissingImports]
from PIL import Image

# FFCV starts anew with each epoch, which a set of a few hundred photos would make it do all the time.
PHOTOS_OF_AN_EPOCH = 20_000


class Encoded:
    """A photo's pixels, and what it was decoded from: the bytes that shall be in the file."""

    last: bytes = b""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        Encoded.last = Path(self.paths[index]).read_bytes()
        return np.array(Image.open(io.BytesIO(Encoded.last)).convert("RGB")), 0


def make(task: Task) -> Contender:
    """A thread a core, the whole file in the page cache."""
    file = Path(task.scratch) / "photos.beton"
    # In place of encoding the pixels anew, in another quality: asked for right after the photo was fetched, by one process.
    rgb_image.encode_jpeg = lambda pixels, quality: np.frombuffer(Encoded.last, np.uint8)
    with whole(file) as part:
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        DatasetWriter(str(part), fields, num_workers=1).from_indexed_dataset(Encoded(task.photos))
    repeats = -(-PHOTOS_OF_AN_EPOCH // len(task.photos))
    pixels = RandomResizedCropRGBImageDecoder((task.size, task.size), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    loader: Any = Loader(
        str(file),
        batch_size=task.batch,
        num_workers=task.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        indices=np.tile(np.arange(len(task.photos)), repeats),
        pipelines={"image": [pixels, RandomHorizontalFlip(), ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )
    batches = iter(loader)

    def take() -> int:
        nonlocal batches
        found = next(batches, None)
        if found is None:
            batches = iter(loader)
            found = next(batches)
        assert tuple(found[0].shape[1:3]) == (task.size, task.size)
        return len(found[0])

    return Contender(take, f"{task.threads} workers, resized by OpenCV's INTER_AREA", version("ffcv"))


if __name__ == "__main__":
    serve(make)

"""What `bench input` compares: each contender turns the same photo files into batches, and is asked for one at a time.

A contender is a context manager around `take() -> images in the batch`. All do the same: read the file, decode,
RandomResizedCrop to (size, size), flip every second one, and put the result in a batch of BATCH images; only
`bare_decode` does less. Each starts with the data in the page cache and draws its samples without end.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from paceline.data.crop import random_resized_crop
from paceline.data.decode import Decoder, decode_crop
from paceline.data.header import read_header
from paceline.data.loader import Loader
from paceline.data.randomness import SampleRandom
from paceline.data.stream import batch_indices

BATCH = 64
Take = Callable[[], int]


def make_sample(data: bytes, name: str, random: SampleRandom, out: np.ndarray, decoder: Decoder) -> None:
    """Our whole host work for one training image, the read apart."""
    header = read_header(data, name)
    window = random_resized_crop(header.height, header.width, out.shape[0], random)
    decode_crop(data, header, window, out, flip=random.coin(0.5), decoder=decoder, name=name)


@contextmanager
def ours(paths: list[Path], size: int, threads: int, decoder: Decoder) -> Iterator[Take]:
    """paceline's loader on the CPU, with so many threads."""

    names, lengths = [str(path) for path in paths], [path.stat().st_size for path in paths]

    def read_decode(epoch: int, index: int, out: np.ndarray) -> int:
        file = os.open(names[index], os.O_RDONLY)  # one positioned read, as from the index of a prepared data set
        try:
            data = os.pread(file, lengths[index], 0)
        finally:
            os.close(file)
        make_sample(data, names[index], SampleRandom(0, epoch, index), out, decoder)
        return 0

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [batch_indices(len(paths), seed=0, step=step, global_batch=BATCH)]

    with Loader(
        read_decode=read_decode,
        schedule=schedule,
        threads=threads,
        image_shape=(size, size, 3),
        device=torch.device("cpu"),
    ) as loader:
        yield lambda: len(next(loader)[1][0])


class _Photos(torch.utils.data.Dataset):
    """A map-style data set as torchvision's ImageFolder: a path, a load, a transform; label 0."""

    def __init__(self, paths: list[Path], load: Callable[[Path], Any], transform: Callable[[Any], Any]) -> None:
        self.paths, self.load, self.transform = paths, load, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.load(self.paths[index])), 0


def load_pil(path: Path) -> Image.Image:
    """One file by Pillow, RGB."""
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read())).convert("RGB")


def load_tensor(path: Path) -> Any:
    """One file by torchvision.io, (3, H, W) uint8."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)


@contextmanager
def torchvision_loader(
    paths: list[Path], size: int, workers: int, decode: str, intra_op_threads: int | None = None
) -> Iterator[Take]:
    """torchvision.transforms.v2 in a torch DataLoader; decode "pil" or "tensor".

    intra_op_threads  of this process, which matter with workers=0 (worker processes have one); None: torch's default
    """
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    load = load_tensor
    if decode == "pil":
        steps.append(v2.PILToTensor())
        load = load_pil
    before = torch.get_num_threads()
    torch.set_num_threads(intra_op_threads or before)
    loader = torch.utils.data.DataLoader(
        _Photos(paths, load, v2.Compose(steps)),
        batch_size=BATCH,
        sampler=torch.utils.data.RandomSampler(range(len(paths)), replacement=True, num_samples=1 << 40),
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        # The sampler never ends, so the workers live until the iterator goes.
    )
    batches = iter(loader)
    try:
        yield lambda: len(next(batches)[0])
    finally:
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        torch.set_num_threads(before)


@contextmanager
def bare_decode(paths: list[Path], threads: int) -> Iterator[Take]:
    """libjpeg-turbo through simplejpeg, whole photos at full size, bytes in memory, nothing else: the usual ceiling.

    Decoding less than the whole photo goes past it.
    """
    jpegs = [data for data in (path.read_bytes() for path in paths) if read_header(data, "photo").plain_jpeg]
    photos = cycle(jpegs)
    with ThreadPoolExecutor(threads) as pool:

        def take() -> int:
            some = [next(photos) for _ in range(BATCH)]
            for _ in pool.map(_decode_all, [some[i::threads] for i in range(threads)]):
                pass
            return len(some)

        yield take


def _decode_all(jpegs: list[bytes]) -> None:
    import simplejpeg

    for jpeg in jpegs:
        simplejpeg.decode_jpeg(jpeg)


def contenders(paths: list[Path], size: int, cores: int, decoders: list[Decoder]) -> dict[str, Callable[[], Any]]:
    """name -> a function that makes the contender.

    Names start with "paceline", "torchvision" (the peers), "tuned torchvision" (a peer that no loader argument gives:
    without workers, and told to use one intra-op thread, so that small pictures are not split over all cores) or "bare".
    """
    menu: dict[str, Callable[[], Any]] = {}
    for decoder in decoders:
        menu[f"paceline {decoder}, {cores} threads"] = partial(ours, paths, size, cores, decoder)
    for decode in ("pil", "tensor"):
        for workers in sorted({0, 1, cores}):
            name = f"torchvision {decode}, {workers} workers"
            menu[name] = partial(torchvision_loader, paths, size, workers, decode)
    menu["tuned torchvision tensor, 0 workers"] = partial(torchvision_loader, paths, size, 0, "tensor", 1)
    menu[f"bare decode, {cores} threads"] = partial(bare_decode, paths, cores)
    return menu

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

from paceline.config.classification import PhotoInput
from paceline.data.decode import Decoder
from paceline.data.draw import Draw, render
from paceline.data.header import Header, read_header
from paceline.data.index import index_over, whole_files
from paceline.data.loader import Loader
from paceline.data.photo_sample import draw_training_sample
from paceline.data.randomness import SampleRandom
from paceline.data.records import Records
from paceline.data.stream import batch_indices

BATCH = 64
Take = Callable[[], int]


def make_sample(data: bytes, name: str, random: SampleRandom, out: np.ndarray, settings: PhotoInput) -> None:
    """Our whole host work for one training image, the read apart."""
    render(data, draw_training_sample(read_header(data, name), name, 0, random, settings), out)


def records_of(paths: list[Path]) -> Records:
    """These files, read as those of a prepared data set."""
    zeros, lengths = np.zeros(len(paths)), np.array([path.stat().st_size for path in paths])
    names = [os.fsencode(path.absolute()) for path in paths]
    arrays = whole_files(names, lengths=lengths, labels=zeros, heights=zeros, widths=zeros, extra={})
    return index_over(arrays, Path("/"), "train").records


@contextmanager
def ours(
    records: Records,
    size: int,
    threads: int,
    decoder: Decoder,
    fetch_threads: int = 0,
    numbers: np.ndarray | None = None,
) -> Iterator[Take]:
    """paceline's loader on the CPU, with so many threads; on the records of these numbers, None: on all."""
    chosen = np.arange(len(records)) if numbers is None else numbers
    settings = PhotoInput(size=size, decoder=decoder)

    def draw(epoch: int, index: int, header: Header, name: str) -> Draw:
        return draw_training_sample(header, name, 0, SampleRandom(0, epoch, index), settings)

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        epochs, places = batch_indices(len(chosen), seed=0, step=step, global_batch=BATCH)
        return [(epochs, chosen[places])]

    with Loader(
        records=records,
        draw=draw,
        schedule=schedule,
        threads=threads,
        fetch_threads=fetch_threads,
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
        menu[f"paceline {decoder}, {cores} threads"] = partial(ours, records_of(paths), size, cores, decoder)
    for decode in ("pil", "tensor"):
        for workers in sorted({0, 1, cores}):
            name = f"torchvision {decode}, {workers} workers"
            menu[name] = partial(torchvision_loader, paths, size, workers, decode)
    menu["tuned torchvision tensor, 0 workers"] = partial(torchvision_loader, paths, size, 0, "tensor", 1)
    menu[f"bare decode, {cores} threads"] = partial(bare_decode, paths, cores)
    return menu

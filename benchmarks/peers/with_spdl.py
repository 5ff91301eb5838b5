"""SPDL: threads that demux, crop, resize and flip through FFmpeg, in a pipeline of its own."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import spdl.io  # pyright: ignore[reportMissingImports]
from peer_protocol import Contender, Task, crop, endless, serve  # pyright: ignore[reportMissingImports]
from spdl.pipeline import PipelineBuilder  # pyright: ignore[reportMissingImports]

_of_thread = threading.local()


def make(task: Task) -> Contender:
    """As many decoding threads as cores."""

    def decode(path: str) -> Any:
        draw = _of_thread.__dict__.setdefault("draw", random.Random(threading.get_ident()))
        packets = spdl.io.demux_image(path)
        top, left, height, width = crop(packets.height, packets.width, draw)
        steps = [
            f"crop={width}:{height}:{left}:{top}:exact=1",
            f"scale={task.size}:{task.size}:flags=bilinear",
            *(["hflip"] if draw.random() < 0.5 else []),
            "format=rgb24",
        ]
        return spdl.io.decode_packets(packets, filter_desc=",".join(steps))

    def batch(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    threads = ThreadPoolExecutor(task.threads)
    pipeline = (
        PipelineBuilder()
        .add_source(endless(task.photos))
        .pipe(decode, executor=threads, concurrency=task.threads)
        .aggregate(task.batch)
        .pipe(batch)
        .add_sink(3)
        .build(num_threads=task.threads)
    )
    pipeline.start()
    batches = iter(pipeline)

    def take() -> int:
        pixels = next(batches)
        assert pixels.shape == (task.batch, task.size, task.size, 3)
        return len(pixels)

    return Contender(take, f"{task.threads} threads, FFmpeg", version("spdl"))


if __name__ == "__main__":
    serve(make)

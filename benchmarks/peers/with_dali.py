"""NVIDIA DALI on the CPU: files, decoded crop by crop, resized with antialiasing, flipped."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from nvidia.dali import fn, pipeline_def, types  # pyright: ignore[reportMissingImports]
from peer_protocol import Contender, Task, serve  # pyright: ignore[reportMissingImports]


def make(task: Task) -> Contender:
    """DALI's own pipeline, with its decoder of random crops and a thread a core."""

    @pipeline_def(batch_size=task.batch, num_threads=task.threads, device_id=None, prefetch_queue_depth=2)
    def photos() -> Any:
        encoded, labels = fn.readers.file(
            files=task.photos, labels=[0] * len(task.photos), random_shuffle=True, initial_fill=len(task.photos)
        )
        pixels = fn.decoders.image_random_crop(
            encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], num_attempts=10
        )
        pixels = fn.resize(pixels, size=[task.size, task.size], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(pixels, horizontal=fn.random.coin_flip()), labels

    pipeline: Any = photos()
    pipeline.build()

    def take() -> int:
        pixels, _ = pipeline.run()
        assert pixels.as_tensor().shape() == [task.batch, task.size, task.size, 3]
        return task.batch

    return Contender(take, f"CPU, {task.threads} threads", version("nvidia-dali-cuda120"))


if __name__ == "__main__":
    serve(make)

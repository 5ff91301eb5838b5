"""MXNet's ImageRecordIter on a RecordIO file of the same JPEG bytes."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx  # pyright: ignore[reportMissingImports]
from peer_protocol import Contender, Task, serve, whole  # pyright: ignore[reportMissingImports]

# The iterator starts anew with each pass, which a file of a few hundred photos would make it do all the time.
PHOTOS_OF_A_PASS = 2_000


def make(task: Task) -> Contender:
    """uint8 pixels, a thread a core."""
    file = Path(task.scratch) / "photos.rec"
    repeats = -(-PHOTOS_OF_A_PASS // len(task.photos))
    with whole(file) as part:
        record = mx.recordio.MXRecordIO(str(part), "w")
        for number, path in enumerate(task.photos * repeats):
            record.write(mx.recordio.pack(mx.recordio.IRHeader(0, 0.0, number, 0), Path(path).read_bytes()))
        record.close()
    photos = mx.io.ImageRecordIter(
        path_imgrec=str(file),
        data_shape=(3, task.size, task.size),
        batch_size=task.batch,
        preprocess_threads=task.threads,
        shuffle=True,
        shuffle_chunk_size=64,
        random_resized_crop=True,
        min_random_area=0.08,
        max_random_area=1.0,
        min_aspect_ratio=3 / 4,
        max_aspect_ratio=4 / 3,
        rand_mirror=True,
        dtype="uint8",
        ctx="cpu",
        round_batch=True,
    )

    def take() -> int:
        try:
            batch = photos.next()
        except StopIteration:
            photos.reset()
            batch = photos.next()
        (pixels,) = batch.data
        pixels.wait_to_read()
        assert pixels.shape == (task.batch, 3, task.size, task.size)
        return task.batch

    return Contender(take, f"{task.threads} preprocess threads, resized by OpenCV without antialiasing", mx.__version__)


if __name__ == "__main__":
    serve(make)

"""Answer for every frame of a video or a camera: as photos are answered, and written as a video, or as pictures of the frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline._utils.errors import UserError
from paceline.predict.answering import Asked, Count, Printed, Shown, answer_all, jpeg_of
from paceline.predict.answers import new_answers
from paceline.predict.folders import Unreadable
from paceline.predict.formats import Format, Place
from paceline.predict.results import Found, Result
from paceline.predict.video import Film, Video

# Pixels of the longer side that a drawn frame has at least: names must be legible.
SMALLEST = 480


def answer_video(
    video: Video,
    stream: Callable[[Iterator[np.ndarray]], Iterator[Result | Unreadable]],
    folder: Path,
    head: Mapping[str, Any],
    formats: Sequence[Format],
    printed: Printed,
    shown: Shown,
    pictures: bool,
    frames: bool,
) -> Count:
    """Print, draw and write every frame's answer. Few frames are held at a time, however long the video is.

    stream    a predictor's
    pictures  draw the answers: as one video, or where `frames` as a picture each
    A video that breaks off counts as one without an answer; what was answered before is kept. So it is at Ctrl-C, which is how a
    camera ends; of a file KeyboardInterrupt is raised again.
    """
    waiting: deque[tuple[int, float]] = deque()
    source = str(video.path)

    def pixels() -> Iterator[np.ndarray]:
        for number, seconds, picture in video:
            waiting.append((number, seconds))
            yield picture

    def asked() -> Iterator[Asked]:
        for result in stream(pixels()):
            number, seconds = waiting.popleft()
            name = f"frame_{number:06d}.jpg"  # as CVAT calls a video's frames
            more = {"file": source, "frame": number, "seconds": round(seconds, 3)}
            yield Asked(f"{source} {seconds:.2f} s", Place(name, name, None, number + 1), None, result, more)

    name = f"{Path(source).stem if not video.is_camera else 'camera'}.mp4"
    filmed = pictures and not frames
    film, count = Film(folder / f"{name}.part", video.rate / video.every), Count()

    def shoot(picture: Image.Image, one: Asked) -> None:
        try:
            film.add(picture, one.more["seconds"])
        except OSError as problem:
            raise UserError(f"--out {folder}: {name}: cannot be written ({problem.strerror}).") from None

    with new_answers(folder, head, coco=False, formats=formats, also=[name] if filmed else []) as answers:
        interrupted = False
        try:
            draw = _whole_frame if filmed else jpeg_of
            answer_all(asked(), answers, printed, shown, count, draw=draw if pictures else None, film=shoot)
        except KeyboardInterrupt:
            interrupted = not video.is_camera
        film.close()
        if video.broken:
            count.without.append(Unreadable(source, video.broken))
        answers.finish(count.without)
    if interrupted:
        raise KeyboardInterrupt
    return count


def _whole_frame(result: Result, shown: Shown) -> Image.Image:
    """The frame with its answer, in one size for a whole video."""
    side = max(result.width, result.height, SMALLEST) if isinstance(result, Found) else 0
    return shown.of(result).draw(shown.least, labels=shown.labels, side=side)

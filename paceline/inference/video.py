"""Read the frames of a video file or a camera, and write drawings as a video.

Requires PyAV (extra `video`). A file is read through a descriptor that this module opens, so a playlist or a reference in the file
cannot open other files. Frames are rotated according to the metadata of the video. If a video is truncated, the frames before that
point are returned, and `broken` states the reason.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from paceline._utils.commands import install_command
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import open_plain
from paceline.inference.image_paths import FailedImage, parse_camera
from paceline.inference.outputs.formats import OutputFormat, ResultLocation
from paceline.inference.outputs.prediction_dir import open_prediction_dir
from paceline.inference.results import DetectionResult, PredictionResult
from paceline.inference.writer import (
    DisplayOptions,
    ImageOutcome,
    PredictionCounts,
    StdoutWriter,
    draw_jpeg,
    write_all_predictions,
)

# A file that ends before this share of the frames or seconds that it claims was cut; claims are often a frame or two too high.
WHOLE = 0.97
CODECS = ("libx264", "libopenh264", "mpeg4")  # the first that PyAV was built with
CLOCK = 90_000  # ticks a second of a written video


class Frame(NamedTuple):
    """Store one frame of a video.

    Attributes:
        number (int): index of the frame in the video, from 0.
        seconds (float): time since the first frame in seconds.
        pixels (ndarray): uint8 array of shape (h, w, 3) in RGB order.
    """

    number: int
    seconds: float
    pixels: np.ndarray


class Video:
    """Read the frames of a video file or a camera in order.

    Iterate over the object once to get each `Frame`.

    Example::

        video = paceline.Video("clip.mp4")
        for result in predictor.predict_iter(frame.pixels for frame in video):
            print(result.summary())

    Args:
        path (str or Path): video file, or a camera, such as ``"camera:0"`` or ``"/dev/video0"``.
        every (int): yield only every N-th frame. Default: 1

    Attributes:
        rate (float): frames per second of the video, independent of `every`. 25.0 if the file does not state it.
        broken (str): reason why the video is incomplete, or "" if it is complete. Read it after the last frame.

    Raises:
        PacelineError: if PyAV is not installed.
        DataError: if the file is not a readable video, or the camera cannot be opened.
    """

    def __init__(self, path: str | Path, *, every: int = 1) -> None:
        path = Path(path)
        av = _pyav(path)
        self.path, self.every, self.broken = path, every, ""
        self.is_camera = parse_camera(path) is not None
        self._problem: type[Exception] = av.error.FFmpegError
        self._file: Any = None
        try:
            if (number := parse_camera(path)) is not None:
                self._container = _camera(av, number)
            else:
                self._file = os.fdopen(open_plain(path), "rb")
                # "pipe": what the file itself names to be opened is refused.
                self._container = av.open(self._file, options={"protocol_whitelist": "pipe"})
            self._stream = self._container.streams.video[0]
        except (OSError, IndexError) as problem:  # PyAV's errors are OSErrors or ValueErrors of its own
            raise self._unusable(problem) from None
        except self._problem as problem:
            raise self._unusable(problem) from None
        self._stream.thread_type = "AUTO"
        rate = self._stream.average_rate or self._stream.guessed_rate
        self.rate = float(rate) if rate else 25.0  # frames a second

    def __iter__(self) -> Iterator[Frame]:
        number, seconds, began = -1, 0.0, None
        try:
            for number, frame in enumerate(self._container.decode(self._stream)):
                began = frame.time if began is None else began
                seconds = frame.time - began if frame.time is not None and began is not None else number / self.rate
                if number % self.every == 0:
                    turned = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                    yield Frame(number, seconds, np.ascontiguousarray(turned))
        except self._problem as problem:
            self.broken = f"the video is truncated after {number + 1:,} frames, {seconds:.1f} s ({_reason(problem)})"
            return
        claimed = self._stream.frames
        length = 0.0 if self.is_camera else (self._container.duration or 0) / 1e6  # as the file says
        if number + 1 < WHOLE * claimed or (not claimed and seconds + 1 / self.rate < WHOLE * length):
            of = f"{claimed:,} frames" if claimed else f"{length:.1f} s"
            self.broken = f"the video is truncated after {number + 1:,} frames, {seconds:.1f} s, of {of}"

    def close(self) -> None:
        """Close the file or the camera."""
        self._container.close()
        if self._file is not None:
            self._file.close()

    def _unusable(self, problem: Exception) -> DataError:
        if self._file is not None:
            self._file.close()
        reason = "no video stream" if isinstance(problem, IndexError) else _reason(problem)
        kind = "opening the camera failed" if self.is_camera else "not a readable video"
        return DataError(f"{self.path}: {kind} ({reason}).")


class VideoWriter:
    """Write images to a video file, each at its time. The codec is H.264 if PyAV supports it."""

    def __init__(self, file: Path, rate: float) -> None:
        self._file, self._rate, self._last = file, rate, -1
        self._container: Any = None
        self._stream: Any = None

    def add(self, picture: Image.Image, seconds: float) -> None:
        """Add an image. All images have the size of the first one, rounded down to even sides.

        Raises:
            OSError: if writing fails.
        """
        import av

        if self._container is None:
            self._container = av.open(str(self._file), "w", format="mp4")
            codec = next(name for name in CODECS if name in av.codecs_available)
            self._stream = self._container.add_stream(codec, rate=Fraction(self._rate).limit_denominator(1001))
            self._stream.width, self._stream.height = picture.width // 2 * 2, picture.height // 2 * 2
            self._stream.pix_fmt = "yuv420p"
            self._stream.codec_context.time_base = Fraction(1, CLOCK)
        cut = picture.convert("RGB").crop((0, 0, self._stream.width, self._stream.height))
        frame = av.VideoFrame.from_ndarray(np.asarray(cut), format="rgb24")
        self._last = max(self._last + 1, round(seconds * CLOCK))
        frame.pts, frame.time_base = self._last, Fraction(1, CLOCK)
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Finish the file. If no image was added, no file is written."""
        if self._container is not None:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None


def _pyav(path: Path) -> Any:
    try:
        import av
    except ImportError:
        raise PacelineError(
            f"{path}: videos require PyAV, which is not installed. Install:  {install_command('video')}"
        ) from None
    av.logging.set_level(None)  # type: ignore[arg-type]  # FFmpeg's own lines on stderr; errors are raised all the same
    return av


def _camera(av: Any, number: int) -> Any:
    import sys

    if sys.platform == "darwin":
        return av.open(str(number), format="avfoundation", options={"framerate": "30"})
    return av.open(f"/dev/video{number}", format="v4l2")


def _reason(problem: Exception) -> str:
    with suppress(AttributeError):
        return str(problem.strerror)  # type: ignore[attr-defined]
    return str(problem)


# Answer for every frame of a video or a camera: as photos are answered, and written as a video, or as pictures of the frames.

# Pixels of the longer side that a drawn frame has at least: names must be legible.
SMALLEST = 480


def write_video_predictions(
    video: Video,
    predict_iter: Callable[[Iterator[np.ndarray]], Iterator[PredictionResult | FailedImage]],
    folder: Path,
    head: Mapping[str, Any],
    formats: Sequence[OutputFormat],
    printed: StdoutWriter,
    shown: DisplayOptions,
    draw: Literal["nothing", "video", "frames"],
) -> PredictionCounts:
    """Predict all frames, and print, draw, and write the results.

    Only a few frames are in memory at a time.

    Args:
        video (Video): the video to predict.
        predict_iter (Callable): `predict_iter` of a predictor.
        folder (Path): folder for the results.
        head (Mapping[str, Any]): metadata for the start of predictions.json.
        formats (Sequence[OutputFormat]): additional output formats.
        printed (StdoutWriter): writer of the printed results.
        shown (DisplayOptions): options that select and draw objects.
        draw (Literal["nothing", "video", "frames"]): draw the results in one video, or one image per frame.

    Returns:
        PredictionCounts: number of results. A truncated video counts as one failure, and the results before it are kept.

    Raises:
        KeyboardInterrupt: if Ctrl-C interrupts a video file. The results are kept. For a camera, Ctrl-C is the normal end.
    """
    waiting: deque[tuple[int, float]] = deque()
    source = str(video.path)

    def pixels() -> Iterator[np.ndarray]:
        for number, seconds, picture in video:
            waiting.append((number, seconds))
            yield picture

    def asked() -> Iterator[ImageOutcome]:
        for result in predict_iter(pixels()):
            number, seconds = waiting.popleft()
            name = f"frame_{number:06d}.jpg"  # as CVAT calls a video's frames
            more = {"file": source, "frame": number, "seconds": round(seconds, 3)}
            yield ImageOutcome(
                f"{source} {seconds:.2f} s", ResultLocation(name, name, None, number + 1), None, result, more
            )

    name = f"{Path(source).stem if not video.is_camera else 'camera'}.mp4"
    filmed = draw == "video"
    film, count = VideoWriter(folder / f"{name}.part", video.rate / video.every), PredictionCounts()

    def shoot(picture: Image.Image, one: ImageOutcome) -> None:
        try:
            film.add(picture, one.more["seconds"])
        except OSError as problem:
            raise PacelineError(f"--output-dir {folder}: {name} cannot be written ({problem.strerror}).") from None

    with open_prediction_dir(folder, head, coco=False, formats=formats, also=[name] if filmed else []) as answers:
        interrupted = False
        try:
            drawn = {"nothing": None, "video": _whole_frame, "frames": draw_jpeg}[draw]
            write_all_predictions(asked(), answers, printed, shown, count, draw=drawn, film=shoot)
        except KeyboardInterrupt:
            interrupted = not video.is_camera
        film.close()
        if video.broken:
            count.without.append(FailedImage(source, video.broken))
        answers.finish(count.without)
    if interrupted:
        raise KeyboardInterrupt
    return count


def _whole_frame(result: PredictionResult, shown: DisplayOptions) -> Image.Image:
    """Draw the result on the complete frame, in one size for the entire video."""
    side = max(result.width, result.height, SMALLEST) if isinstance(result, DetectionResult) else 0
    return shown.of(result).draw(shown.least, labels=shown.labels, max_side=side)

"""`paceline predict RUN IMAGE_OR_DIR... --output-dir DIR`: annotated pictures, predictions.json, and coco_results.json.

Also `paceline predict WEIGHTS IMAGE_OR_DIR...`: a file of weights, anybody's, the name of published ones, or an exported graph.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline._utils.text import format_count, join_names, suggest_name
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.training.run_arguments import check_named

if TYPE_CHECKING:
    from paceline.inference.image_paths import ImageListing
    from paceline.inference.outputs.formats import OutputFormat
    from paceline.inference.predictor import Predictor
    from paceline.inference.video import Video
    from paceline.inference.writer import DisplayOptions, PredictionCounts, StdoutWriter


@dataclass(frozen=True)
class PredictFlags:
    """What to label."""

    run: Annotated[Path, tyro.conf.Positional, Help("run folder, weights, .onnx, .xml, .pt2, or published name")] = Path()
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, Help("images, folders, globs, a video, or camera:0")] = ()
    output_dir: Annotated[Path, Help("output folder for images and predictions.json; replaced if it exists")] = Path(
        "predictions"
    )
    checkpoint: Annotated[str, Help("checkpoint: best, last, or step-N")] = "best"
    save_images: Annotated[bool, Help("write images with the predictions drawn")] = True
    score_threshold: Annotated[float | None, Help("detection: score threshold; None: at the best F1, or 0.3")] = None
    classes: Annotated[tuple[str, ...], Help("detection: classes to draw and print; empty: all")] = ()
    max_detections: Annotated[int, Help("detection: maximum detections per image to draw and print; 0: all")] = 0
    show_labels: Annotated[bool, Help("detection: draw class names and scores next to the boxes")] = True
    tile_size: Annotated[int, Help("detection: also predict on tiles of this side (pixels); 0: no tiles")] = 0
    tile_overlap: Annotated[float, Help("overlap of neighboring tiles, as a fraction of the tile size")] = 0.2
    frame_stride: Annotated[int, Help("video: predict on every N-th frame")] = 1
    save_frames: Annotated[bool, Help("video: write images of its frames instead of one video")] = False
    save_formats: Annotated[
        tuple[str, ...], Help("output formats: coco yolo yolo-scores csv labelme labelstudio cvat masks")
    ] = ()
    image_ids: Annotated[str, Help("COCO JSON file that has the image ids for coco_results.json")] = ""
    quiet: Annotated[bool, Help("print only skipped images and the summary, not one line per image")] = False
    json: Annotated[bool, Help("print one JSON object per image to stdout, and messages to stderr")] = False
    task_file: Annotated[str, Help("custom task of the run, ./file.py:name, which is executed as Python")] = ""
    recipe: Annotated[str, Help("recipe that fits the weights, with flags in quotes; empty: detected")] = ""
    allow_code_execution: Annotated[bool, Help("open a .pt2 file, which can run arbitrary code of its author")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Answer for photos; 1 where some of them have no answer."""
    flags = parse(printer, arguments, PredictFlags(), "predict", "Predict classes, boxes, or masks in images.")
    if not flags.images:
        raise PacelineError("a run and an image or folder are required: paceline predict RUN photo.jpg --output-dir DIR")
    if flags.score_threshold is not None and not 0 <= flags.score_threshold <= 1:
        raise PacelineError(f"--score-threshold {flags.score_threshold:g}: must be in [0, 1].")
    if flags.max_detections < 0:
        raise PacelineError(f"--max-detections {flags.max_detections}: must be 0 (all) or more.")
    if flags.tile_size < 0 or 0 < flags.tile_size < 32:
        raise PacelineError(f"--tile-size {flags.tile_size}: must be 32 pixels or more, or 0 (no tiles).")
    if not 0 <= flags.tile_overlap <= 0.9:
        raise PacelineError(f"--tile-overlap {flags.tile_overlap:g}: must be from 0 to 0.9.")
    if flags.frame_stride < 1:
        raise PacelineError(f"--frame-stride {flags.frame_stride}: must be 1 (every frame) or more.")
    video, listing = _found(flags)
    with nullcontext() if video is None else closing(video):
        return _carry_out(printer, flags, video, listing)


def _carry_out(printer: Printer, flags: PredictFlags, video: Video | None, listing: ImageListing) -> int:
    """Open the run, answer, and say what came of it."""
    requested: dict[str, Any] = {"checkpoint": flags.checkpoint, "workload": flags.task_file, "recipe": flags.recipe}
    requested["allow_code_execution"] = flags.allow_code_execution

    check_named(flags.run, verb="predict", **requested)
    from paceline import inference
    from paceline.inference.outputs.prediction_dir import check_prediction_dir
    from paceline.inference.writer import choose_output_formats

    check_prediction_dir(flags.output_dir)
    with printer.waiting(f"opening {flags.run}"):
        predictor = inference.open_predictor(flags.run, Lines(printer.note), **requested)
    _check_objects(flags, predictor)
    formats = choose_output_formats(flags.save_formats, flags.output_dir, predictor, video=video is not None)
    if passed_over := listing.skipped():
        printer.note(f"skipped {passed_over}")
    began = time.perf_counter()
    try:
        count = (
            _answer(printer, flags, listing, predictor, formats)
            if video is None
            else _answer_video(printer, flags, video, predictor, formats)
        )
    except KeyboardInterrupt:
        printer.note(f"{flags.output_dir}: not finished; the same command starts again and replaces the folder")
        raise
    seconds = time.perf_counter() - began
    answered, noun = count.answered, "image" if video is None else "frame"
    printer.note(
        f"{format_count(answered, noun)} in {seconds:.1f} s, {answered / max(seconds, 1e-9):.1f} images/s: {flags.output_dir}"
    )
    if count.without:
        printer.note(
            f"not predicted: {len(count.without):,} of {answered + len(count.without):,}"
            if video is None
            else "incomplete:"
        )
        for photo in count.without:
            printer.note(f"  {photo.file}: {photo.reason}")
    return 1 if count.without else 0


def _found(flags: PredictFlags) -> tuple[Video | None, ImageListing]:
    """The one video, opened; or the photos. Raises PacelineError for a video among others, and for what cannot be read."""
    from paceline.inference.image_paths import ImageListing, find_photos, is_video

    videos = [path for path in flags.images if is_video(path)]
    if not videos:
        for flag, explicit in (("--frame-stride", flags.frame_stride > 1), ("--save-frames", flags.save_frames)):
            if explicit:
                raise PacelineError(f"{flag}: only supported for a video or a camera, not for images. Remove it.")
        return None, find_photos(flags.images, apart_from=(flags.run, flags.output_dir))
    if len(flags.images) > 1:
        raise PacelineError(f"{videos[0]}: a video must be the only input. Use one command and one --output-dir per video.")
    from paceline.inference.video import Video

    return Video(videos[0], every=flags.frame_stride), ImageListing()


def _least_score(printer: Printer, flags: PredictFlags, predictor: Predictor) -> float:
    """The score from which on objects are printed and drawn."""
    from paceline.inference.results import SCORE_THRESHOLD

    if flags.score_threshold is not None or not predictor.finds_objects:
        return flags.score_threshold or 0.0
    best = predictor.best_f1()
    if best:
        printer.note(
            f"score threshold {best['threshold']:g}, which gave the best F1 on the validation images of the run "
            "(to change it, use --score-threshold)"
        )
    return best.get("threshold", SCORE_THRESHOLD)


def _answer(
    printer: Printer, flags: PredictFlags, listing: ImageListing, predictor: Predictor, formats: Sequence[OutputFormat]
) -> PredictionCounts:
    """Print, draw and write every photo's answer."""
    from paceline.inference.outputs.prediction_dir import open_prediction_dir
    from paceline.inference.writer import (
        ImageOutcome,
        PredictionCounts,
        draw_jpeg,
        locate_results,
        note_dropped_pixels,
        write_all_predictions,
    )

    ids, about_ids = _image_ids(flags, listing, predictor)
    head, printed, shown = _manner(printer, flags, predictor)
    locations, top = locate_results(listing, ids, formats)
    results = predictor.predict_iter(listing.photos, tile=flags.tile_size, overlap=flags.tile_overlap)
    requested = (
        ImageOutcome(str(photo), location, ids.get(photo), result)
        for photo, location, result in zip(listing.photos, locations, results)
    )
    count = PredictionCounts(without=list(listing.refused))
    with open_prediction_dir(flags.output_dir, head, coco=bool(ids), formats=formats) as answers:
        write_all_predictions(requested, answers, printed, shown, count, draw=draw_jpeg if flags.save_images else None)
        answers.finish(count.without)
    if predictor.finds_objects:
        printer.note(f"coco_results.json: {about_ids}" if ids else f"no coco_results.json: {about_ids}")
    if formats:
        written = join_names([one.joined or f"{one.top}/" for one in formats], 99)
        printer.note(f"written for other tools: {written}; image paths are relative to {top}")
    if turned := count.turned:
        carry = f"{turned:,} image{' has' if turned == 1 else 's have'} an EXIF rotation"
        applied = predictor.trained.recipe.input.exif == "apply"
        printer.note(f"{carry}: {'applied' if applied else 'not applied, as in training'}")
    for line in note_dropped_pixels(listing.photos):
        printer.note(line)
    return count


def _answer_video(
    printer: Printer, flags: PredictFlags, video: Video, predictor: Predictor, formats: Sequence[OutputFormat]
) -> PredictionCounts:
    """Print, draw and write every frame's answer."""
    from paceline.inference.video import write_video_predictions

    head, printed, shown = _manner(printer, flags, predictor)
    answer = partial(predictor.predict_iter, tile=flags.tile_size, overlap=flags.tile_overlap)
    draw = "nothing" if not flags.save_images else "frames" if flags.save_frames else "video"
    return write_video_predictions(video, answer, flags.output_dir, head, formats, printed, shown, draw)


def _manner(
    printer: Printer, flags: PredictFlags, predictor: Predictor
) -> tuple[dict[str, object], StdoutWriter, DisplayOptions]:
    """Facts for the head of predictions.json, what is printed, and what is shown."""
    from paceline.inference.writer import DisplayOptions, StdoutWriter

    head = {"run": str(flags.run), "checkpoint": predictor.trained.checkpoint, "classes": list(predictor.classes)}
    least = _least_score(printer, flags, predictor)
    shown = DisplayOptions(least, flags.classes, flags.max_detections, flags.show_labels)
    return head, StdoutWriter(printer.note, printer.say, flags.quiet, flags.json), shown


def _check_objects(flags: PredictFlags, predictor: Predictor) -> None:
    """Refuse flags of objects for a run that names whole photos, and classes that the run does not have."""
    if not predictor.finds_objects:
        overrides = {
            "--classes": flags.classes,
            "--max-detections": flags.max_detections,
            "--no-show-labels": not flags.show_labels,
            "--image-ids": flags.image_ids,
            "--tile-size": flags.tile_size,
        }
        for flag in (flag for flag, value in overrides.items() if value):
            raise PacelineError(f"{flag}: only supported for detection; {flags.run} classifies images. Remove it.")
    for name in flags.classes:
        if name not in predictor.classes:
            hint = suggest_name(name, predictor.classes) or f"Its classes: {join_names(predictor.classes, 10)}."
            raise PacelineError(f"--classes {name}: not a class of {flags.run}. {hint}")


def _image_ids(flags: PredictFlags, listing: ImageListing, predictor: Predictor) -> tuple[Mapping[Path, int], str]:
    """The photos' ids in an annotation file, for coco_results.json, and whence; or none, and why."""
    from paceline.inference.outputs.coco_ids import find_image_ids, read_image_ids

    if not predictor.finds_objects:
        return {}, ""
    if not flags.image_ids:
        return find_image_ids(listing.photos, predictor.trained.facts)
    categories = dict(zip(predictor.classes, predictor.category_ids))
    ids = read_image_ids(listing.photos, Path(flags.image_ids).expanduser(), categories)
    left = sum(photo not in ids for photo in listing.photos)
    return ids, f"ids of {flags.image_ids}" + (f"; images without an id: {left:,}" if left else "")

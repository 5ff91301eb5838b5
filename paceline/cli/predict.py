"""`paceline predict RUN IMAGE_OR_DIR... --out DIR`: annotated pictures and predictions.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from paceline.cli.flags import parse
from paceline.cli.voice import say
from paceline.config.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from paceline.predict import Answer, Found, FoundObjects

# Pixels of the longer side of a picture with objects: small photos are enlarged for the names, large ones reduced.
SMALLEST, LARGEST = 640, 1600


@dataclass(frozen=True)
class Flags:
    """What to label."""

    run: Annotated[Path, tyro.conf.Positional] = Path()  # run folder
    photos: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()  # photos, or folders of photos
    out: Path = Path("predictions")  # folder for the pictures and predictions.json
    checkpoint: str = "best"  # best, last or step-N
    pictures: bool = True  # draw the photos with their answers
    score_above: float = 0.3  # objects: smallest score of those that are drawn and printed; predictions.json has all


def run(arguments: Sequence[str]) -> int:
    """Label photos and write what was found."""
    flags = parse(arguments, Flags(), prog="predict", description="Label photos with a trained run.")
    if not flags.photos:
        raise UserError("name a run and at least one photo or folder: paceline predict RUN photo.jpg --out DIR")
    if not 0 <= flags.score_above <= 1:
        raise UserError(f"--score-above {flags.score_above:g}: a score lies in [0, 1].")
    from PIL import Image

    from paceline.predict import find_photos, load

    photos = find_photos(flags.photos)
    predictor = load(flags.run, checkpoint=flags.checkpoint)
    shown = SHOWN[predictor.trained.recipe.task]
    answers = predictor.predict(photos)
    folder = _writable(flags.out)
    for photo, name, answer in zip(photos, _picture_names(photos), answers):
        say(f"{photo}: {shown.line(answer, flags.score_above)}")
        if flags.pictures:
            with Image.open(photo) as image:
                shown.picture(image.convert("RGB"), answer, flags.score_above).save(folder / name, quality=90)
    facts = {
        "run": str(flags.run),
        "checkpoint": predictor.trained.checkpoint,
        "classes": list(predictor.classes),
        "images": [shown.record(answer, predictor) for answer in answers],
    }
    (folder / "predictions.json").write_text(json.dumps(facts, indent=2))
    say(f"{len(photos)} photo{'' if len(photos) == 1 else 's'}: {folder}")
    return 0


class Shown(NamedTuple):
    """How a task's answers are printed, drawn and written."""

    line: Callable[[Any, float], str]  # (answer, smallest score)
    picture: Callable[[Image.Image, Any, float], Image.Image]  # (photo, answer, smallest score)
    record: Callable[[Any, Any], dict[str, Any]]  # (answer, predictor) -> JSON


def _classes_line(answer: Answer, _: float) -> str:
    return "  ".join(f"{label} {100 * score:.1f} %" for label, score in zip(answer.names[:3], answer.scores))


def _classes_picture(photo: Image.Image, answer: Answer, _: float) -> Image.Image:
    from paceline.report.draw import top5_picture

    return top5_picture(photo, answer.names, answer.scores)


def _classes_record(answer: Answer, _: object) -> dict[str, Any]:
    return asdict(answer)


def _objects_line(found: Found | FoundObjects, least: float) -> str:
    count = sum(score >= least for score in found.scores)
    if not count:
        return f"nothing with a score of {least:g} or more"
    best = "  ".join(f"{name} {score:.2f}" for name, score in zip(found.names[: min(count, 5)], found.scores))
    return best + (f"  and {count - 5} more" if count > 5 else "")


def _boxes_picture(photo: Image.Image, found: Found, least: float) -> Image.Image:
    return _objects_picture(photo, found, [None] * len(found.scores), least)


def _masks_picture(photo: Image.Image, found: FoundObjects, least: float) -> Image.Image:
    return _objects_picture(photo, found, [found.rle(i) for i in range(len(found.scores))], least)


def _objects_picture(
    photo: Image.Image, found: Found | FoundObjects, masks: Sequence[dict[str, Any] | None], least: float
) -> Image.Image:
    from paceline.report.draw_boxes import Mark, marks_picture

    side = min(max(*photo.size, SMALLEST), LARGEST)
    marks = [
        Mark((left, top, width, height), label, f"{name} {score:.2f}", mask=mask)
        for (left, top, width, height), label, name, score, mask in zip(
            found.boxes.tolist(), found.classes, found.names, found.scores, masks
        )
        if score >= least
    ]
    return marks_picture(photo, marks, width=side, height=side)


def _boxes_record(found: Found | FoundObjects, predictor: Any) -> dict[str, Any]:
    """One photo; its `detections` have the fields of COCO's result format, and a name.

    Joined over the photos they are a result file, for photos that have COCO's numbers for names.
    """
    stem = Path(found.file).stem
    image_id = int(stem) if stem.isascii() and stem.isdigit() else stem
    detections = [
        {
            "image_id": image_id,
            "category_id": predictor.category_ids[label - 1],
            "name": name,
            "bbox": [round(edge, 2) for edge in box],
            "score": round(score, 5),
        }
        for box, label, name, score in zip(found.boxes.tolist(), found.classes, found.names, found.scores)
    ]
    return {"file": found.file, "width": found.width, "height": found.height, "detections": detections}


def _masks_record(found: FoundObjects, predictor: Any) -> dict[str, Any]:
    """As of boxes, and each detection's mask as `segmentation`, COCO's compressed run-length encoding."""
    record = _boxes_record(found, predictor)
    for i, detection in enumerate(record["detections"]):
        detection["segmentation"] = found.rle(i)
    return record


# By the recipe's task.
SHOWN: dict[str, Shown] = {
    "classification": Shown(_classes_line, _classes_picture, _classes_record),
    "ssd": Shown(_objects_line, _boxes_picture, _boxes_record),
    "maskrcnn": Shown(_objects_line, _masks_picture, _masks_record),
}


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(
            f"--out {folder}: cannot be made ({problem.strerror}). Name a folder that can be written."
        ) from None
    return folder


def _picture_names(photos: Sequence[Path]) -> list[str]:
    """A file name for each picture; photos of the same name from two folders get numbers."""
    seen: dict[str, int] = {}
    names = []
    for photo in photos:
        count = seen[photo.stem] = seen.get(photo.stem, 0) + 1
        names.append(f"{photo.stem}{'' if count == 1 else f'-{count}'}.jpg")
    return names

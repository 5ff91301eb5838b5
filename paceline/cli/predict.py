"""`paceline predict RUN IMAGE_OR_DIR... --out DIR`: annotated pictures and predictions.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.cli.flags import parse
from paceline.config.errors import UserError


@dataclass(frozen=True)
class Flags:
    """What to label."""

    run: Annotated[Path, tyro.conf.Positional] = Path()  # run folder
    photos: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()  # photos, or folders of photos
    out: Path = Path("predictions")  # folder for the pictures and predictions.json
    checkpoint: str = "best"  # best, last or step-N
    pictures: bool = True  # draw the photos with their answers


def run(arguments: Sequence[str]) -> int:
    """Label photos and write what was found."""
    flags = parse(arguments, Flags(), prog="predict", description="Label photos with a trained run.")
    if not flags.photos:
        raise UserError("name a run and at least one photo or folder: paceline predict RUN photo.jpg --out DIR")
    from PIL import Image

    from paceline.predict import find_photos, load
    from paceline.report.draw import top5_picture

    photos = find_photos(flags.photos)
    predictor = load(flags.run, checkpoint=flags.checkpoint)
    answers = predictor.predict(photos)
    folder = _writable(flags.out)
    names = _picture_names(photos)
    for photo, name, answer in zip(photos, names, answers):
        print(
            f"{photo}: "
            + "  ".join(f"{label} {100 * score:.1f} %" for label, score in zip(answer.names[:3], answer.scores))
        )
        if flags.pictures:
            with Image.open(photo) as image:
                top5_picture(image.convert("RGB"), answer.names, answer.scores).save(folder / name)
    facts = {
        "run": str(flags.run),
        "checkpoint": predictor.trained.checkpoint,
        "classes": list(predictor.classes),
        "images": [asdict(answer) for answer in answers],
    }
    (folder / "predictions.json").write_text(json.dumps(facts, indent=2))
    print(f"{len(photos)} photos: {folder}")
    return 0


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

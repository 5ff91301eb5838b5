"""`paceline preview RECIPE --data DIR`: a mosaic of training images exactly as the network will see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.flags import explain, parse_recipe
from paceline.cli.voice import say
from paceline.config.errors import RecipeError, UserError
from paceline.config.run import Controls
from paceline.training.opening import check_request, open_task

ABOUT = """Draw a mosaic of training images exactly as the network will see them: cropped, flipped, coloured, with their classes,
boxes or masks. Look at it before a long run. RECIPE is a name (paceline list recipes) or ./file.py:function. Every flag of the
recipe may follow, as for train: paceline preview RECIPE --help lists them."""


@dataclass(frozen=True)
class PreviewFlags:
    """What to draw."""

    data: str = ""  # data set; empty = the built-in shapes
    out: Path = Path("preview.png")  # picture to write
    images: int = 40  # pictures in the mosaic
    columns: int = 8  # pictures in a row
    step: int = 0  # first training step whose images are drawn


def run(arguments: Sequence[str]) -> int:
    """Write the mosaic and print its path."""
    if arguments and arguments[0] in ("-h", "--help"):
        explain("preview RECIPE", ABOUT, PreviewFlags())
    asked = parse_recipe(arguments, PreviewFlags(), verb="preview")
    flags = asked.controls
    if flags.images < 1 or flags.columns < 1 or flags.step < 0:
        raise RecipeError("--images and --columns must be 1 or more, --step 0 or more.")
    check_request(asked.recipe, flags.data)
    import torch

    from paceline.dist.launcher import read_launch
    from paceline.dist.world import open_world
    from paceline.draw.pictures import mosaic

    with open_world(read_launch({}), device=torch.device("cpu")) as world:
        task = open_task(asked.recipe, Controls(data=flags.data), world, say=say)
    photos, captions = [], []
    step = flags.step
    while len(photos) < flags.images:
        epochs, numbers = task.samples(step)
        for epoch, number in list(zip(epochs, numbers))[: flags.images - len(photos)]:
            photo, caption = task.workload.picture(*task.sample(int(epoch), int(number)), task.classes)
            photos.append(photo)
            captions.append(caption)
        step += 1
    picture = mosaic(photos, captions, flags.columns, tile=max(96, *(photo.width for photo in photos)))
    try:
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        picture.save(flags.out)
    except (OSError, ValueError) as problem:  # ValueError: a suffix that Pillow knows no format for
        raise UserError(f"--out {flags.out}: cannot be written ({problem}). Name a .png or .jpg file.") from None
    say(f"{len(photos)} training images from step {flags.step:,} on: {flags.out}")
    return 0

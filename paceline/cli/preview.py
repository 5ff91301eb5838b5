"""`paceline preview RECIPE --data DIR`: a mosaic of training images exactly as the network will see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.flags import parse_recipe
from paceline.config.errors import RecipeError, UserError
from paceline.config.run import Controls


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
    asked = parse_recipe(arguments, PreviewFlags(), verb="preview")
    flags = asked.controls
    if flags.images < 1 or flags.columns < 1 or flags.step < 0:
        raise RecipeError("--images and --columns must be 1 or more, --step 0 or more.")
    import numpy as np
    import torch

    from paceline.data.stream import batch_indices
    from paceline.dist.launcher import read_launch
    from paceline.dist.world import open_world
    from paceline.report.draw import mosaic
    from paceline.tasks import open_task
    from paceline.tasks.classification import Classification

    with open_world(read_launch({}), device=torch.device("cpu")) as world:
        task = open_task(asked.recipe, Controls(data=flags.data), world, say=print)
    if not isinstance(task, Classification):
        raise RecipeError(f"preview: --task {asked.recipe.task} has no preview; it draws classification's images.")
    side, batch = asked.recipe.input.size, asked.recipe.global_batch
    photos, captions = [], []
    step = flags.step
    while len(photos) < flags.images:
        epochs, indices = batch_indices(task.train_images, seed=asked.recipe.seed, step=step, global_batch=batch)
        for epoch, index in list(zip(epochs, indices))[: flags.images - len(photos)]:
            out = np.empty((side, side, 3), np.uint8)
            label = task.read_train(int(epoch), int(task.train_numbers[index]), out)
            photos.append(out)
            captions.append(task.classes[label])
        step += 1
    picture = mosaic(photos, captions, flags.columns, tile=max(96, min(side, 224)))
    try:
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        picture.save(flags.out)
    except (OSError, ValueError) as problem:  # ValueError: a suffix that Pillow knows no format for
        raise UserError(f"--out {flags.out}: cannot be written ({problem}). Name a .png or .jpg file.") from None
    print(f"{len(photos)} training images from step {flags.step:,} on: {flags.out}")
    return 0

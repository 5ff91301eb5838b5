"""`paceline preview RECIPE --data DIR`: a mosaic of training images exactly as the network will see them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline._utils.atomic_write import KEY, check_user_file, write_user_file
from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.flags import explain, parse_run_args
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.run import RunOptions
from paceline.training.open_data import open_task
from paceline.training.request import check_request

if TYPE_CHECKING:
    from PIL import Image

ABOUT = """Draw a mosaic of training images exactly as the network receives them, with all augmentation and with their classes,
boxes, or masks. Check it before a long run. RECIPE is a name (paceline list recipes) or ./file.py:function. All flags of the
recipe are supported, as for train: paceline preview RECIPE --help lists them."""


@dataclass(frozen=True)
class PreviewFlags:
    """What to draw."""

    data: Annotated[str, Help("dataset; empty: the built-in shapes")] = ""
    output: Annotated[Path, Help("image file to write")] = Path("preview.png")
    num_images: Annotated[int, Help("number of images in the mosaic")] = 40
    columns: Annotated[int, Help("number of images per row")] = 8
    step: Annotated[int, Help("first training step whose images are drawn")] = 0


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Write the mosaic and print its path."""
    if arguments and arguments[0] in HELP:
        explain("preview RECIPE", ABOUT, PreviewFlags(), arguments)
    args = parse_run_args(arguments, PreviewFlags(), verb="preview", printer=printer)
    flags = args.options
    if flags.num_images < 1 or flags.columns < 1 or flags.step < 0:
        raise RecipeError("--num-images and --columns must be 1 or more, and --step must be 0 or more.")
    check_user_file(flags.output)
    check_request(args.recipe, flags.data)
    import torch

    from paceline.distributed.comm.launcher import read_launch
    from paceline.distributed.comm.world import open_distributed
    from paceline.inference.drawing.boxes import draw_sample
    from paceline.inference.drawing.rendering import draw_mosaic_page

    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        task = open_task(args.recipe, RunOptions(data=flags.data), world, printer)
    photos, captions = [], []
    step = flags.step
    with printer.waiting("drawing"):
        while len(photos) < flags.num_images:
            for pixels, label in islice(task.data.samples_of_step(step), flags.num_images - len(photos)):
                sample = pixels, label, task.data.classes
                photo, caption = task.workload.reporting.picture(*sample) or draw_sample(*sample)
                photos.append(photo)
                captions.append(caption)
            step += 1
    picture = draw_mosaic_page(photos, captions, flags.columns, tile=max(96, *(photo.width for photo in photos)))
    write_user_file(flags.output, _encoded(picture, flags.output))
    printer.facts = {"file": flags.output, "images": len(photos), "step": flags.step}
    printer.say(f"{len(photos)} training images, starting at step {flags.step:,}: {flags.output}")
    return 0


def _encoded(picture: Image.Image, out: Path) -> bytes:
    """A file of the kind that the suffix names; a PNG or JPEG says that it is ours, so that the next preview may replace it."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    kind, mark, buffer = Image.registered_extensions().get(out.suffix.lower(), ""), PngInfo(), io.BytesIO()
    mark.add_text(KEY, "preview")
    marks = {"PNG": {"pnginfo": mark}, "JPEG": {"comment": f"{KEY} preview"}}
    try:
        picture.save(buffer, kind, **marks.get(kind, {}))
    except (OSError, ValueError, KeyError) as problem:
        reason = f"the image format {out.suffix or '(no suffix)'} is not supported: {problem}"
        raise PacelineError(f"--output {out}: {reason}. Use a .png or .jpg file.") from None
    return buffer.getvalue()

"""What `paceline eval` is asked, and what of it does not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from paceline._utils.atomic_write import check_output
from paceline._utils.errors import UserError
from paceline.config.graph_file import refuse_graph
from paceline.config.run import run_folder

if TYPE_CHECKING:
    from paceline.predict.foreign_scores import Answers

# The flags that change a recipe's model.detect, and so what is scored.
DETECT = ("score_above", "iou", "candidates", "keep", "mask_above")
# What an exported graph has in it.
IN_GRAPH = ("score_above", "iou", "candidates", "keep", "checkpoint", "workload", "system")

Names = tuple[str, ...]


@dataclass(frozen=True)
class Flags:
    """What to score."""

    run: Annotated[Path, tyro.conf.Positional] = Path()  # run folder, weights, .onnx, .xml, .pt2, or published weights
    data: str = ""  # data set to score on, which may hold val or test alone; empty = the run's own
    split: Literal["", "val", "test", "train"] = ""  # which part of --data; empty = val where there is one, else test
    images: str = ""  # folder of photos to score on, with --annotations
    annotations: str = ""  # COCO JSON of --images
    checkpoint: str = "best"  # best, last, all or step-N
    limit_val: int = 0  # only N images, evenly spread; 0 = all of --data, or of the run's own as many as it did
    val_half: Literal["", "tune", "test"] = ""  # half of the photos, by their names; empty = as the run did
    batch: int = 0  # images in one forward; 0 = as the run did
    score_above: float | None = None  # objects: smallest score that counts; None = the recipe's
    iou: float | None = None  # objects: overlap from which the better of two boxes stays; None = the recipe's
    candidates: int | None = None  # objects: boxes that enter suppression; None = the recipe's
    keep: int | None = None  # objects: most of an image; None = the recipe's
    mask_above: float | None = None  # masks: probability above which a pixel is the object's; None = the recipe's
    system: str = ""  # where to compute; empty = as the run did where this machine can, else auto
    json: bool = False  # print one JSON object a checkpoint
    out: str = ""  # also write the predictions to this JSON file
    workload: str = ""  # of a run whose workload is your own: its file, ./file.py:name, which is run as Python
    recipe: str = ""  # of weights: the recipe that they fit, with flags in quotes; empty = found from them
    trust: bool = False  # open a .pt2, which can run code of whoever made it
    predictions: str = ""  # any model's answers on --data, in place of a run: COCO's results, YOLO's .txt folder, .csv
    class_names: Names = ()  # of --predictions: the model's classes in its order, where it numbers them otherwise
    first_class: int = 0  # of --predictions: the number of the first class
    intervals: bool = True  # how far 95 percent of such sets of photos score apart; up to a minute for 5,000 photos

    @property
    def elsewhere(self) -> bool:
        """Whether other data than the run's own is scored."""
        return bool(self.data or self.split or self.images or self.annotations)


def check_flags(flags: Flags) -> None:
    """Raises UserError for what cannot be scored together."""
    if flags.limit_val < 0 or flags.batch < 0:
        raise UserError("--limit-val and --batch must be 0 (as the run did) or more.")
    if flags.out and flags.checkpoint == "all":
        raise UserError("--out holds one checkpoint's predictions: name one with --checkpoint, not all.")
    check_output(flags.out)
    refuse_graph(flags.run, "eval", trust=flags.trust)
    if flags.split and not (flags.data or flags.images or flags.annotations):
        raise UserError(f"--split {flags.split}: a part of which data set? Name it with --data DIR.")


def answers_of(flags: Flags, world: int) -> Answers:
    """The rows of --predictions, read before a network is built. world: number of ranks. Raises UserError, DataError."""
    usual = Flags()
    for name in (*DETECT, "checkpoint", "batch", "system", "workload", "recipe", "trust"):
        if getattr(flags, name) != getattr(usual, name):
            raise UserError(
                f"--{name.replace('_', '-')}: for a model; --predictions has its answers already. Leave it away."
            )
    if flags.run != run_folder(usual.run):
        raise UserError(f"{flags.run}, --predictions {flags.predictions}: which of them is to be scored? Name one.")
    if world > 1:
        raise UserError("--predictions: scored by one process. Leave the launcher away.")
    if not flags.elsewhere:
        raise UserError(f"--predictions {flags.predictions}: answers on which photos? Name them with --data DIR.")
    from paceline.predict.foreign import read_rows
    from paceline.predict.foreign_scores import Answers

    path = Path(flags.predictions)
    return Answers(path, read_rows(path), flags.class_names, flags.first_class)

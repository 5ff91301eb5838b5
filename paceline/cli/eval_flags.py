"""What `paceline eval` is asked, and what of it does not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError
from paceline.config.constraints import Help
from paceline.config.model_card import refuse_graph
from paceline.config.run import run_folder

if TYPE_CHECKING:
    from paceline.inference.external_scores import ExternalScores

# The flags that change a recipe's model.detect, and so what is scored.
DETECT = ("score_threshold", "nms_iou", "topk_candidates", "max_detections", "mask_threshold")
# What an exported graph has in it.
IN_GRAPH = ("score_threshold", "nms_iou", "topk_candidates", "max_detections", "checkpoint", "task_file", "system")

Names = tuple[str, ...]


@dataclass(frozen=True)
class EvalFlags:
    """What to score."""

    run: Annotated[Path, tyro.conf.Positional, Help("run folder, weights, .onnx, .xml, .pt2, published name")] = Path()
    data: Annotated[str, Help("data set to score on, which may hold only val or test; empty: the run's own")] = ""
    split: Annotated[Literal["", "val", "test", "train"], Help("part of --data; empty: val if there, else test")] = ""
    images_dir: Annotated[str, Help("folder of photos to score on, with --annotations")] = ""
    annotations: Annotated[str, Help("COCO JSON of --images-dir")] = ""
    checkpoint: Annotated[str, Help("best, last, all or step-N")] = "best"
    max_val_images: Annotated[int, Help("images to score, evenly spread; 0: all of --data, or as the run did")] = 0
    val_subset: Annotated[Literal["", "tune", "test"], Help("half of the photos, by name; empty: as the run did")] = ""
    batch_size: Annotated[int, Help("images in one forward; 0: as the run did")] = 0
    score_threshold: Annotated[float | None, Help("objects: smallest score that counts; None: the recipe's")] = None
    nms_iou: Annotated[float | None, Help("objects: IoU from which the better box stays; None: the recipe's")] = None
    topk_candidates: Annotated[int | None, Help("objects: boxes that enter suppression; None: the recipe's")] = None
    max_detections: Annotated[int | None, Help("objects: most of an image; None: the recipe's")] = None
    mask_threshold: Annotated[float | None, Help("masks: smallest probability of an object's pixel; None: recipe's")] = None
    system: Annotated[str, Help("where to compute; empty: as the run did where this machine can, else auto")] = ""
    json: Annotated[bool, Help("print one JSON object a checkpoint")] = False
    output: Annotated[str, Help("also write the predictions to this JSON file")] = ""
    task_file: Annotated[str, Help("file of the run's own workload, ./file.py:name, which is run as Python")] = ""
    recipe: Annotated[str, Help("recipe that the weights fit, with flags in quotes; empty: found by them")] = ""
    allow_code_execution: Annotated[bool, Help("open a .pt2, which can run code of its author")] = False
    predictions: Annotated[str, Help("answers of any model on --data: COCO's results, YOLO's .txt, .csv")] = ""
    class_names: Annotated[Names, Help("classes of --predictions in the model's order, where that differs")] = ()
    label_offset: Annotated[int, Help("of --predictions: the number of the first class")] = 0
    confidence_intervals: Annotated[bool, Help("range of 95 percent of the scores of such photos; up to a minute")] = True

    @property
    def elsewhere(self) -> bool:
        """Whether other data than the run's own is scored."""
        return bool(self.data or self.split or self.images_dir or self.annotations)


def check_flags(flags: EvalFlags) -> None:
    """Raises PacelineError for what cannot be scored together."""
    if flags.max_val_images < 0 or flags.batch_size < 0:
        raise PacelineError("--max-val-images and --batch-size must be 0 (as the run did) or more.")
    if flags.output and flags.checkpoint == "all":
        raise PacelineError("--output holds one checkpoint's predictions: name one with --checkpoint, not all.")
    check_user_file(flags.output)
    refuse_graph(flags.run, "eval", allow_code_execution=flags.allow_code_execution)
    if flags.split and not (flags.data or flags.images_dir or flags.annotations):
        raise PacelineError(f"--split {flags.split}: a part of which data set? Name it with --data DIR.")


def read_external_predictions(flags: EvalFlags, world: int) -> ExternalScores:
    """The rows of --predictions, read before a network is built. world: number of ranks. Raises PacelineError, DataError."""
    usual = EvalFlags()
    for name in (*DETECT, "checkpoint", "batch_size", "system", "task_file", "recipe", "allow_code_execution"):
        if getattr(flags, name) != getattr(usual, name):
            raise PacelineError(
                f"--{name.replace('_', '-')}: for a model; --predictions has its answers already. Leave it away."
            )
    if flags.run != run_folder(usual.run):
        raise PacelineError(f"{flags.run}, --predictions {flags.predictions}: which of them is to be scored? Name one.")
    if world > 1:
        raise PacelineError("--predictions: scored by one process. Leave the launcher away.")
    if not flags.elsewhere:
        raise PacelineError(f"--predictions {flags.predictions}: answers on which photos? Name them with --data DIR.")
    from paceline.inference.external_predictions import read_rows
    from paceline.inference.external_scores import ExternalScores

    path = Path(flags.predictions)
    return ExternalScores(path, read_rows(path), flags.class_names, flags.label_offset)

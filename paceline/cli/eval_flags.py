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

    run: Annotated[Path, tyro.conf.Positional, Help("run folder, weights, .onnx, .xml, .pt2, or published name")] = Path()
    data: Annotated[str, Help("dataset to score on, with a val or test split; empty: the run's dataset")] = ""
    split: Annotated[Literal["", "val", "test", "train"], Help("split of --data; empty: val, or test without val")] = ""
    images_dir: Annotated[str, Help("folder of images to score on, with --annotations")] = ""
    annotations: Annotated[str, Help("COCO JSON file of --images-dir")] = ""
    checkpoint: Annotated[str, Help("checkpoint: best, last, all, or step-N")] = "best"
    max_val_images: Annotated[int, Help("number of images to score, evenly spaced; 0: all of --data, or as in the run")] = 0
    val_subset: Annotated[Literal["", "tune", "test"], Help("half of the images, by file name; empty: as in the run")] = ""
    batch_size: Annotated[int, Help("images per forward pass; 0: as in the run")] = 0
    score_threshold: Annotated[float | None, Help("detection: score threshold; None: as in the recipe")] = None
    nms_iou: Annotated[float | None, Help("detection: IoU threshold of NMS; None: as in the recipe")] = None
    topk_candidates: Annotated[int | None, Help("detection: boxes before NMS; None: as in the recipe")] = None
    max_detections: Annotated[int | None, Help("detection: maximum detections per image; None: as in the recipe")] = None
    mask_threshold: Annotated[float | None, Help("masks: probability threshold of a pixel; None: as in the recipe")] = None
    system: Annotated[str, Help("system to run on; empty: as in the run if this machine supports it, or auto")] = ""
    json: Annotated[bool, Help("print one JSON object per checkpoint")] = False
    output: Annotated[str, Help("JSON file to write the predictions to")] = ""
    task_file: Annotated[str, Help("custom task of the run, ./file.py:name, which is executed as Python")] = ""
    recipe: Annotated[str, Help("recipe that fits the weights, with flags in quotes; empty: detected")] = ""
    allow_code_execution: Annotated[bool, Help("open a .pt2 file, which can run arbitrary code of its author")] = False
    predictions: Annotated[str, Help("predictions of any model on --data: COCO results, YOLO .txt, or .csv")] = ""
    class_names: Annotated[Names, Help("class names of --predictions in the model's order, if it differs")] = ()
    label_offset: Annotated[int, Help("number of the first class in --predictions")] = 0
    confidence_intervals: Annotated[bool, Help("print 95% confidence intervals; takes up to a minute")] = True

    @property
    def elsewhere(self) -> bool:
        """Whether other data than the run's own is scored."""
        return bool(self.data or self.split or self.images_dir or self.annotations)


def check_flags(flags: EvalFlags) -> None:
    """Raises PacelineError for what cannot be scored together."""
    if flags.max_val_images < 0 or flags.batch_size < 0:
        raise PacelineError("--max-val-images and --batch-size must be 0 (as in the run) or more.")
    if flags.output and flags.checkpoint == "all":
        raise PacelineError("--output: not supported with --checkpoint all. Choose one checkpoint.")
    check_user_file(flags.output)
    refuse_graph(flags.run, "eval", allow_code_execution=flags.allow_code_execution)
    if flags.split and not (flags.data or flags.images_dir or flags.annotations):
        raise PacelineError(f"--split {flags.split}: requires a dataset. Add --data DIR.")


def read_external_predictions(flags: EvalFlags, world: int) -> ExternalScores:
    """The rows of --predictions, read before a network is built. world: number of ranks. Raises PacelineError, DataError."""
    usual = EvalFlags()
    for name in (*DETECT, "checkpoint", "batch_size", "system", "task_file", "recipe", "allow_code_execution"):
        if getattr(flags, name) != getattr(usual, name):
            raise PacelineError(f"--{name.replace('_', '-')}: not supported with --predictions. Remove it.")
    if flags.run != run_folder(usual.run):
        raise PacelineError(f"{flags.run} and --predictions {flags.predictions}: pass one of them, not both.")
    if world > 1:
        raise PacelineError("--predictions: not supported with multiple ranks. Run the command without a launcher.")
    if not flags.elsewhere:
        raise PacelineError(f"--predictions {flags.predictions}: requires a dataset to score on. Add --data DIR.")
    from paceline.inference.external_predictions import read_rows
    from paceline.inference.external_scores import ExternalScores

    path = Path(flags.predictions)
    return ExternalScores(path, read_rows(path), flags.class_names, flags.label_offset)

"""A trained run, or a file of weights, opened for use: its recipe, its classes, its model with the weights, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.reporter import LOGGED, Reporter
from paceline._utils.text import join_names
from paceline.config.recipe import Recipe
from paceline.config.run import RunRecord, read_run, run_folder, saved_classes, saved_system
from paceline.data.batch import DetectedInstances
from paceline.data.transforms.exif import read_orientation
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.distributed.device.accelerators import default_accelerator
from paceline.distributed.device.setup import autocast_for
from paceline.inference.image_input import Photo, encode_photo
from paceline.inference.predictor import Predictor, PreparedImage, to_classification, to_detections
from paceline.inference.results import DetectionResult, PredictionResult
from paceline.models.metrics.top_k import top_classes
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.registry import get_workload, load_saved_recipe
from paceline.models.weights.classes import category_ids, published_class_names, readable_names
from paceline.models.weights.formats.detect import detect_format, read_safetensors
from paceline.models.weights.identify import identify_network
from paceline.models.weights.load import is_counter
from paceline.models.weights.weight_file import open_weights
from paceline.models.workload import WorkloadSpec
from paceline.training.checkpoint.read import check_file, find_checkpoint, load_checkpoint_with_retry
from paceline.training.evaluate import inference_mode
from paceline.training.state import check_snapshot, check_tensors, load_model


@dataclass(frozen=True)
class TrainedModel:
    """Everything that inference needs; nothing of the training data."""

    folder: Path  # the run's; or the file of weights
    workload: WorkloadSpec
    recipe: Recipe
    classes: tuple[str, ...]
    model: nn.Module  # in eval mode, on `device`
    device: torch.device
    checkpoint: str  # the checkpoint's folder name; or the file's
    step: int
    facts: RunRecord  # of run.json; of a file its class names and ids

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        ids = self.facts.data.get("category_ids")
        return tuple(ids or range(1, len(self.classes) + 1))

    def autocast(self) -> AbstractContextManager:
        """The number format that the run was evaluated in, where this device is of its kind; float32 elsewhere."""
        system = saved_system(self.facts, self.folder)
        if system.device != self.device.type:
            system = replace(system, precision="fp32")
        return autocast_for(system, self.device)()


def open_trained(
    folder: Path,
    *,
    checkpoint: str = "best",
    device: torch.device | None = None,
    recipe: Recipe | None = None,
    workload: str = "",
    reporter: Reporter = LOGGED,
) -> TrainedModel:
    """Open a run folder, or the one that a run.json is in, or a file of weights with a card (config/model_card.py).

    checkpoint  best, last or step-N; where no evaluation has chosen a best one yet, the last one is taken
    device      None: CUDA where torch sees one, else the CPU
    recipe      the run's, where it was read before; None: as run.json has it
    workload    of a run whose workload is one's own, the file that may be run for it: ./file.py:name
    reporter    gets a message where the last checkpoint is opened in place of the best one
    Raises PacelineError for a folder that is no run, CheckpointError for a checkpoint that is missing or damaged.
    """
    folder = run_folder(folder)
    facts = read_run(folder)
    if recipe is None:

        def again(name: str) -> str:
            return f"paceline.load({str(folder)!r}, task_file={name!r})"

        recipe = load_saved_recipe(facts, folder, named=workload, again=again)
    own = get_workload(recipe.task)
    classes = saved_classes(facts, folder)
    system = saved_system(facts, folder)
    device = device or torch.device(default_accelerator() or "cpu")
    if folder.is_file():
        if checkpoint != "best":
            raise PacelineError(f"--checkpoint {checkpoint}: only applies to runs. {folder} is one model. Remove the flag.")
        path, step, tensors = folder, int(facts.step or 0), _tensors_of(folder)
        if facts.averaged is not None:
            reporter.warning(
                f"note: {folder} has the weights without averaging. The run was evaluated with the average (average.safetensors)."
            )
    else:
        path, snapshot = load_checkpoint_with_retry(
            lambda: find_checkpoint(folder / "checkpoints", checkpoint, reporter), check_snapshot
        )
        step, tensors = int(snapshot.facts["step"]), dict(snapshot.tensors["model"])
        tensors.update(snapshot.tensors.get("average", {}))  # where weights are averaged, the average is the model
    try:
        tensors = check_network(own, recipe, len(classes), tensors)
    except CheckpointError as problem:
        raise CheckpointError(f"{path}: {problem}") from None
    model = own.network.build(recipe, len(classes))
    if system.channels_last != "off":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    load_model(model, tensors)
    model = model.to(device).eval()
    return TrainedModel(folder, own, recipe, classes, model, device, path.name, step, facts)


def open_weights_only(
    path: Path,
    *,
    recipe: Mapping[str, Recipe] | None = None,
    explicit: Collection[str] = (),
    device: torch.device | None = None,
    reporter: Reporter = LOGGED,
) -> TrainedModel:
    """Open any file of weights; a checkpoint of a run has recipe and classes from the run.

    recipe  the named recipe, by its name; None: found from the file (models/weights/identify.py)
    explicit  its dotted fields that were set by hand
    device  None: CUDA where torch sees one, else the CPU. It computes in float32
    reporter  gets the name of the network that it was read as
    Raises CheckpointError, in a line, for what is no file of weights, and for one that no network of ours can predict with.
    """
    file = open_weights(path)
    fit = identify_network(file, recipe or {}, explicit)
    assert fit.model is not None
    count = fit.classes
    known = [row[0] for row in file.classes] or published_class_names(count)
    names = known if len(known) == count else [f"class {row}" for row in range(1, count + 1)]
    classes = readable_names(names)
    facts = RunRecord(fit.called, classes=list(classes), data={"category_ids": list(category_ids(names))})
    reporter.line(
        f"{path}: {fit.called}, {count:,} classes ({join_names(classes, 3)}). To use another recipe, set --recipe NAME."
    )
    device = device or torch.device(default_accelerator() or "cpu")
    model = fit.model.to(device).eval()
    return TrainedModel(path, get_workload(fit.recipe.task), fit.recipe, classes, model, device, path.name, 0, facts)


def _tensors_of(file: Path) -> dict[str, Tensor]:
    """Raises CheckpointError where it is too large, damaged, or not what its checkpoint's index says."""
    check_file(file)
    detect_format(file)
    return read_safetensors(file)[0]


def check_network(
    workload: WorkloadSpec, recipe: Recipe, classes: int, tensors: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Compare the network that `recipe` describes with a checkpoint's tensors before any memory is taken for it.

    return  the tensors; a file of averages has no counters, which are 0 then
    Raises CheckpointError where they differ.
    """
    try:
        with torch.device("meta"):
            own = workload.network.build(recipe, classes).state_dict()
    except (RuntimeError, ValueError, OverflowError) as problem:
        reason = (str(problem).splitlines() or [""])[0]
        raise CheckpointError(f"building the network of its recipe failed: {reason}") from None
    counters = {name: torch.zeros(part.shape) for name, part in own.items() if is_counter(name)}
    tensors = {**counters, **tensors}
    check_tensors(own, tensors)
    return tensors


# A trained network answers for photos: a batch at a time through the model, and its outputs as results.
#
# Letters: n photos   K classes   D places for detections   S side of a mask


class TorchPredictor(Predictor):
    """A trained run, or weights, that answer for photos."""

    def __init__(self, trained: TrainedModel) -> None:
        self.trained: TrainedModel = trained

    def reader(self) -> Callable[[Photo], PreparedImage]:
        return partial(_read, self.trained.workload, self.trained.recipe)

    def _answers(self, part: Sequence[PreparedImage]) -> list[PredictionResult]:
        """The results of photos that were read, in their order. Those of one shape share a forward: no answer depends on others."""
        shapes = [seen.pixels.shape for seen in part]
        answers: dict[int, PredictionResult] = {}
        for shape in dict.fromkeys(shapes):
            indices = [index for index, other in enumerate(shapes) if other == shape]
            answers.update(zip(indices, self._of_one_shape([part[index] for index in indices])))
        return [answers[index] for index in range(len(part))]

    def _of_one_shape(self, part: Sequence[PreparedImage]) -> Sequence[PredictionResult]:
        trained = self.trained
        images = torch.from_numpy(np.stack([seen.pixels for seen in part])).permute(0, 3, 1, 2)
        labels, numbers = [seen.label for seen in part], torch.zeros(len(part), dtype=torch.int64)
        batch = trained.workload.data().batch(images, labels, numbers)
        with inference_mode(trained.model), trained.autocast():
            outputs = trained.model.predict(batch.to(trained.device))  # type: ignore[operator]
        return make_results(outputs, part, trained)


def make_results(outputs: Any, photos: Sequence[PreparedImage], trained: TrainedModel) -> Sequence[PredictionResult]:
    """The workload's own results, or ours for this kind of outputs.

    outputs  of the model's `predict` for a batch, the n photos
    """
    own = trained.workload.reporting.answers(outputs, photos, trained)
    if own is not None:
        return own
    if trained.workload.finds_objects or isinstance(outputs, DetectedInstances):
        return make_detections(outputs, photos, trained)
    best = zip(photos, *(part.tolist() for part in top_classes(outputs)))  # (n, K) logits
    return [to_classification(seen, trained, class_ids, scores) for seen, class_ids, scores in best]


def make_detections(
    outputs: Tensor | DetectedInstances, photos: Sequence[PreparedImage], trained: TrainedModel
) -> list[DetectionResult]:
    """outputs: (n, D, 6), as `SSDWithLoss.predict` has them; or with masks (n, D, S, S), and settings with `detect.mask_threshold`."""
    detections, masks = outputs, None
    if isinstance(outputs, DetectedInstances):
        detections, masks = outputs.detections, outputs.masks
    draws = repeat(None) if masks is None else [partial(_pasted, *one, trained) for one in zip(masks, photos)]
    rows = detections.cpu().double().numpy()  # type: ignore[union-attr]
    return [to_detections(seen, trained, one, draw) for seen, one, draw in zip(photos, rows, draws)]


def _pasted(
    masks: Tensor, seen: PreparedImage, trained: TrainedModel, indices: np.ndarray, corners: np.ndarray
) -> Iterable[bytes]:
    settings, h, w = trained.recipe.model, seen.header.height, seen.header.width
    rules = {"threshold": settings.detect.mask_threshold, "law": settings.parity.mask_paste}
    chosen = masks[torch.from_numpy(indices)]
    return paste_to_rle(chosen, torch.from_numpy(corners), h, w, **rules)


def _read(workload: WorkloadSpec, recipe: Recipe[Any, Any], photo: Photo) -> PreparedImage:
    data, name = encode_photo(photo)
    header = read_header(data, name, recipe.input.exif)
    shape = workload.network.eval_shape(recipe, header.height, header.width)
    pixels, draw = np.empty((*shape, 3), np.uint8), workload.data().draw_eval(recipe, header, name, shape)
    decode_and_transform(data, draw, pixels)
    return PreparedImage(photo, header, read_orientation(data), pixels, draw.label)

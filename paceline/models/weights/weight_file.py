"""A file of weights, opened: its kind, its form, and its tensors under our names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.text import abbreviate
from paceline.config.model_card import has_card
from paceline.config.resnet import RESNET
from paceline.config.run import RunRecord, read_run
from paceline.models.backbones.base import Backbone
from paceline.models.weights.formats.detect import NOT_READ, conversion_command, read_contents
from paceline.models.weights.formats.paceline_format import (
    COLOURS,
    KNOWN_COLOURS,
    NEEDS,
    PacelineWeights,
    UnknownColorOrder,
    WeightFormatError,
)
from paceline.models.weights.formats.table import WeightFormat, find_weight_format
from paceline.models.weights.formats.torchvision import resnet_fields

# First weights of a ResNet-D, as timm names them.
DEEP_STEMS = {f"{body}conv1.0.weight" for body in ("", "trunk.", "backbone.body.")}


# Files of tensors in a run's checkpoint; and what one lacks that was taken out of its run.
OF_A_RUN = ("model.safetensors", "average.safetensors")
ALONE = (
    "run.json not found, so its class names, --model.bn-eps, --model.stride-in, and --model.padding are unknown. Use "
    "the checkpoint in its run folder, or convert it:  paceline weights convert "
    "RUN/checkpoints/best/model.safetensors --format paceline"
)


@dataclass(frozen=True)
class WeightFile:
    """What a file of weights holds."""

    path: Path
    kind: str  # of file, in words
    form: WeightFormat
    ours: PacelineWeights
    # Of each class row its names (readable, folder's); () = unknown
    classes: tuple[tuple[str, ...], ...]
    certain: bool  # whether the names are in the file or beside it; else those published with so many rows
    eps: float | None = None  # of the BatchNorms that it was trained with; None = unknown
    others: tuple[str, ...] = ()  # notes on other weights in the file

    def require(self, backbone: Backbone) -> None:
        """Raises CheckpointError where the numbers are for a trunk of another build than this one."""
        if isinstance(getattr(backbone, "conv1", None), nn.Conv2d) and DEEP_STEMS & self.ours.tensors.keys():
            depth = resnet_fields(self.ours.tensors).get("depth", 50)
            raise CheckpointError(
                f"{self.path}: a ResNet with a stem of three convolutions, but this network has one. Use --model.backbone "
                f"timm/resnet{depth}d, or the timm/NAME of the file."
            )
        for field, value in self.ours.needs.items():
            if backbone.built.get(field) != value:
                raise CheckpointError(
                    f"{self.path}: requires a network in which {NEEDS[field][value]}, otherwise the outputs differ. Add "
                    f"--model.{field.replace('_', '-')} {value}."
                )

    def notes_for(self, backbone: Backbone) -> list[str]:
        """What a user of these weights in this trunk should know, a line each."""
        notes = [*self.ours.notes, *self.others]
        eps = next((module.eps for module in backbone.modules() if isinstance(getattr(module, "eps", None), float)), None)
        if self.eps is not None and eps is not None and self.eps != eps:
            notes.append(f"trained with --model.bn-eps {self.eps:g}, but this network has {eps:g}, so its outputs differ")
        return notes


def open_weights(path: Path, *, pickles: bool = False, colors: str = "", key: str = "") -> WeightFile:
    """Read a weight file or folder as data, on the CPU; nothing in it is executed.

    pickles   whether pickled arrays are read too, as `paceline weights` alone asks
    colors   "rgb" or "bgr", of a file that does not say it
    key       as for `read_contents`
    Raises CheckpointError for a file that is absent, too large, damaged, holds anything but tensors, is of a network that none
    of ours can be, does not say its colors, or says them itself.
    """
    kind, (tensors, facts) = read_contents(path, pickles=pickles, key=key)
    other = facts.pop(NOT_READ, "")
    form = find_weight_format(tensors, facts)
    try:
        try:
            ours = form.read(tensors, facts)
        except UnknownColorOrder as problem:
            if not colors:
                ways = "\n  ".join(conversion_command(path, order) for order in KNOWN_COLOURS)
                raise CheckpointError(f"{path}: {problem}. Convert it with the order of its training:\n  {ways}") from None
            ours = form.read(tensors, {**facts, COLOURS: colors})
        else:
            if colors:
                raise CheckpointError(f"{path}: its color order is known, or does not matter. Remove --color-order.")
    except WeightFormatError as problem:
        raise CheckpointError(f"{path}: {problem}.") from None
    except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as problem:  # shapes that no such network has
        reason = abbreviate(str(problem), 200)
        raise CheckpointError(f"{path}: weights of {form.about} with an invalid array ({reason}).") from None
    run = read_run_facts(path)
    needs, eps = _of_network(run)
    ours = replace(ours, needs={**ours.needs, **needs})
    written = _names(run)
    certain = bool(written) or ours.certain
    if path.name in OF_A_RUN and not run.name and not ours.classes and not facts:
        ours = replace(ours, notes=(*ours.notes, ALONE))
    classes = written or tuple((name,) for name in ours.classes)
    others = (
        (f"the file also has {other}, which was not read. To read it, run  {conversion_command(path, key=other)}",)
        if other
        else ()
    )
    return WeightFile(path, kind, form, ours, classes, certain, eps, others)


def find_non_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Names of tensors that hold values which are no finite numbers."""
    return [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]


def find_run_folder(path: Path) -> Path | None:
    """The folder of the run whose checkpoint this file is; None where it is no run's."""
    folders = path.absolute().parents
    if path.name not in OF_A_RUN or len(folders) < 3:
        return None
    return folders[2] if folders[1].name == "checkpoints" and (folders[2] / "run.json").is_file() else None


def read_run_class_names(path: Path) -> tuple[tuple[str, ...], ...]:
    """Names of each class of the run that a file of weights is of; () where it is none's, or its run says nothing."""
    return _names(read_run_facts(path))


def read_run_facts(path: Path) -> RunRecord:
    """The facts of the run that a file of weights is of: on its card, else in the run.json next to it; empty without both.

    Raises CheckpointError for a card that is none of ours.
    """
    if has_card(path):
        return read_run(path)
    run = find_run_folder(path)
    try:
        return read_run(run) if run is not None else RunRecord()
    except PacelineError:  # the weights are whole all the same: only what they are for is unknown
        return RunRecord()


def _names(facts: RunRecord) -> tuple[tuple[str, ...], ...]:
    names, folders = facts.classes, facts.data.get("class_folders") or ()
    rows = zip(*(column for column in (names, folders) if isinstance(column, (list, tuple)) and len(column) == len(names)))
    return tuple(tuple(str(name) for name in row) for row in rows)


def _of_network(facts: RunRecord) -> tuple[dict[str, str], float | None]:
    """What a run's weights need besides the usual network (`PacelineWeights.needs`), and the epsilon of a ResNet's BatchNorms."""
    model = facts.recipe.get("model")
    if not isinstance(model, dict):
        return {}, None
    eps = model.get("bn_eps") if model.get("backbone", RESNET) == RESNET else None
    needs = {name: model[name] for name, values in NEEDS.items() if str(model.get(name)) in values}
    return needs, float(eps) if isinstance(eps, (int, float)) else None

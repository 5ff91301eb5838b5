"""Find the network that a file of weights belongs to: the recipes of its author's networks are tried one after the other.

A network *takes* a file that training could start from; it takes it *whole* where nothing is missing and nothing is new, so that it
can predict. Shapes reveal a trunk's depth and width and the number of classes. They do not reveal the rules of anchors, resizing and
suppression, which differ by author, so the recipes are listed by the form of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from paceline._utils.commands import format_command
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.names import flatten
from paceline._utils.text import join_names
from paceline.config.model_card import has_card
from paceline.config.recipe import Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.run import read_run
from paceline.models.registry import get_workload, load_saved_recipe
from paceline.models.weights.classes import Labels, count_class_rows
from paceline.models.weights.download import PUBLISHED
from paceline.models.weights.formats.torchvision import resnet_fields
from paceline.models.weights.load import WeightReport, is_counter
from paceline.models.weights.weight_file import WeightFile, find_run_folder

# Beginnings of names in timm's networks that are no plain ResNet.
TIMMS = r"(stem|conv_stem|conv1\.0|stages|blocks|layers|patch_embed|features|cls_token|pos_embed)(_\w+)?(\.|$)"

PADDED = "heads.0.fused.bias"  # SSD's head for classes and boxes in one

# A recipe of the menu, and the dotted fields that the author's networks have otherwise.
Row: TypeAlias = tuple[str, Mapping[str, Any]]

TORCHVISION = {"input.resize": "bilinear", "input.padding_mode": "multiple"}
DETECTRON2 = {"model.roi.aligned": True, "model.parity.anchor_rounding": "none"}
MSRA_MEAN = {"input.mean": (0.481458, 0.454692, 0.403844)}
PLAIN: tuple[Row, ...] = (
    ("resnet50", {}),
    ("ssd", {}),
    ("maskrcnn-finetune", TORCHVISION),
    ("fasterrcnn-finetune", TORCHVISION),
    ("maskrcnn-gluoncv", {}),
)
SMALL: tuple[Row, ...] = tuple(
    (name, {})
    for name in ("classify-demo", "ssd-demo", "maskrcnn-demo", "maskrcnn-finetune-cpu", "fasterrcnn-finetune-cpu")
)
# Recipes by form of the file; the first that takes it whole is used. A form without a row has PLAIN.
ROWS: dict[str, tuple[Row, ...]] = {
    "reference": (("ssd", {}),),
    "maskrcnn-benchmark": (("maskrcnn", MSRA_MEAN),),
    "detectron2": (("resnet50", {}), ("maskrcnn-finetune", DETECTRON2), ("fasterrcnn-finetune", DETECTRON2)),
    "gluoncv": (("resnet50", {}), ("maskrcnn-gluoncv", {})),
    "mxnet": (("resnet50", {}), ("ssd-mlperf-1024", {})),
    "tensorflow": (("ssd-gaudi", {}),),
    "paceline": (*PLAIN, ("ssd-mlperf-1024", {}), ("ssd-gaudi", {}), *SMALL),
}


@dataclass(frozen=True)
class RecipeMatch:
    """The result of loading a file into the network of one recipe."""

    called: str  # the recipe, with the flags that the file asks for
    recipe: Recipe
    changed: int  # fields that the file has otherwise than the recipe
    classes: int = 0  # rows of its heads, without a background
    model: nn.Module | None = None  # with the file's tensors; missing ones have no values. None: it does not take the file
    report: WeightReport | None = None
    why: str = ""  # why it does not take the file, in a line

    @property
    def lacking(self) -> list[str]:
        """Tensors of the network that are not in the file; counters of batches are no weights."""
        if self.report is None:
            return []
        return [name for name in (*self.report.missing, *self.report.reinitialised) if not is_counter(name)]

    @property
    def distance(self) -> tuple[int, int, int]:
        """-> (tensors left out, fields that differ, tensors that had to be converted) between the recipe's network and the file's."""
        left_out, converted = (0, 0) if self.report is None else map(len, (self.report.unexpected, self.report.converted))
        return left_out, self.changed, converted

    @property
    def whole(self) -> bool:
        """Whether the network can predict: every tensor of it is in the file."""
        return self.report is not None and not self.lacking


def find_matching_recipes(
    file: WeightFile, recipes: Mapping[str, Recipe], explicit: Collection[str] = ()
) -> Iterator[RecipeMatch]:
    """The file in the network of each recipe, one at a time, with the fields that the file needs.

    explicit  dotted fields that were set by hand, and stay
    """
    rows, backbone = count_class_rows(file.ours.tensors), {**file.ours.needs, **resnet_fields(file.ours.tensors)}
    for name, recipe in recipes.items():
        workload = get_workload(recipe.task)
        known = {
            field: value
            for field, value in backbone.items()
            if hasattr(recipe.model, field) and f"model.{field}" not in explicit
        }
        changed = [field for field in known if getattr(recipe.model, field) != known[field]]
        called = " ".join([name, *(f"--model.{field.replace('_', '-')} {known[field]}" for field in changed)])
        recipe = replace(recipe, model=replace(recipe.model, **known))
        try:
            # Its tensors have no values yet: nothing is drawn, and what the file lacks is only named.
            classes = rows or len(file.classes) or workload.classes
            network = workload.network.build(recipe, classes)
            report = workload.network.load_weights(network, file, Labels(()))  # type: ignore[arg-type]
        except PacelineError as problem:  # another network, or one that this recipe cannot have
            why = str(problem)
            why = why if isinstance(problem, CheckpointError) else why.splitlines()[0]
            yield RecipeMatch(called, recipe, len(changed), why=why.removeprefix(f"{file.path}: "))
            continue
        yield RecipeMatch(called, recipe, len(changed), classes, network, report)


def identify_network(file: WeightFile, requested: Mapping[str, Recipe], explicit: Collection[str] = ()) -> RecipeMatch:
    """The network that can predict with a file's weights.

    requested  the named recipe, by its name; {}: it is found from the file
    Raises CheckpointError, in a line, where none is whole: what the file is, and what the nearest network lacks.
    """
    recipes = apply_author_settings(file, requested, explicit) if requested else recipe_of_run(file.path) or _menu(file)
    if not requested and not file.classes and not count_class_rows(file.ours.tensors) and PADDED in file.ours.tensors:
        name = format_command("predict", file.path, "PHOTO", "--recipe", "ssd-mlperf-1024")
        raise CheckpointError(
            f"{file.path}: its padded heads do not show the number of classes. If these are COCO's 80:  {name}"
        )
    results: list[RecipeMatch] = []
    for fit in find_matching_recipes(file, recipes, explicit):
        if fit.whole and not any(fit.distance):
            return fit
        results.append(replace(fit, model=None) if not fit.whole else fit)  # a network is large
    if best := min((fit for fit in results if fit.whole), key=lambda fit: fit.distance, default=None):
        return best
    raise CheckpointError(f"{file.path}: {_refusal(file, results, requested)}")


def recipe_of_run(path: Path) -> dict[str, Recipe]:
    """The recipe of the run that this file is of, by the file where it has a card, else by the run's folder; {} where it is no run's.

    Raises PacelineError where that run cannot be read, or has a workload from a user's file.
    """
    run = path if has_card(path) else find_run_folder(path)
    if run is None:
        return {}
    return {
        str(run): load_saved_recipe(
            read_run(run), run, named="", again=lambda name: format_command("eval", run, "--task-file", name)
        )
    }


def apply_author_settings(
    file: WeightFile, requested: Mapping[str, Recipe], explicit: Collection[str]
) -> dict[str, Recipe]:
    """A named recipe with its author's differences, but for the fields that were set by hand."""
    rules = {name: _rules(file, name, changes) for name, changes in ROWS.get(file.form.name, PLAIN)}
    made = {}
    for words, recipe in requested.items():
        changes = {field: value for field, value in rules.get(words.split()[0], {}).items() if field not in explicit}
        made[words + _flags(changes)] = override(recipe, changes)
    return made


def _menu(file: WeightFile) -> dict[str, Recipe]:
    """The recipes to try, each with its author's differences, in the order of the file's form."""
    return apply_author_settings(file, {name: RECIPES[name]() for name, _ in ROWS.get(file.form.name, PLAIN)}, ())


def _rules(file: WeightFile, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A row's changes, with those of the published file that has this file's name."""
    names, own = flatten(asdict(RECIPES[name]())), {}
    for published in PUBLISHED.values():
        if file.path.name == published.files[-1].name:
            own = {
                field: tuple(value) if isinstance(value, list) else value  # JSON has no tuples
                for field, value in published.rules.items() if field in names
            }  # fmt: skip
    return {**changes, **own}


def _flags(changes: Mapping[str, Any]) -> str:
    """Fields as their flags, each behind a space."""
    text = ""
    for field, value in changes.items():
        parts = value if isinstance(value, tuple) else () if value is True else (value,)
        text += " ".join(("", f"--{field.replace('_', '-')}", *map(str, parts)))
    return text


def detect_timm_name(file: WeightFile) -> str:
    """timm/NAME of a file whose tensors are named as timm's networks' are, NAME as the file is called; "" of all others."""
    if not any(re.match(TIMMS, name) for name in file.ours.tensors):
        return ""
    try:
        import timm
    except ImportError:
        return "timm/NAME"
    name = re.split(r"[.-]", file.path.name)[0]
    return f"timm/{name if timm.is_model(name) else 'NAME'}"


def _refusal(file: WeightFile, results: list[RecipeMatch], requested: Mapping[str, Recipe]) -> str:
    """Why no network can predict with the file, and what to do."""
    look = format_command("weights", "inspect", file.path)
    near = min((fit for fit in results if fit.report is not None), key=lambda fit: len(fit.lacking), default=None)
    if requested and near is None:
        return f"no match for --recipe {results[0].called} ({results[0].why.rstrip('.')}). To inspect the file, run  {look}"
    if near is None and (backbone := detect_timm_name(file)):
        again = format_command("train", "resnet50", "--model.backbone", backbone, "--weights", file.path)
        return f"a timm network that is not a plain ResNet. Only its backbone is supported:   {again}"
    if near is None:
        known = file.ours.lacks or f"no network of paceline matches (the names are from {file.form.about})"
        return f"{known}. To inspect the file, run  {look}"
    known = file.ours.lacks or f"only a part of the weights of {near.called}"
    return (
        f"{known}: {len(near.lacking)} tensors of {near.called} are missing ({join_names(near.lacking, 2)}), so it cannot "
        f"predict. To inspect the file, run  {look}"
    )

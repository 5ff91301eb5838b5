"""`paceline weights check FILE`: what a file of weights is, whether it is whole, and which of our networks it fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.text import join_names
from paceline.cli.flags import ParsedArgs, parse, parse_run_args
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.model_card import format_card, has_card, read_card

if TYPE_CHECKING:
    from paceline.config.recipe import Recipe
    from paceline.models.weights.identify import RecipeMatch

# Recipes that stand for the networks there are; GluonCV's Mask R-CNN has one layer more, Habana's SSD pads in another way.
NETWORKS = ("resnet50", "ssd", "maskrcnn", "fasterrcnn", "maskrcnn-gluoncv")
MAX_CLASSES = 8
LEFT_OUT = 3


@dataclass(frozen=True)
class WeightsCheckFlags:
    """What to look at."""

    file: Annotated[str, tyro.conf.Positional, Help("weight file, or a checkpoint's folder")] = ""
    recipe: Annotated[str, Help("recipe to compare with, whose flags may follow; empty: each")] = ""
    rows: Annotated[bool, Help("name every tensor that is missing, unknown or converted")] = False


def run_check(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what is found. Exit code 1 where its numbers are not finite, or no network of ours takes it."""
    flags, args = _flags(printer, arguments)
    if not flags.file:
        raise PacelineError("name a weight file: paceline weights check FILE")
    from paceline.models.weights.formats.detect import PICKLED, conversion_command
    from paceline.models.weights.identify import SMALL, detect_timm_name, find_matching_recipes
    from paceline.models.weights.weight_file import find_non_finite, open_weights
    from paceline.training.factory import find_weights_file
    from paceline.training.run_arguments import choose_recipe

    path = find_weights_file(flags.file, pickles=True)
    if args is not None:
        recipes, explicit = {flags.recipe: args.recipe}, args.given
    else:
        recipes, explicit = {name: choose_recipe(name) for name in NETWORKS} | _of_its_run(printer, path), frozenset()
    file = open_weights(path, pickles=True)
    tensors = file.ours.tensors
    _row(printer, "file", f"{path}{_bytes_and_digest(path)}")
    _row(printer, "kind", file.kind)
    _row(printer, "form", file.form.about)
    types = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    numbers = sum(tensor.numel() for tensor in tensors.values())
    _row(
        printer,
        "tensors",
        f"{len(tensors)} of {numbers:,} numbers ({', '.join(f'{count} {name}' for name, count in types.items())})",
    )
    card = format_card(read_card(path)) if has_card(path) else {}
    for head, line in card.items():
        _row(printer, head, line)
    if file.classes and not card:
        known = "" if file.certain else ", as they were published"
        more = ", ..." if len(file.classes) > MAX_CLASSES else ""
        names = ", ".join(names[0] or "-" for names in file.classes[:MAX_CLASSES])
        _row(printer, "classes", f"{len(file.classes):,}{known}: {names}{more}")
    for field, value in file.ours.needs.items():
        _row(printer, "needs", f"--model.{field.replace('_', '-')} {value}")
    for note in (*file.ours.notes, *file.others):
        _row(printer, "note", note)
    if file.ours.lacks:
        _row(printer, "note", file.ours.lacks)
    if file.ours.left_out:
        _row(printer, "left out", f"{join_names(file.ours.left_out, LEFT_OUT)}: no weights")
    wild = find_non_finite(tensors)
    _row(printer, "finite", f"no: {join_names(wild, LEFT_OUT)}" if wild else "yes")
    with printer.waiting("trying networks"):
        results = [replace(fit, model=None) for fit in find_matching_recipes(file, recipes, explicit)]  # a network is large
        if args is None and not any(fit.report for fit in results):
            small = {name: choose_recipe(name) for name, _ in SMALL}
            results += [fit for fit in find_matching_recipes(file, small, explicit) if fit.report]
    taken = any(fit.report for fit in results)
    printer.facts = {
        **{"file": path, "kind": file.kind, "form": file.form.name, "tensors": len(tensors), "numbers": numbers},
        **{
            "classes": [names[0] for names in file.classes],
            "finite": not wild,
            "fits": [fit.called for fit in results if fit.report],
        },
    }
    for fit in results:
        if fit.report or not taken:  # why other networks do not take it is of use where none does
            first, *rest = _row_of(fit, flags.rows)
            _row(printer, "fits" if fit.report else "not", f"{fit.called}: {first}")
            for line in rest:
                _row(printer, "", line)
    if not taken and (backbone := detect_timm_name(file)):
        again = format_command("weights", "check", path, "--recipe", "resnet50", "--model.trunk", backbone)
        _row(printer, "next", f"its names are as timm's:  {again}")
    if file.kind == PICKLED:
        _row(printer, "next", conversion_command(path))
    return 0 if taken and not wild else 1


@dataclass(frozen=True)
class _RecipeFlags:
    """Beside the recipe's own."""

    rows: Annotated[bool, Help("name every tensor that is missing, unknown or converted")] = False


def _flags(printer: Printer, arguments: Sequence[str]) -> tuple[WeightsCheckFlags, ParsedArgs | None]:
    """-> this verb's own flags, and the recipe as its flags change it where one is named."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--recipe=") else [word])]
    if "--recipe" not in words[:-1] or set(HELP) & set(words):
        prog, about = "weights check", "What a file of weights is, and what it fits."
        return parse(printer, arguments, WeightsCheckFlags(), prog, about), None
    at = words.index("--recipe")
    name = words[at + 1]
    del words[at : at + 2]
    # The file is the first word, or the last one behind the flags.
    file = words.pop(0 if words[0][:1] != "-" else -1) if words and not all(word[:1] == "-" for word in words) else ""
    args = parse_run_args([name, *words], _RecipeFlags(), verb="weights check FILE --recipe", printer=printer)
    called = " ".join([name, *(word for word in words if word != "--rows")])
    return WeightsCheckFlags(file, called, args.controls.rows), args


def _of_its_run(printer: Printer, path: Path) -> dict[str, Recipe]:
    """The recipe of the run whose checkpoint this is; none where it is no checkpoint, or its run cannot be read."""
    from paceline.models.weights.identify import recipe_of_run

    try:
        return recipe_of_run(path)
    except PacelineError as problem:
        printer.say(f"note      {str(problem).splitlines()[0]}")
        return {}


def _row_of(fit: RecipeMatch, every: bool) -> list[str]:
    """What became of each row of a file in a network, or why it is none for it."""
    if fit.report is None:
        return [fit.why]
    path = fit.report.path
    lines = replace(fit.report, said=()).lines(every=every)
    return [line.strip().removeprefix(f"weights {path}: ") for line in lines]


def _bytes_and_digest(path: Path) -> str:
    from paceline._utils.hashing import file_sha256

    if not path.is_file():
        return ""
    digest = file_sha256(path)
    named = re.search(r"-([0-9a-f]{8})\.\w+$", path.name)
    right = (
        ""
        if named is None
        else ", as its name says"
        if digest.startswith(named[1])
        else f", and its name says {named[1]}: another file"
    )
    return f", {path.stat().st_size / 2**20:,.1f} MiB, SHA-256 {digest}{right}"


def _row(printer: Printer, what: str, text: str) -> None:
    printer.say(f"{what:<8}  {text}")

"""`paceline weights download NAME | inspect FILE | convert FILE --format FORM --output FILE`: weights of others, and ours for
others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from paceline._utils.atomic_write import check_user_file
from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.text import join_names, suggest_name
from paceline.cli.flags import ParsedArgs, parse, parse_run_args, run_kind
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.model_card import format_card, has_card, read_card

if TYPE_CHECKING:
    from paceline.config.recipe import Recipe
    from paceline.models.weights.identify import RecipeMatch
    from paceline.models.weights.weight_file import WeightFile


KINDS = """usage: paceline weights KIND ...

  download NAME  download published weights and verify their checksum; without a name: list all weights
  inspect FILE   print the format and contents of a weight file, and the networks that it fits
  convert FILE   --format FORMAT --output FILE: convert to another format; without --format: list all formats

Every command has --help. Training accepts all of these formats except pickled arrays, which must be converted, and downloads
published weights automatically: paceline train RECIPE --weights FILE_OR_NAME."""


@dataclass(frozen=True)
class WeightsDownloadFlags:
    """What to bring."""

    name: Annotated[str, tyro.conf.Positional, Help("name of the weights; empty: list all")] = ""
    output_dir: Annotated[Path, Help("folder for the file, which keeps its name; empty: the working folder")] = Path()
    source: Annotated[str, Help("copy to use instead of the original: folder, URL, or file")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Carry out one of them."""
    return run_kind(
        printer, arguments, KINDS, "weights", {"download": _download, "inspect": run_inspect, "convert": run_convert}
    )


def _download(printer: Printer, arguments: Sequence[str]) -> int:
    flags = parse(printer, arguments, WeightsDownloadFlags(), "weights download", "Download published weights.")
    from paceline.models.weights.download import PUBLISHED, fetch_pretrained

    if not flags.name:
        width = max(map(len, PUBLISHED))
        for name, published in PUBLISHED.items():
            printer.say(f"{name:<{width}}  {published.about}")
        return 0
    hub = flags.name.startswith("timm/")
    if not hub and flags.name not in PUBLISHED:
        hint = suggest_name(flags.name, PUBLISHED) or f"Known: {', '.join(PUBLISHED)}, timm/NAME."
        raise PacelineError(f"weights download {flags.name!r}: not found. {hint}")
    if hub and flags.source:
        raise PacelineError("--source: not supported for timm/NAME, which timm downloads. To use a copy:  --weights FILE")
    with printer.live_progress() as reporter:
        kept = fetch_pretrained(flags.name, flags.output_dir, reporter, source=flags.source)
    printer.facts = {"file": kept}
    if hub:
        printer.say(f"next:  {format_command('weights', 'inspect', kept)}")
        return 0
    published = PUBLISHED[flags.name]
    for file in published.files:
        known = file.sha256_prefix or file.md5 or file.sha1
        printer.say(f"{flags.output_dir / file.name}: {'checksum verified' if known else 'no published checksum'}")
    printer.say(f"next:  {format_command('weights', 'inspect', kept)}")
    if kept.suffix == ".pkl":
        from paceline.models.weights.formats.detect import conversion_command

        printer.say(f"then:  {conversion_command(kept)}")
        kept = kept.with_suffix(".safetensors")
    printer.say(f"or:    {format_command('train', *published.train.split(), '--data', 'DIR', '--weights', kept)}")
    return 0


# BatchNorm's epsilon where nobody chose another one.
USUAL_EPS = 1e-5


@dataclass(frozen=True)
class WeightsConvertFlags:
    """What to convert."""

    file: Annotated[str, tyro.conf.Positional, Help("weight file or folder of a checkpoint")] = ""
    format: Annotated[str, Help("format of the new file; empty: list all")] = ""
    output: Annotated[str, Help("file to write, with a suffix of the format: .safetensors, .pth, or .pkl")] = ""
    key: Annotated[str, Help("key of the weights in the file, such as model_ema; empty: the usual key")] = ""
    color_order: Annotated[Literal["", "rgb", "bgr"], Help("color order, if a detectron2 file does not have it")] = ""
    class_names_file: Annotated[str, Help("file of class names (lines or a JSON list), for --format paceline")] = ""


def run_convert(printer: Printer, arguments: Sequence[str]) -> int:
    """Write the converted file and say what is in it."""
    flags = parse(printer, arguments, WeightsConvertFlags(), "weights convert", "Convert weights to another format.")
    if not flags.file and flags.format:
        raise PacelineError(
            "a weight file is required: paceline weights convert FILE --format paceline --output FILE.safetensors"
        )
    from paceline.models.weights.formats.table import writable_formats, write_format

    forms = {form.name: form for form in writable_formats()}
    if not flags.format:
        for form in forms.values():
            printer.say(f"--format {form.name:<12} {form.about} ({', '.join(form.suffixes)})")
        return 2 if flags.file else 0
    if flags.format not in forms:
        raise PacelineError(f"--format {flags.format}: not found. Known: {', '.join(forms)}.")
    form = forms[flags.format]
    if not flags.output:
        raise PacelineError(f"--output is required: --output FILE{form.suffixes[0]}")
    out = Path(flags.output)
    if out.suffix not in form.suffixes:
        raise PacelineError(f"--output {flags.output}: must end in {' or '.join(form.suffixes)} for --format {form.name}.")
    from paceline.models.weights.weight_file import find_non_finite, open_weights
    from paceline.training.factory import find_weights_file

    path = find_weights_file(flags.file, pickles=True)
    if out.exists() and path.exists() and out.samefile(path):
        raise PacelineError(f"--output {flags.output}: must differ from the input file.")
    check_user_file(out)
    file = open_weights(path, pickles=True, colors=flags.color_order, key=flags.key)
    if form.name == "paceline" and out.suffix != ".safetensors" and file.ours.needs:
        needed = " ".join(f"--model.{field.replace('_', '-')} {value}" for field, value in file.ours.needs.items())
        raise PacelineError(
            f"--output {flags.output}: {out.suffix} cannot store that the weights require {needed}. Use .safetensors."
        )
    if file.form.name == form.name == "reference":
        raise PacelineError(f"{flags.file}: already has this format (--format {form.name}).")
    ours = replace(file.ours, classes=tuple(names[0] for names in file.classes), certain=file.certain)
    if flags.class_names_file:
        if form.name != "paceline" or out.suffix != ".safetensors":
            raise PacelineError("--class-names-file: requires --format paceline --output FILE.safetensors.")
        ours = replace(ours, classes=_names(flags.class_names_file, file), certain=True)
    with printer.waiting(f"writing {flags.output}"):
        tensors, notes = write_format(file.path, ours, form, out)
    for name in file.ours.left_out[:3]:
        printer.say(f"skipped: {name}")
    if len(file.ours.left_out) > 3:
        printer.say(f"skipped: {len(file.ours.left_out) - 3:,} more entries that are not weights")
    for note in (*file.ours.notes, *file.others, *notes):
        printer.say(f"note: {note}")
    for field, value in ours.needs.items():
        printer.say(f"note: these weights are for a network with --model.{field.replace('_', '-')} {value}")
    if file.eps is not None and file.eps != USUAL_EPS:
        printer.say(
            f"note: these weights were trained with --model.bn-eps {file.eps:g}; set it in other programs instead of {USUAL_EPS:g}"
        )
    if wild := find_non_finite(ours.tensors):
        printer.say(f"note: {wild[0]} {f'and {len(wild) - 1:,} more have' if wild[1:] else 'has'} non-finite values")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    printer.facts = {"file": out, "to": form.name, "tensors": len(tensors), "numbers": numbers}
    printer.say(f"{len(tensors)} tensors, {numbers:,} elements: {flags.output}")
    return 0


def _names(location: str, file: WeightFile) -> tuple[str, ...]:
    """The names of --class-names-file, the readable ones where it has them. Raises PacelineError where they are too few."""
    from paceline.data.containers.class_labels import read_class_names
    from paceline.models.weights.classes import count_class_rows

    names, readable = read_class_names(Path(location).expanduser())
    names = readable or names
    rows = count_class_rows(file.ours.tensors)
    if len(names) != rows:
        raise PacelineError(f"--class-names-file {location}: {len(names):,} names, but {file.path} has {rows:,} classes.")
    return names


# `paceline weights inspect FILE`: what a file of weights is, whether it is whole, and which of our networks it fits.

# Recipes that stand for the networks there are; GluonCV's Mask R-CNN has one layer more, Habana's SSD pads in another way.
NETWORKS = ("resnet50", "ssd", "maskrcnn", "fasterrcnn", "maskrcnn-gluoncv")
MAX_CLASSES = 8
LEFT_OUT = 3


@dataclass(frozen=True)
class WeightsInspectFlags:
    """What to look at."""

    file: Annotated[str, tyro.conf.Positional, Help("weight file or folder of a checkpoint")] = ""
    recipe: Annotated[str, Help("recipe to compare with, followed by its flags; empty: all networks")] = ""
    all_tensors: Annotated[bool, Help("list all tensors that are missing, unknown, or converted")] = False


def run_inspect(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what is found. Exit code 1 where its numbers are not finite, or no network of ours takes it."""
    flags, args = _flags(printer, arguments)
    if not flags.file:
        raise PacelineError("a weight file is required: paceline weights inspect FILE")
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
    _row(printer, "format", file.form.about)
    types = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    numbers = sum(tensor.numel() for tensor in tensors.values())
    _row(
        printer,
        "tensors",
        f"{len(tensors)} with {numbers:,} elements ({', '.join(f'{count} {name}' for name, count in types.items())})",
    )
    card = format_card(read_card(path)) if has_card(path) else {}
    for head, line in card.items():
        _row(printer, head, line)
    if file.classes and not card:
        known = "" if file.certain else ", in the published order"
        names = join_names((names[0] or "-" for names in file.classes), MAX_CLASSES)
        _row(printer, "classes", f"{len(file.classes):,}{known}: {names}")
    for field, value in file.ours.needs.items():
        _row(printer, "needs", f"--model.{field.replace('_', '-')} {value}")
    for note in (*file.ours.notes, *file.others):
        _row(printer, "note", note)
    if file.ours.lacks:
        _row(printer, "note", file.ours.lacks)
    if file.ours.left_out:
        _row(printer, "skipped", f"{join_names(file.ours.left_out, LEFT_OUT)} (not weights)")
    wild = find_non_finite(tensors)
    _row(printer, "finite", f"no: {join_names(wild, LEFT_OUT)}" if wild else "yes")
    with printer.waiting("comparing with networks"):
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
            first, *rest = _row_of(fit, flags.all_tensors)
            _row(printer, "fits" if fit.report else "not", f"{fit.called}: {first}")
            for line in rest:
                _row(printer, "", line)
    if not taken and (backbone := detect_timm_name(file)):
        again = format_command("weights", "inspect", path, "--recipe", "resnet50", "--model.backbone", backbone)
        _row(printer, "next", f"to compare with timm:  {again}")
    if file.kind == PICKLED:
        _row(printer, "next", conversion_command(path))
    return 0 if taken and not wild else 1


@dataclass(frozen=True)
class _RecipeFlags:
    """Beside the recipe's own."""

    all_tensors: Annotated[bool, Help("list all tensors that are missing, unknown, or converted")] = False


def _flags(printer: Printer, arguments: Sequence[str]) -> tuple[WeightsInspectFlags, ParsedArgs | None]:
    """-> this verb's own flags, and the recipe as its flags change it where one is named."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--recipe=") else [word])]
    if "--recipe" not in words[:-1] or set(HELP) & set(words):
        prog, about = "weights inspect", "Print the contents of a weight file, and the networks that it fits."
        return parse(printer, arguments, WeightsInspectFlags(), prog, about), None
    at = words.index("--recipe")
    name = words[at + 1]
    del words[at : at + 2]
    # The file is the first word, or the last one behind the flags.
    file = words.pop(0 if words[0][:1] != "-" else -1) if words and not all(word[:1] == "-" for word in words) else ""
    args = parse_run_args([name, *words], _RecipeFlags(), verb="weights inspect FILE --recipe", printer=printer)
    called = " ".join([name, *(word for word in words if word != "--all-tensors")])
    return WeightsInspectFlags(file, called, args.options.all_tensors), args


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
        else ", as in its name"
        if digest.startswith(named[1])
        else f", which differs from {named[1]} in its name"
    )
    return f", {path.stat().st_size / 2**20:,.1f} MiB, SHA-256 {digest}{right}"


def _row(printer: Printer, what: str, text: str) -> None:
    printer.say(f"{what:<8}  {text}")

"""`paceline export RUN [--format FORM] --output FILE`: a trained model as one file, for paceline and for others."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.inference.export.formats import FORMS, ExportOptions, choose_export_format
from paceline.training.run_arguments import check_named


@dataclass(frozen=True)
class ExportFlags(ExportOptions):
    """What to write."""

    run: Annotated[Path, tyro.conf.Positional, Help("run folder, weight file, or published name")] = Path()
    checkpoint: Annotated[str, Help("checkpoint: best, last, or step-N")] = "best"
    task_file: Annotated[str, Help("custom task of the run, ./file.py:name, which is executed as Python")] = ""
    recipe: Annotated[str, Help("recipe that fits the weights, with flags in quotes; empty: detected")] = ""


# Flags of every form.
OF_ALL = ("run", "format", "output", "checkpoint", "task_file", "recipe")


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Write the file."""
    flags = parse(printer, arguments, ExportFlags(), "export", "Write a trained model to one file.")
    if flags.run == Path() or not flags.output:
        raise PacelineError("a run and an output file are required: paceline export RUN --output cats.safetensors")
    out = Path(flags.output).expanduser()
    name = choose_export_format(flags.format, out)
    for field, usual in vars(ExportFlags()).items():
        if field not in (*OF_ALL, *FORMS[name].takes) and getattr(flags, field) != usual:
            forms = " or ".join(known for known, form in FORMS.items() if field in form.takes)
            raise PacelineError(f"--{field.replace('_', '-')}: only supported with --format {forms}, not {name}.")
    if flags.precision == "int8" and name != "onnx":
        raise PacelineError(f"--precision int8: requires --format onnx, not {name}. Export to ONNX, and convert it.")
    requested: dict[str, Any] = {"checkpoint": flags.checkpoint, "workload": flags.task_file, "recipe": flags.recipe}
    check_named(flags.run, verb="export", **requested)
    from paceline import inference

    trained: Any = inference.open_predictor(flags.run, Lines(printer.say), **requested).trained
    with printer.waiting(f"writing {flags.output}"):
        lines = importlib.import_module(f"paceline.inference.export.{FORMS[name].module}").write(trained, out, flags)
        for line in lines:
            printer.say(line)
    printer.facts = {
        "file": out,
        "to": name,
        "bytes": out.stat().st_size,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
    }
    return 0

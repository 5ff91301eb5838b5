"""`paceline translate 'ORIGINAL COMMAND' [--source-system NAME] [--json]`: our command for one of the four systems' own."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from paceline._utils.errors import PacelineError
from paceline.cli.flags import explain, parse, parse_run_args
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.plan import limit_steps, make_plan
from paceline.config.recipe import DATA_IMAGES
from paceline.config.run import RunOptions
from paceline.config.schedule import FALLS_TO_END

ABOUT = """Translate a command of a reference system to paceline. The input is a command line in one quoted argument (with its
variables, mpirun, sbatch, source, and &&), a script, or a configuration file. It is read, never run. The first line of the output is
the paceline command. Then come the settings that carry over, those without effect, the differences, and a comparison of batch, steps,
and learning rates. See docs/reference/known-differences.md and docs/reference/migration.md."""
VERB = "translate 'ORIGINAL COMMAND'"
WIDTH = 80
MAX_BYTES = 2**20


@dataclass(frozen=True)
class TranslateFlags:
    """How to read and print."""

    source_system: Annotated[str, Help("reference system: mxnet-ssd, mxnet-resnet, gaudi-ssd, or gluoncv-maskrcnn")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Translate, and return 0."""
    if not arguments or arguments[0] in HELP:
        explain(VERB, ABOUT, TranslateFlags(), arguments)
    texts = [
        index
        for index, word in enumerate(arguments)
        if word[:2] != "--" and arguments[index - 1 : index] != ["--source-system"]
    ]
    words = [word for index, word in enumerate(arguments) if index not in texts[:1]]
    own = ("--json", "--source-system", "--no-json", "--help", "--help-all")
    if len(texts) != 1 or any(word.partition("=")[0] not in own for word in words if word[:2] == "--"):
        text = shlex.join(word for word in arguments if word not in own)
        raise PacelineError(f"pass one command in quotes:  paceline translate {shlex.quote(text or 'ORIGINAL COMMAND')}")
    flags = parse(printer, words, TranslateFlags(), VERB, ABOUT)
    result = translation_record(arguments[texts[0]], flags.source_system)
    if flags.json:
        print(json.dumps(result, indent=1))
    else:
        _print(printer, result)
    return 0


def translation_record(text: str, system_of: str = "") -> dict[str, Any]:
    """What `--json` prints: command, system_of, carries, dead, differs, facts of theirs and of ours.

    text  a command line, or the path of a script or a configuration
    Raises PacelineError for what cannot be read or told.
    """
    from paceline.tools.migrate.translate import translate

    folder, path = Path(), Path(os.path.expanduser(text))
    if os.path.isfile(path):  # False, too, for what is no name of a file
        folder = path.parent
        text = f"source {path.name}" if path.name.startswith("config") else _text(path)
        text = _habana_line(text) if path.suffix in (".yaml", ".yml") else text
    result = translate(text, read=lambda name: _beside(folder, name), system_of=system_of)
    facts: dict[str, Any] = {"theirs": {}, "ours": {}}
    differs = list(result.differs)
    if result.facts is not None:
        facts = {"theirs": asdict(result.facts), "ours": paceline_training_size(result.words, result.devices)}
        for name, theirs in facts["theirs"].items():
            ours = facts["ours"][name]
            if not _same(theirs, ours):
                row = result.explains.get(name, "")
                differs.append({"what": f"{name}: {_cell(theirs)} in the original, {_cell(ours)} in paceline", "row": row})
    parts = {"command": result.command, "system_of": result.system_of, "carries": result.carries, "dead": result.dead}
    return parts | {"differs": differs, "facts": facts}


def paceline_training_size(words: Sequence[str], devices: int) -> dict[str, Any]:
    """The facts of a command of ours: parsed as its verb does, and planned for so many accelerators."""
    from paceline.cli.commands.launch import LaunchFlags
    from paceline.tools.migrate.table import TrainingSize

    args = parse_run_args(words[1:], LaunchFlags() if words[0] == "launch" else RunOptions(), verb=words[0])
    recipe, options = args.recipe, args.options
    train, val = DATA_IMAGES[recipe.target_data]
    plan = make_plan(
        recipe,
        replace(
            args.system_flags, cuda_graph="off"
        ),  # of no number here, and refused where this machine has no such device
        world=devices,
        most=recipe.global_batch_size,
        train_images=options.max_train_images or train,
        val_images=options.max_val_images or val,
    )
    plan = limit_steps(plan, steps=options.max_steps)
    schedule = recipe.schedule
    ends = {"multistep": plan.milestones, **dict.fromkeys(FALLS_TO_END, (plan.decay_end_step,))}.get(schedule.name, ())
    size = TrainingSize(
        global_batch_size=plan.global_batch_size,
        batch_per_device=plan.images_per_rank,
        devices=plan.world_size,
        steps_per_epoch=plan.steps_per_epoch,
        epochs=plan.stop_after / plan.steps_per_epoch if options.max_steps else recipe.epochs,
        steps=plan.stop_after,
        lr=recipe.optim.lr,
        warmup_steps=round(plan.warmup_steps, 6),
        decay=schedule.name,
        decay_steps=tuple(round(end, 6) for end in ends),
        weight_decay=recipe.optim.weight_decay,
        weights=str(options.weights) or "none",
        target=" ".join(f"{name} {value:g}" for name, value in recipe.target) or "none",
    )
    return asdict(size)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, tuple):
        return len(theirs) == len(ours) and all(map(_same, theirs, ours))
    if isinstance(theirs, int | float) and isinstance(ours, int | float):
        return math.isclose(theirs, ours, rel_tol=1e-9, abs_tol=1e-9)
    return theirs == ours


def _print(printer: Printer, result: dict[str, Any]) -> None:
    from paceline.tools.migrate.translate import DEFAULT

    print(result["command"])
    for title, name in (("carries over", "carries"), ("without effect", "dead"), ("differs", "differs")):
        if result[name]:
            printer.say("")
            printer.say(title)
        for row in result[name]:
            first, second, *rest = row.values()
            remark = f" ({rest[0]})" if rest and rest[0] and second != DEFAULT else ""
            lines = textwrap.wrap(f"{first}  ->  {second}{remark}", WIDTH - 2, subsequent_indent="    ")
            for line in lines:
                printer.say(f"  {line}")
    if result["facts"]["theirs"]:
        printer.say("")
        printer.say(f"{'computed':<18}{'reference':>30}{'paceline':>30}")
    for name, theirs in result["facts"]["theirs"].items():
        printer.say(f"{name.replace('_', ' '):<18}{_cell(theirs):>30}{_cell(result['facts']['ours'][name]):>30}")


def _cell(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_cell, value)) or "none"
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PacelineError(f"{path}: too large for a script or configuration. Use the file that starts training.")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise PacelineError(f"{path}: not readable as a script ({problem}).") from None


def _habana_line(text: str) -> str:
    """The command line of Habana's model runner for one of its hb_configs: each parameter is a flag."""
    pairs = re.findall(r"^ +(\w+): *[\"']?([^\"'\n]*)", text.partition("parameters:")[2], flags=re.MULTILINE)
    return shlex.join(["demo_ssd.py", *(f"--{name}={value.strip()}" for name, value in pairs)])


def _beside(folder: Path, name: str) -> str | None:
    """The text of a file that a script names: where it says, or beside the script."""
    return next((_text(path) for path in (folder / name, folder / Path(name).name) if os.path.isfile(path)), None)

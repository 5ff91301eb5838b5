"""Write the reference pages in docs/reference/generated: commands from their help, recipes from their fields and sources.json,
published variants from rows.json, events from the comments of their fields, systems, predictions.json from its schema, and Python from
docstrings. Run scripts/schemas.py first.
Also write docs/schemas/flags.json, the setting of every flag of every command.

The pages are committed, and tests/scripts/test_reference_pages.py compares them with what this script writes. Run it after a change of
flags, recipes, or public docstrings: `PYTHONPATH=. python scripts/reference_pages.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from paceline.cli.main import VERBS, main
from paceline.config.constraints import format_value
from paceline.config.recipe import Recipe
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import ROWS
from paceline.distributed.device.systems import DETECTED, SYSTEMS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "generated"
FLAGS = FOLDER.parents[1] / "schemas" / "flags.json"
# The recipe whose --help has all flags of a workload.
WHOLE = {"classification": "resnet50", "detection": "ssd", "instance-segmentation": "maskrcnn"}
# In a help text, the title of a group of flags; and a flag, or a word without one.
GROUP, ENTRY = re.compile(r"([a-z][\w.-]*):"), re.compile(r"  (?:--\w|[A-Z]{2})")

# Module as it is imported, file below paceline/, name.
PUBLIC = (
    ("paceline", "api.py", "train"),
    ("paceline", "inference/__init__.py", "load"),
    ("paceline", "api.py", "TrainOptions"),
    ("paceline", "training/eval_history.py", "TrainResult"),
    ("paceline", "inference/predictor.py", "Predictor"),
    ("paceline", "inference/results.py", "PredictionResult"),
    ("paceline", "inference/results.py", "ClassificationResult"),
    ("paceline", "inference/results.py", "DetectionResult"),
    ("paceline", "inference/image_paths.py", "FailedImage"),
    ("paceline", "inference/video.py", "Video"),
    ("paceline", "inference/video.py", "Frame"),
    ("paceline", "_utils/errors.py", "PacelineError"),
    ("paceline", "_utils/errors.py", "DataError"),
    ("paceline", "_utils/errors.py", "RecipeError"),
    ("paceline", "_utils/errors.py", "CheckpointError"),
    ("paceline.config.recipe", "config/recipe.py", "Recipe"),
    ("paceline.config.recipe", "config/recipe.py", "Optim"),
    ("paceline.config.schedule", "config/schedule.py", "Schedule"),
    ("paceline.config.recipe", "config/recipe.py", "Evaluation"),
    ("paceline.config.system", "config/system.py", "System"),
    ("paceline.models.workload", "models/workload.py", "WorkloadSpec"),
    ("paceline.models.workload", "models/workload.py", "NetworkFactory"),
    ("paceline.models.workload", "models/workload.py", "Reporting"),
    ("paceline.models.datamodule", "models/datamodule.py", "DataModule"),
    ("paceline.models.task", "models/task.py", "Evaluator"),
    ("paceline.models.backbones.base", "models/backbones/base.py", "Backbone"),
)


class Flag(NamedTuple):
    """One flag as --help has it."""

    names: str  # with its value: --out PATH
    about: str


def help_of(*words: str) -> str:
    """What `paceline WORDS --help-all` prints; "" where it refuses."""
    out = io.StringIO()
    with patch.dict(os.environ, COLUMNS="80"), redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main([*words, "--help-all"])
    return re.sub(r" +$", "", out.getvalue(), flags=re.M) if code == 0 else ""


def parts_of(text: str) -> tuple[str, dict[str, list[Flag]]]:
    """A help text -> (what stands above its flags, title of each group -> its flags)."""
    boxes: dict[str, list[Flag]] = {}
    above, title = [], "flags"
    for line in text.splitlines():
        if (group := GROUP.fullmatch(line)) is not None:
            title = group[1]
        elif ENTRY.match(line):
            names, _, about = line[2:].partition("  ")
            boxes.setdefault(title, []).append(Flag(names, about.strip()))
        elif not boxes:
            above.append(line)
        elif line:
            *_, last = boxes.values()
            last[-1] = last[-1]._replace(about=f"{last[-1].about} {line.strip()}".strip())
    return "\n".join(above).strip(), boxes


def plain(text: str) -> str:
    """A text that is no Markdown, for Markdown; what stands in backticks stays."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(part if part[:1] == "`" else re.sub(r"([\\*_<>\[\]$#|~`])", r"\\\1", part) for part in parts)


def linked(text: str) -> str:
    """A text in which folders of results are links, for a page two levels below docs/reference."""
    return re.sub(r"\bresults/([a-z0-9-]+)\b", r"[results/\1](../../../../results/\1/README.md)", text)


def list_of_flags(boxes: dict[str, list[Flag]], heading: str) -> Iterator[str]:
    for title, flags in boxes.items():
        yield f"\n{heading} {title[:1].upper()}{title[1:]}\n"
        for names, about in flags:
            yield f"`{names}`\n: {plain(about) or 'as it is called'}\n"


def kinds_of(text: str) -> list[str]:
    """The kinds of a command that its help lists."""
    names = re.findall(r"^ {2}([a-z][\w, ]*?)(?: [A-Z\[].*| {2}.*)$", parts_of(text)[0], flags=re.M)
    return [kind.strip() for name in names for kind in name.split(",")]


def page_of_verb(verb: str) -> str:
    """The page of a verb, and of each of its kinds."""
    text = help_of(verb)
    lines = [f"# paceline {verb}", "", f"{plain(VERBS[verb][:1].upper() + VERBS[verb][1:])}.", "", *section(text, "##")]
    for kind in kinds_of(text):
        if (of_kind := help_of(verb, kind)).startswith("usage") and of_kind != text:
            lines += ["", f"## {verb} {kind}", "", *section(of_kind, "###")]
    if verb == "train":
        lines.append(
            "\nThe recipe's fields are flags too: " + ", ".join(f"[{task}](../fields/{task}.md)" for task in WHOLE) + "."
        )
    return "\n".join(lines) + "\n"


def section(text: str, heading: str) -> Iterator[str]:
    above, boxes = parts_of(text)
    usage, _, about = above.partition("\n\n")
    yield f"```text\n{usage}\n```\n"
    yield f"```text\n{about}\n```" if re.search(r"^ {2}", about, flags=re.M) else plain(about)
    yield from list_of_flags(boxes, heading)


def page_of_flags(task: str) -> str:
    """All flags of a workload's recipes."""
    _, boxes = parts_of(help_of("train", WHOLE[task]))
    about = (
        f"# Recipe fields of {task}\n\nThe defaults are the values of `{WHOLE[task]}`. Each recipe has its own values.\n"
    )
    return about + "\n".join(list_of_flags(boxes, "##")) + "\n"


def fields_of(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each field below a dataclass."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields_of(value, f"{above}{field.name}.")
        else:
            yield above + field.name, value


def page_of_recipe(name: str, helps: dict[str, str], menu: dict[str, str]) -> str:
    """A recipe: what it says of itself, its source, and the fields in which it is not its workload's defaults."""
    recipe = RECIPES[name]()
    usual = {"model": type(recipe.model)(), "input": type(recipe.input)()}
    defaults = dict(fields_of(dataclasses.replace(Recipe(task=recipe.task, **usual), optim=recipe.optim)))
    for field in dataclasses.fields(recipe.optim):
        defaults[f"optim.{field.name}"] = field.default
    about = inspect.getdoc(RECIPES[name]) or ""
    blocks = (f"```\n{part}\n```" if part.startswith("paceline ") else linked(plain(part)) for part in about.split("\n\n"))
    lines = [f"# {name}", "", "\n\n".join(blocks), ""]
    if source := menu.get(name):
        lines += [f"Source: {source} ([published recipes](../../recipes.md)).", ""]
    lines += ["```", f"paceline plan {name}", f"paceline train {name} --data DIR --output-dir runs/mine", "```", ""]
    lines += [
        f"The values that differ from the defaults of its task ([all fields](../fields/{recipe.task}.md)):",
        "",
        "| flag | value | meaning |",
        "| --- | --- | --- |",
    ]
    for dotted, value in fields_of(recipe):
        flag = f"--{dotted.replace('_', '-')}"
        if value != defaults.get(dotted, dataclasses.MISSING) and flag in helps:
            lines.append(f"| `{flag}` | `{format_value(value) or 'empty'}` | {plain(helps[flag])} |")
    return "\n".join(lines) + "\n"


def page_of_sources(sources: dict[str, dict[str, str]]) -> str:
    """Write the table of the built-in recipes that have a published source."""
    lines = [
        "# Sources of the recipes",
        "",
        "This table lists the published source of each built-in recipe. [Published recipes](../../recipes.md) explains the columns.",
        "",
        "| Recipe | Source | Machine (`--system` x nodes) | Log |",
        "| --- | --- | --- | --- |",
        *(f"| `{name}` | {one['source']} | {one['machine']} | {one.get('log', '')} |" for name, one in sources.items()),
    ]
    return "\n".join(lines) + "\n"


def page_of_events(root: Path) -> str:
    """Write the fields of each event, from the comments above and next to them in events.py."""
    lines = [
        "# Event fields",
        "",
        "These are the fields of each [event](../events.md), in addition to those that all events have.",
    ]
    text = (root / "paceline/training/logging/events.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "RunEvent" for base in node.bases):
            kind, rows, comments = "", [], []
            for line in text.splitlines()[node.lineno : node.end_lineno]:
                if found := re.fullmatch(r"    # (.*)", line):
                    comments.append(found[1])
                elif found := re.fullmatch(r"    (\w+): .*?(?:  # (.*))?", line):
                    value = " ".join([*comments, found[2] or ""]).strip()
                    name, value = value.split(": ", 1) if found[1] in ("losses", "metrics") else (f"`{found[1]}`", value)
                    rows.append(f"| {name} | {value} |")
                    comments = []
                elif found := re.fullmatch(r'    kind = "(\w+)"', line):
                    kind = found[1]
            lines += ["", f"## {kind}", "", ast.get_docstring(node) or "", "", "| Field | Value |", "| --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def page_of_predictions(root: Path) -> str:
    """Write the keys of predictions.json, from its JSON Schema."""
    schema = json.loads((root / "docs/schemas/predictions.schema.json").read_text())
    parts = {name: one["properties"] for name, one in schema["$defs"].items()}
    lines = ["# Keys of predictions.json", "", "[predictions.json](../predictions-json.md) has an example of the file."]
    tables = {
        "the file": schema["properties"],
        "an image": parts["objects"] | parts["best classes"],
        "a detection": parts["detection"],
        "a skipped image": parts["skipped"],
    }
    for title, keys in tables.items():
        lines += ["", f"## Keys of {title}", "", "| Key | Value |", "| --- | --- |"]
        lines += [f"| `{key}` | {one['description']} |" for key, one in keys.items()]
    return "\n".join(lines) + "\n"


def page_of_systems() -> str:
    """Write the table of the built-in systems; those that are detected have no fixed values."""
    lines = [
        "# Built-in systems",
        "",
        "`auto`, `gpu`, and `cpu` are this machine. An empty cell means that the value is unknown. See also [systems](../systems.md).",
        "",
        "| System | Accelerators per node | Memory (GiB) | Sockets x cores x threads per core | Network | Interface |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, make in SYSTEMS.items():
        if name not in DETECTED:
            one = make()
            cores = f"{one.sockets} x {one.cores_per_socket} x {one.threads_per_core}" if one.sockets else ""
            cells = (f"{one.ranks_per_node} {one.device_name}", f"{one.memory_gib:g}", cores, one.fabric, one.interface)
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page_of_variants(root: Path) -> str:
    """Write the table of published variants; `tests/config/logged.json` has the runs whose logs were compared."""
    logged = json.loads((root / "tests/config/logged.json").read_text())
    lines = [
        "# Published variants",
        "",
        "`paceline list configs` also prints these variants. [Published recipes](../../recipes.md) explains names and sources.",
        "",
        "| Variant | Source | Machine | Log | Chosen by paceline |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in ROWS.items():
        log = "*" if f"{row.source} {name.partition('@')[0].replace('resnet50', 'resnet')}" in logged else ""
        lines.append(f"| `{name}` | {row.source} | {row.machine} | {log} | {row.ours} |")
    return "\n".join(lines) + "\n"


def page_of_python(root: Path) -> str:
    """The public names and their docstrings; read, not imported, which would take torch."""
    lines = [
        "# Python API",
        "",
        "This page lists the public names. To extend the package, see [how to add a task](../../how-to/extend/task.md).",
        "",
    ]
    for module, file, name in PUBLIC:
        tree = ast.parse((root / "paceline" / file).read_text())
        (node,) = (one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name)
        lines += [f"## {module}.{name}", "", *described(node), *others_in(node)]
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and ast.get_docstring(method):
                lines += [f"### {name}.{method.name}", "", *described(method)]
    return "\n".join(lines) + "\n"


def others_in(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """A line with links to the other public names that its signatures and docstrings have; a block of code cannot hold a link."""
    words = set(re.findall(r"\w+", ast.unparse(node) if isinstance(node, ast.ClassDef) else ast.unparse(node.args)))
    words |= set(
        re.findall(r"\w+", f"{ast.get_docstring(node)} {ast.unparse(getattr(node, 'returns', None) or ast.Pass())}")
    )
    found = [f"{module}.{name}" for module, _, name in PUBLIC if name in words and name != node.name and name[0].isupper()]
    if found:
        links = (f"[{one.rpartition('.')[2]}](#{one.lower().replace('.', '')})" for one in found)
        yield f"See also {', '.join(links)}.\n"


def described(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Signature and docstring."""
    if isinstance(node, ast.ClassDef):
        if any(ast.unparse(base) == "TypedDict" for base in node.bases):
            keys = "\n".join(ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign))
            yield f"```python\n{keys}\n```\n"
    elif any(ast.unparse(one) == "property" for one in node.decorator_list):
        yield f"```python\n{node.name}: {ast.unparse(node.returns or ast.Constant(...))}\n```\n"
    else:
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        words = ",\n".join(f"    {word}" for word in arguments_of(node.args))
        yield (
            f"```python\n{node.name}(\n{words},\n){returns}\n```\n"
            if words
            else f"```python\n{node.name}(){returns}\n```\n"
        )
    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
    yield f"{plain(first)}\n" + (f"\n```text\n{rest}\n```\n" if rest else "")


def arguments_of(arguments: ast.arguments) -> Iterator[str]:
    """Each argument as it is written, but for self."""
    alone = [ast.arg("*")] if arguments.kwonlyargs and not arguments.vararg else []
    plain_ones = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain_ones) - len(arguments.defaults)) + list(arguments.defaults)
    stars = [(arguments.vararg, None)] if arguments.vararg else [(one, None) for one in alone]
    pairs = [*zip(plain_ones, defaults), *stars, *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    for argument, default in pairs:
        star = "*" if argument is arguments.vararg else ""
        equals = " = " if argument.annotation else "="
        if argument.arg != "self":
            yield star + ast.unparse(argument) + (equals + ast.unparse(default) if default is not None else "")
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each page. Raises SystemExit where no help can be had: each page would be empty."""
    if not help_of("plan"):
        raise SystemExit("paceline plan --help ends without a text: install the checkout with its packages first")
    sources = json.loads((root / "paceline/config/recipes/sources.json").read_text())
    menu = {name: one["source"] for name, one in sources.items()}
    helps: dict[str, dict[str, str]] = {}
    for task, whole in WHOLE.items():
        flags = (flag for box in parts_of(help_of("train", whole))[1].values() for flag in box)
        helps[task] = {flag.names.split()[0].strip(","): flag.about.partition(" (default:")[0] for flag in flags}
        yield f"fields/{task}", page_of_flags(task)
    for verb in VERBS:
        yield f"cli/{verb}", page_of_verb(verb)
    yield "python-api", page_of_python(root)
    yield "events", page_of_events(root)
    yield "predictions", page_of_predictions(root)
    yield "systems", page_of_systems()
    for name, make in RECIPES.items():
        yield f"recipes/{name}", page_of_recipe(name, helps[make().task], menu)
    yield "recipes/sources", page_of_sources(sources)
    yield "recipes/published-variants", page_of_variants(root)


def about(name: str) -> str:
    """One line on a page, for the list of pages: a clause after a colon, or nothing."""
    kind, _, title = name.partition("/")
    make = RECIPES.get(title) if kind == "recipes" else None
    text = VERBS[title] if kind == "cli" else (make and inspect.getdoc(make)) or ""
    return f": {plain(text.partition(chr(10))[0])}" if text else ""


def texts_of_help() -> Iterator[tuple[str, str]]:
    """(command, text of --help-all) of each command, of its kinds, and of `train` with a recipe per task."""
    for verb in VERBS:
        text = help_of(verb)
        yield verb, text
        for kind in kinds_of(text):
            if (of_kind := help_of(verb, kind)).startswith("usage") and of_kind != text:
                yield f"{verb} {kind}", of_kind
    for whole in WHOLE.values():
        yield f"train {whole}", help_of("train", whole)


def table_of_flags() -> dict[str, dict[str, str]]:
    """Flag -> command -> the setting in the words of the command's help."""
    table: dict[str, dict[str, str]] = {}
    for command, text in texts_of_help():
        for flags in parts_of(text)[1].values():
            for names, about in flags:
                setting = about.partition(" (default:")[0]
                for name in re.findall(r"--[a-z][\w.-]*", names):
                    table.setdefault(name, {})[command] = setting
    return {name: table[name] for name in sorted(table)}


def all_pages(root: Path) -> dict[str, str]:
    """Name below FOLDER, without `.md` -> text, with a list of pages for each folder."""
    made = dict(pages(root))
    for title, folder in (("Commands", "cli"), ("Recipe fields", "fields"), ("Recipes", "recipes")):
        names = [name for name in made if name.startswith(f"{folder}/")]
        links = "\n".join(f"- [{name.partition('/')[2]}]({name.partition('/')[2]}.md){about(name)}" for name in names)
        made[f"{folder}/index"] = f"# {title}\n\n{links}\n"
    return made


def write(root: Path, folder: Path) -> None:
    """Write all pages below `folder`, and remove pages of commands and recipes that are gone."""
    made = all_pages(root)
    for name in ("cli", "fields", "recipes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (folder / name).glob("*.md"):
            if f"{name}/{old.stem}" not in made:
                old.unlink()
    for name, text in made.items():
        (folder / f"{name}.md").write_text(text)
    FLAGS.write_text(json.dumps(table_of_flags(), indent=1) + "\n")


if __name__ == "__main__":
    write(FOLDER.parents[2], FOLDER)

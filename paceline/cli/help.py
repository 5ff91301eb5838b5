"""--help in a screen: the flags that most use, in a line each. --help GROUP has all of a group, --help-all all there are.

A field's annotation has its flag's text (Help), and says what the flag takes and within which bounds.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin

from paceline._utils.errors import PacelineError
from paceline._utils.text import WORDS, text_width
from paceline.config.constraints import format_bounds, format_value, get_annotations, get_help_texts
from paceline.config.recipe import NO_FLAG
from paceline.distributed.comm.launcher import is_first_on_node

HELP = ("-h", "--help", "--help-all")
SCREEN = 25  # lines
# What most look for, of any verb that has it, in this order.
MAX_USED = (
    *(
        "--data",
        "--output-dir",
        "--weights",
        "--system",
        "--epochs",
        "--max-images",
        "--global-batch-size",
        "--optim.lr",
        "--seed",
        "--auto-config",
    ),
    *(
        "--max-steps",
        "--max-time",
        "--nodes",
        "--scheduler",
        "--launcher",
        "--input.image-size",
        "--model.backbone",
        "--max-train-images",
        "--eval-every",
    ),
)
SYSTEM = "system to run on: auto (detected), cpu, gpu, dgx-h100, ... (paceline list systems), or ./file.py:function"


class HelpEntry(NamedTuple):
    """One flag, or a word without one."""

    group: str  # model, model.detect; "run": of the verb, "recipe": of the recipe itself
    name: str  # --flag; of a word its name in capitals
    value: str  # what follows it
    text: str  # its Help, with its bounds
    default: str  # "" where that says nothing

    def head(self, most: int = 99) -> str:
        """The flag as it is typed; a value that takes too much room is called NAME."""
        value = self.value if len(self.name + self.value) < most else "NAME" * (self.value[:1] != "|")
        return f"  {self.name} {value}".rstrip()


def parse_help_request(words: Sequence[str]) -> str | None:
    """What of the help is asked for: "" the screen, "all", or a group's name; None: no help."""
    at = next((number for number, word in enumerate(words) if word in HELP), None)
    if at is None:
        return None
    group = words[at + 1] if len(words) > at + 1 and not words[at + 1].startswith("-") else ""
    return "all" if words[at] == "--help-all" else group


def print_help(requested: str, prog: str, about: str, entries: Sequence[HelpEntry], *, code: int = 0) -> NoReturn:
    """Print what was asked for, on the first rank of a node, and exit.

    Raises PacelineError for a group that is not there.
    """
    groups = list(dict.fromkeys(entry.group.partition(".")[0] for entry in entries))
    some = [
        entry for entry in entries if requested == entry.group.partition(".")[0] and not entry.group.endswith(".parity")
    ]
    some = some or [entry for entry in entries if requested not in ("", "all") and requested in entry.name]
    if requested not in ("", "all") and not some:
        raise PacelineError(f"--help {requested}: not a group or a part of a flag's name. Groups: {', '.join(groups)}.")
    words = "".join(f"{entry.name} " for entry in entries if entry.name.isupper())
    lines = [f"usage: paceline {prog} {words}[flags]", ""]
    if some:
        lines += _in_full(some)[1:] if some[0].group != "run" else _in_full(some)
    else:
        whole = [*lines, *_wrapped(about, text_width()), *_in_full(entries)]
        lines = whole if requested or len(whole) <= SCREEN else [*lines, *_screen(prog, about, entries, groups)]
    if is_first_on_node():
        print("\n".join(lines))
    raise SystemExit(code)


def _wrapped(text: str, width: int) -> list[str]:
    """Paragraphs; one with indented lines, a table, as it stands."""
    parts = [part for part in text.split("\n\n") if part.strip()]
    tables = [part.splitlines() if "\n  " in part else textwrap.wrap(part, width, **WORDS) for part in parts]
    return [line for table in tables for line in (*table, "")]


def _in_full(entries: Sequence[HelpEntry]) -> list[str]:
    """Every word of the entries, group by group."""
    lines, group, width, column = [], "run", text_width(), 30
    for entry in entries:
        if entry.group != group:
            lines, group = [*lines, "", f"{entry.group}:"], entry.group
        text = f"{entry.text}{f' (default: {entry.default})' if entry.default else ''}"
        head, rest = entry.head(), textwrap.wrap(text, width - column, **WORDS) or [""]
        if len(head) > column - 2:
            lines.append(head)
            head = ""
        lines += [f"{start:<{column}}{part}".rstrip() for start, part in zip([head, *[""] * len(rest)], rest)]
    return lines


def _screen(prog: str, about: str, entries: Sequence[HelpEntry], groups: Sequence[str]) -> list[str]:
    """The beginning of `about`, the flags that most use, and how to see the others."""
    width, names = text_width(), {entry.name: entry for entry in entries}
    whole = _wrapped(about.split("\n\n", maxsplit=1)[0], width)[:-1]
    for end in [result.end() for result in re.finditer(r"[.:](?= )", about)][::-1] if len(whole) > 3 else []:
        whole = _wrapped(about[:end], width)[:-1]
        if len(whole) <= 3:
            break
    others = f"Full texts and all flags: paceline {prog} --help-all"
    if len(groups) > 1:
        others = f"All flags: --help-all. Flags of a group: --help {'|'.join(groups)}"
    last = ["", *textwrap.wrap(others, width, **WORDS)]
    first = [names[name] for name in MAX_USED if name in names and len(groups) > 1]
    mine = [entry for entry in entries if entry.group == "run" and entry not in first]
    if "RECIPE" in others and len(groups) == 1:
        last.append(f"Flags of a recipe: paceline {prog.partition('|')[0]} --help")
    words = [entry for entry in mine if entry.name.isupper()]
    chosen = [*words, *first, *(entry for entry in mine if entry not in words)][: SCREEN - 3 - len(whole) - len(last)]
    column = max(len(entry.head(20)) for entry in chosen) + 2
    lines = []
    for entry in chosen:
        default = f" ({entry.default})" if entry.default not in ("", "0") else ""
        lines.append(f"{entry.head(20):<{column}}{_cut(entry.text, width - column - len(default))}{default}")
    return [*whole, "", *lines, *last]


def _cut(text: str, most: int) -> str:
    """As many of a text's clauses as fit, of the first at least its beginning."""
    ends = [result.start() for result in re.finditer(r";|$", text) if result.start() <= most]
    return text[: ends[-1]] if ends else textwrap.shorten(text, max(12, most), placeholder="...")


def list_help_entries(node: Any, above: str = "", group: str = "run") -> Iterator[HelpEntry]:
    """The flags that a dataclass's fields make."""
    from tyro.conf import Positional

    hints, texts = get_annotations(type(node)), get_help_texts(type(node))
    inside = []
    for field in dataclasses.fields(node):
        value, name = getattr(node, field.name), f"{above}{field.name.rstrip('_')}".replace("_", "-")
        if field.name in (NO_FLAG, "target_data"):  # of published recipes, not for users
            continue
        if dataclasses.is_dataclass(value):
            inside.append((value, f"{above}{field.name}.", f"{above}{field.name}".replace("_", "-")))
            continue
        hint, bounds = hints.get(field.name), format_bounds(type(node), field.name)
        text = f"{texts.get(field.name, '')}{f'; {bounds}' if bounds else ''}"
        if Positional in getattr(hint, "__metadata__", ()):
            yield HelpEntry(group, name.upper(), "", text, "")
        elif isinstance(value, bool):
            yield HelpEntry(group, f"--{name}", f"| --{above}no-{field.name}".replace("_", "-") * value, text, "on" * value)
        else:
            default = (
                ""
                if value in ("", (), None)
                else ", ".join(map(format_value, value))
                if isinstance(value, tuple)
                else format_value(value)
            )
            yield HelpEntry(group, f"--{name}", _value(hint), text, default)
    for value, prefix, name in inside:
        yield from list_help_entries(value, prefix, name)


def _value(hint: Any) -> str:
    """What follows a flag: its choices, N, X, TEXT or PATH, once or several times."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"{{{','.join(str(part) for part in parts if part != '')}}}"
    if origin is tuple:
        return f"{_value(parts[0])} ..." if Ellipsis in parts else " ".join(map(_value, parts))
    if parts:  # Annotated, or None beside it
        return _value(parts[0])
    return {"int": "N", "float": "X", "Path": "PATH"}.get(getattr(hint, "__name__", ""), "TEXT")

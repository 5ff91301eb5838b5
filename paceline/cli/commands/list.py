"""`paceline list tasks|recipes|configs|systems|decoders [--json]`: the menus, in a line each; imports no torch."""

from __future__ import annotations

import importlib.util
import inspect
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from paceline._utils.commands import install_command
from paceline._utils.text import shorten
from paceline.cli.flags import parse, run_kind
from paceline.cli.printing import Printer
from paceline.config.constraints import Help

KINDS = """usage: paceline list KIND [--json]

  tasks       tasks, and the contents of their data folders
  recipes     recipes for train, plan, and preview
  configs     published configurations, which train and plan also accept; plan uses their machine
  systems     systems for --system
  decoders    values of --input.decoder, and which are installed

For a custom one, use ./file.py:function (docs/how-to/write-a-recipe.md)."""
# Decoder -> the module that it is, how to install it, what it is good for.
DECODERS = {
    "auto": ("torch", "", "nvjpeg on CUDA if the CPU cores are too slow, otherwise simplejpeg"),
    "simplejpeg": ("simplejpeg", "pip install simplejpeg", "libjpeg-turbo, the default; same pixels as Pillow"),
    "nvimgcodec": ("nvidia.nvimgcodec", install_command("fast"), "decodes only the crop if possible; Linux only"),
    "nvjpeg": ("torchvision", "pip install torchvision", "decodes whole images on a CUDA device"),
    "pillow": ("PIL", "pip install pillow", "the reference; resized pixels differ by at most 2 of 255"),
}


@dataclass(frozen=True)
class ListFlags:
    """How to print."""

    json: Annotated[bool, Help("print one JSON list instead of text")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print one menu."""
    return run_kind(printer, arguments, KINDS, "list", {kind: partial(_print_menu, kind=kind) for kind in MENUS})


def _print_menu(printer: Printer, arguments: Sequence[str], kind: str) -> int:
    flags = parse(printer, arguments, ListFlags(), f"list {kind}", f"List the {kind}.")
    rows = MENUS[kind]()
    if flags.json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(row["name"]) for row in rows)
    head = ""
    # A terminal gets a line each, a file or a pipe all of it.
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for row in rows:
        if head != row.get("group", ""):
            for line in ([""] if head else []) + [f"{row['group']}:"]:
                printer.say(line)
            head = row["group"]
        text = f"{'  ' if head else ''}{row['name']:<{width}}  {row['about']}"
        printer.say(shorten(text, most))
    return 0


def _tasks() -> list[dict[str, Any]]:
    from paceline.config.recipes import RECIPES
    from paceline.models.registry import WORKLOADS

    recipes: dict[str, list[str]] = {}
    for name, make in RECIPES.items():
        recipes.setdefault(make().task, []).append(name)
    return [
        {
            "name": name,
            "about": f"{workload.about}; recipe: {workload.start}",
            "data": workload.layout,
            "headline": workload.reporting.headline,
            "recipes": recipes[name],
        }
        for name, workload in WORKLOADS.items()
    ]


def _recipes() -> list[dict[str, Any]]:
    from paceline.config.recipes import RECIPES, group_recipes

    made = {name: make() for name, make in RECIPES.items()}
    return [
        {
            "name": name,
            "about": _first_line(RECIPES[name]),
            "group": group,
            "task": made[name].task,
            "data": made[name].target_data,
            "pretrained": made[name].pretrained,
        }
        for name, group in group_recipes().items()
    ]


def _configs() -> list[dict[str, Any]]:
    from paceline.config.recipes.published_rows import ROWS

    return [
        {
            "name": row.name,
            "about": row.about,
            "task": row.name.partition("@")[0],
            "chip": row.chip,
            "nodes": row.nodes,
            "per_node": row.per_node,
            "global_batch_size": row.make().global_batch_size,
            "source": row.source,
            "ours": row.ours,
        }
        for row in ROWS.values()
    ]


def _systems() -> list[dict[str, Any]]:
    from paceline.config.published import find_published
    from paceline.distributed.device.systems import DETECTED, SYSTEMS

    rows = []
    for name, make in SYSTEMS.items():
        row: dict[str, Any] = {"name": name, "about": _first_line(make)}
        if name not in DETECTED:  # those would ask the machine
            system, nodes = make(), {}
            for pairing in find_published(name):
                nodes.setdefault(pairing.workload, []).append(pairing.nodes)
            nodes = {workload: sorted(set(numbers)) for workload, numbers in nodes.items()}
            row |= {"chip": system.device_name, "per_node": system.ranks_per_node, "nodes": nodes}
            words = "; ".join(f"{workload} on {', '.join(map(str, numbers))}" for workload, numbers in nodes.items())
            row["about"] += f" {system.ranks_per_node} x {system.device_name} per node" + (
                f"; published node counts: {words}" if words else ""
            )
        rows.append(row)
    return rows


def _decoders() -> list[dict[str, Any]]:
    rows = []
    for name, (module, command, about) in DECODERS.items():
        there = is_installed(module)
        state = "installed" if there else f"not installed ({command})"
        rows.append({"name": name, "about": f"{state}: {about}", "installed": there})
    return rows


def is_installed(module: str) -> bool:
    """Whether a module could be imported; it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _first_line(make: Callable[[], Any]) -> str:
    return (inspect.getdoc(make) or "").partition("\n")[0]


MENUS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "tasks": _tasks,
    "recipes": _recipes,
    "configs": _configs,
    "systems": _systems,
    "decoders": _decoders,
}

"""`paceline bench startup`: what stands between Enter and the first work, in fresh interpreters, beside `import torch` alone.

A round times every command once, so that a machine that is busy for a while slows all alike; a command's ratio is its own time by
that of its round's `import torch`. Then each command is taken once more
under `-X importtime`, which says what it imported: by package, and by the part of it for those that are large.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline._utils.threads import Thread
from paceline.models.registry import get_workload
from paceline.tools.bench.harness import machine_facts, ratio_interval, run_all_rounds

ALONE = "import torch"
# Pictures of the sets that runs are begun on, and their side in pixels: the time to open a set, not to verify one, is wanted.
TRAIN, VAL, SIDE = 32, 8, 128
# Packages so large that one number says too little.
IN_PARTS = ("torch", "torchvision", "paceline")
HEAVIEST = 6
# Looks at a run's events while its first step is awaited, seconds apart, and for how long.
LOOK_SECONDS, GIVE_UP_SECONDS = 0.01, 300.0
_LINE = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*(\S+)")


@dataclass(frozen=True)
class Command:
    """One thing that people type."""

    name: str
    words: tuple[str, ...]  # after the interpreter's name
    code: int = 0  # its exit code
    run: Path | None = None  # a run's folder: the clock stops at its first training step, and the command with it
    cache: Path | None = None  # a cache of its own, empty each time


def measure(
    workloads: Sequence[str], rounds: int, folder: Path, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Time everything -> {"machine": ..., "rounds": ..., "commands": {name: seconds, median, ratio, beyond, imports}}.

    workloads  whose commands are timed, by WORKLOADS' keys
    folder     empty; data and runs are made in it
    Raises RuntimeError for a command that does not end as it should.
    """
    commands = [Command(ALONE, ("-c", "import torch"))]
    for workload in workloads:
        say(f"making a run of {get_workload(workload).start} to ask")
        commands += _commands(workload, folder)
    before = os.getloadavg()
    taken = run_all_rounds({command.name: partial(_timed, command) for command in commands}, rounds, say)
    seconds, cpu = ({name: [one[which] for one in found] for name, found in taken.items()} for which in (0, 1))
    return {
        "machine": {**machine_facts(torch.device("cpu")), "load_before": before, "load_after": os.getloadavg()},
        "rounds": rounds,
        "commands": {
            command.name: {
                "command": " ".join(command.words),
                "seconds": seconds[command.name],
                "median_seconds": statistics.median(seconds[command.name]),
                "times_import_torch": ratio_interval(seconds[command.name], seconds[ALONE]),
                "beyond_import_torch": statistics.median(a - b for a, b in zip(seconds[command.name], seconds[ALONE])),
                "cpu_seconds": cpu[command.name],
                "median_cpu_seconds": statistics.median(cpu[command.name]),
                "times_import_torch_cpu": ratio_interval(cpu[command.name], cpu[ALONE]),
                "imports": _imports(command),
            }
            for command in commands
        },
    }


def _commands(workload: str, folder: Path) -> list[Command]:
    """A finished run refused, show, predict on one photo and train to the first step; data and a run are made for that."""
    from paceline.data.shapes.render import render_shapes

    chosen = get_workload(workload)
    recipe, kind = chosen.start, "classes" if chosen.kind == "class-folder" else "boxes"
    data, run, answers, fresh = (folder / name for name in (kind, recipe, f"{recipe}-answers", f"{recipe}-fresh"))
    if not data.exists():
        render_shapes(kind, data, train=TRAIN, val=VAL, side=SIDE, processes=1)
    train = ("-m", "paceline", "train", recipe, "--data", str(data))
    whole = (*train, "--output-dir", str(run), "--max-steps", "1")
    _timed(Command(recipe, whole))
    show = Command(f"plan {recipe}", ("-m", "paceline", "plan", recipe))
    _timed(show)  # the memory of a network is counted once on a machine, and remembered
    photo = next(path for path in sorted(data.rglob("*.jpg")))
    return [
        Command(f"refusal of {recipe}", whole, code=2),
        show,
        replace(show, name=f"plan {recipe}, first time", cache=folder / "cache"),
        Command(
            f"predict with {recipe}",
            ("-m", "paceline", "predict", str(run), str(photo), "--output-dir", str(answers), "--checkpoint", "last"),
        ),
        Command(
            f"first step of {recipe}",
            (*train, "--output-dir", str(fresh), "--log-every", "1", "--max-steps", "50"),
            run=fresh,
        ),
    ]


def _timed(command: Command) -> tuple[float, float]:
    """Seconds from the start of the process to its end, or to its first training step; and its CPU-seconds, which a busy
    machine changes less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with _start(command) as process:
        ended = _await(command, process)
        said = process.communicate()[1]
    seconds = (ended or time.perf_counter()) - began
    if command.run is None and process.returncode != command.code:
        raise RuntimeError(f"{' '.join(command.words)}: exit code {process.returncode}. {said[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _start(command: Command, *options: str) -> subprocess.Popen[str]:
    # Beside the package's own folder: installed packages have their bytecode, so this one may write its own.
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = [str(Path(__file__).parents[1]), surroundings.get("PYTHONPATH", "")]
    surroundings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    for folder in (command.run, command.cache):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if command.cache is not None:
        surroundings["PACELINE_CACHE"] = str(command.cache)
    words = [sys.executable, *options, *command.words]
    return subprocess.Popen(words, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _await(command: Command, process: subprocess.Popen[str]) -> float | None:
    """Wait for the first training step and end the process -> when the step came; None for a command that ends by itself."""
    if command.run is None:
        return None
    events, began = command.run / "events.jsonl", time.perf_counter()
    while process.poll() is None and time.perf_counter() - began < GIVE_UP_SECONDS:
        if events.exists() and '"event": "train"' in events.read_text():
            ended = time.perf_counter()
            process.kill()
            return ended
        time.sleep(LOOK_SECONDS)
    process.kill()
    raise RuntimeError(f"{' '.join(command.words)}: no training step came. {process.communicate()[1][-500:]}")


def _imports(command: Command) -> dict[str, Any]:
    """What it imports: {"modules": how many, "seconds": in all, "heaviest": [[package, seconds], ...]}."""
    lines: list[str] = []
    with _start(command, "-X", "importtime") as process:
        assert process.stderr is not None
        # In a thread: a pipe that nobody reads would fill and hold the command up before its first step.
        reader = Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        _await(command, process)
        reader.join()
    return heaviest(lines)


def heaviest(lines: Sequence[str]) -> dict[str, Any]:
    """The same from the lines that `-X importtime` writes."""
    own: dict[str, float] = {}
    count = 0
    for found in filter(None, map(_LINE.match, lines)):
        microseconds, module = int(found[1]), found[2]
        parts = module.split(".")
        group = ".".join(parts[:2]) if parts[0] in IN_PARTS else parts[0]
        own[group] = own.get(group, 0.0) + microseconds / 1e6
        count += 1
    order = sorted(own.items(), key=lambda pair: -pair[1])
    return {"modules": count, "seconds": sum(own.values()), "heaviest": [list(pair) for pair in order[:HEAVIEST]]}

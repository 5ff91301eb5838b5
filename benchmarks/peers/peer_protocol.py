"""What every contender's program does: build a pipeline, say so, then take batches as long as it is told, and count.

    python with_NAME.py TASK.json        on stdout, one JSON object a line:
        {"ready": "what was chosen, in words", "version": "1.2.3"}
    then for every line on stdin, a number of seconds:
        {"images": 1216, "seconds": 3.01, "cpu_seconds": 5.7}
    until stdin ends.

TASK.json: photos (paths of JPEG files), size (side of the output, pixels), batch (images), threads (of the machine), scratch (a
folder of this program's own), options (of this contender). All contenders draw photos in random order without end; read, decode,
RandomResizedCrop (area 0.08 to 1, aspect 3/4 to 4/3) to size x size, flip every second one, and put uint8 pixels in a batch.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Batches that may lie ready when the clock is to start are taken first: for so long, and at least so many.
DRAIN_SECONDS, DRAIN_BATCHES = 0.4, 8


@dataclass
class Task:
    """What a contender is asked to do; fields as in the module's docstring."""

    photos: list[str]
    size: int
    batch: int
    threads: int
    scratch: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Contender:
    """A pipeline that is ready."""

    take: Callable[[], int]  # makes the next batch; -> its images
    words: str  # what was chosen
    version: str  # of its library


def serve(make: Callable[[Task], Contender]) -> None:
    """Be a contender's program."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print
    contender = make(Task(**json.loads(Path(sys.argv[1]).read_text())))
    contender.take()
    _answer(answers, {"ready": contender.words, "version": contender.version})
    for line in sys.stdin:
        _answer(answers, measured(contender.take, float(line)))
    answers.close()
    os._exit(0)  # some libraries never end their threads


def measured(take: Callable[[], int], seconds: float) -> dict[str, float]:
    """Take batches that long, once those that lay ready are gone."""
    until, taken = time.perf_counter() + DRAIN_SECONDS, 0
    while time.perf_counter() < until or taken < DRAIN_BATCHES:
        taken += 1
        take()
    began, cpu, images = time.perf_counter(), tree_cpu_seconds(), 0
    while time.perf_counter() - began < seconds or not images:
        images += take()
    wall = time.perf_counter() - began
    return {"images": images, "seconds": wall, "cpu_seconds": tree_cpu_seconds() - cpu}


def tree_cpu_seconds() -> float:
    """User + system seconds of this process, its reaped children and its living descendants. Linux only."""
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
            # After "(name)": state, parent, ...; user, system and those of its reaped children are fields 14 to 17.
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = sum(int(field) for field in fields[11:15]) / tick
    below = list(children.get(os.getpid(), []))
    while below:
        process = below.pop()
        total += times[process]
        below.extend(children.get(process, []))
    return total


def crop(height: int, width: int, draw: random.Random) -> tuple[int, int, int, int]:
    """RandomResizedCrop's window, as torchvision draws it: top, left, height, width."""
    import math

    for _ in range(10):
        area = height * width * draw.uniform(0.08, 1.0)
        aspect = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def endless(photos: list[Any]) -> Iterator[Any]:
    """Photos without end, each once a pass, every pass in another order."""
    draw, order = random.Random(0), list(photos)
    while True:
        draw.shuffle(order)
        yield from order


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write a file to, which becomes `path` once it is whole."""
    part = path.with_name(f".{path.name}.part")
    yield part
    os.replace(part, path)


def _answer(answers: Any, facts: dict[str, Any]) -> None:
    print(json.dumps(facts), file=answers, flush=True)

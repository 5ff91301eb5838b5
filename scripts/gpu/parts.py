"""What to measure on a GPU: the campaign's items in the order of their worth, and the calls that take them.

A call takes its own items in this order, as many as fit its seconds. The items of `first` and `second` fit two calls of these
lengths; `all` takes every item. An item with `beside` runs at the same time as the one that it names: correctness only, at most three.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

CALLS = {"first": 400, "second": 250, "rest": 560}
MAX_BESIDE = 3


@dataclass(frozen=True)
class Item:
    """One process, or several side by side."""

    call: str
    name: str
    seconds: int  # its limit
    commands: tuple[tuple[str, ...], ...]
    photos: bool = False  # whether it needs them
    packages: bool = False  # whether it needs what the wheels hold
    expected: int = 0  # seconds that it should take, by what the first two runs took; 0: unknown
    beside: str = ""  # the item that it starts together with


def measurement(call: str, file: str, name: str, seconds: int, **needs: bool) -> Item:
    """A measurement of one of the files beside this one."""
    return Item(call, name, seconds, ((f"{file}.py", name),), **needs)


def loop(name: str, seconds: int, *, photos: bool = True, call: str = "rest") -> Item:
    """A measurement of the real loop."""
    return measurement(call, "loop", name, seconds, photos=photos, packages=True)


def tests(name: str, seconds: int, chosen: str, workers: int) -> Item:
    """tests/gpu, as far as -k chooses. Warnings stay warnings: torch has some of its own on a GPU."""
    words = ["-m", "pytest", "tests/gpu", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "-k", chosen, "-v"]
    if importlib.util.find_spec("pytest_timeout"):
        words += ["--timeout", "120"]
    if importlib.util.find_spec("xdist") and workers > 1:
        words += ["-n", str(workers)]
    return Item("rest", name, seconds, (tuple(words),))


def all_items(workers: int) -> tuple[Item, ...]:
    """Those that tell most in their seconds come first: a call that is cut off has lost its last ones."""
    fills = ("fill-resnet", "fill-resnet-more", "fill-torchvision", "fill-ssd", "fill-ssd-fp16")
    return (
        # Compilations leave the GPU idle, and need the cores for 110 to 120 s. Their caches do not survive the machine.
        Item("first", "fill", 160, tuple(("steps.py", name) for name in fills), expected=120),
        replace(measurement("first", "against_cpu", "against-cpu", 160), beside="fill", expected=100),
        replace(measurement("first", "steps", "all-resnet", 150), expected=95),
        replace(measurement("first", "steps", "all-ssd", 120), expected=80),
        replace(loop("target-ssd-demo", 120, photos=False, call="first"), expected=85),
        replace(measurement("second", "steps", "all-maskrcnn", 230), expected=190),
        replace(measurement("second", "probes", "input", 80, photos=True, packages=True), expected=45),
        measurement("rest", "steps", "autotune", 200),
        tests("gpu-tests", 200, "not compiled", workers),
        replace(loop("gate-resnet", 200), beside="gpu-tests"),
        loop("gate-ssd", 110),
        loop("gate-maskrcnn", 110),
        loop("syncs", 120),
        loop("resume", 200),
        measurement("rest", "steps", "profiles", 90),
        loop("throughput-resnet", 150),
        loop("throughput-ssd", 150),
        loop("throughput-maskrcnn", 180),
        measurement("rest", "ceilings", "ceilings", 40),
        measurement("rest", "steps", "search", 90),
        measurement("rest", "steps", "resnet-32", 60),
        measurement("rest", "steps", "maskrcnn-4", 90),
        tests("gpu-tests-compiled", 120, "compiled", workers),
        loop("target-classify-demo", 120, photos=False),
        *(measurement("rest", "oracles", f"oracle-{name}", 90, packages=True) for name in ("resnet", "ssd", "maskrcnn")),
        measurement("rest", "probes", "conv-relu", 40),
        measurement("rest", "probes", "decode", 30, photos=True),
        measurement("rest", "probes", "convolutions", 60),
    )


def stages(items: list[Item]) -> list[list[Item]]:
    """The items that start together."""
    found: list[list[Item]] = []
    for item in items:
        if found and item.beside == found[-1][0].name and len(found[-1]) < MAX_BESIDE:
            found[-1].append(item)
        else:
            found.append([item])
    return found

"""What is to be learned on a GPU: the campaign's items in the order of their worth, correctness before speed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

PARTS = {
    1: "does it run, how fast is it as it is",
    2: "compiled",
    3: "the real loop",
    4: "the oracles' first steps in each number format",
}


@dataclass(frozen=True)
class Item:
    """One process of a part, or several side by side."""

    part: int
    name: str
    seconds: int  # its limit
    commands: tuple[tuple[str, ...], ...]
    photos: bool = False  # whether it needs them
    packages: bool = False  # whether it needs what the wheels hold


def measurement(part: int, file: str, name: str, seconds: int, **needs: bool) -> Item:
    """A measurement of one of the files beside this one."""
    return Item(part, name, seconds, ((f"{file}.py", name),), **needs)


def loop(name: str, seconds: int, *, photos: bool = True) -> Item:
    """A measurement of the real loop."""
    return measurement(3, "loop", name, seconds, photos=photos, packages=True)


def tests(part: int, name: str, seconds: int, chosen: str, workers: int) -> Item:
    """tests/gpu, as far as -k chooses. Warnings stay warnings: torch has some of its own on a GPU."""
    words = ["-m", "pytest", "tests/gpu", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "-k", chosen, "-v"]
    if importlib.util.find_spec("pytest_timeout"):
        words += ["--timeout", "120"]
    if importlib.util.find_spec("xdist") and workers > 1:
        words += ["-n", str(workers)]
    return Item(part, name, seconds, (tuple(words),))


def all_items(workers: int) -> tuple[Item, ...]:
    """Those that tell most in their seconds come first: a call that is cut off has lost its last ones."""
    fills = ("fill-resnet", "fill-torchvision", "fill-ssd", "fill-ssd-fused", "fill-ssd-plain")
    return (
        measurement(1, "ceilings", "ceilings", 40),
        measurement(1, "against_cpu", "against-cpu", 90),
        measurement(1, "steps", "resnet-256", 100),
        measurement(1, "steps", "ssd-128", 90),
        measurement(1, "steps", "maskrcnn-12", 90),
        tests(1, "gpu-tests", 200, "not compiled", workers),
        measurement(3, "probes", "input", 120, photos=True, packages=True),
        loop("gate-resnet", 110),
        loop("gate-ssd", 110),
        loop("gate-maskrcnn", 110),
        loop("throughput-resnet", 150),
        loop("throughput-ssd", 150),
        loop("throughput-maskrcnn", 180),
        loop("syncs", 120),
        measurement(1, "steps", "profile", 60),
        loop("resume", 200),
        loop("target-resnet50-tiny", 120, photos=False),
        loop("target-ssd-tiny", 150, photos=False),
        Item(2, "fill", 200, tuple(("steps.py", name) for name in fills)),
        measurement(2, "steps", "resnet-256-compiled", 150),
        measurement(2, "steps", "ssd-128-compiled", 150),
        tests(2, "gpu-tests-compiled", 120, "compiled", workers),
        measurement(1, "steps", "resnet-32", 60),
        measurement(1, "steps", "maskrcnn-4", 60),
        *(measurement(4, "oracles", f"oracle-{name}", 90, packages=True) for name in ("resnet", "ssd", "maskrcnn")),
        measurement(1, "probes", "conv-relu", 40),
        measurement(1, "probes", "decode", 30, photos=True),
        measurement(1, "probes", "convolutions", 60),
    )

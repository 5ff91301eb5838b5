"""What the measurements of the GPU campaign share: their arguments, and one line of JSON for each thing they find.

A measurement is `python scripts/gpu/FILE.py NAME --results FILE --scratch DIR [--photos DIR] [--tiny [--cpu]]`. With --tiny it has
sizes that take seconds: nothing of its numbers means anything, but every line of it has run, with --cpu on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.config.system import System
from paceline.distributed.device.systems import detect_gpu
from paceline.distributed.device.timing import STEPS


@dataclass(frozen=True)
class Item:
    """One measurement's surroundings."""

    name: str
    results: Path  # JSON lines, appended
    scratch: Path  # a folder for whatever need not come back
    keep: Path  # a folder whose files come back, packed
    photos: Path | None  # imagenette224/ and coco_mini/, as scripts/gpu/photos.py makes them
    tiny: bool
    cpu: bool = False  # which has neither the other number formats nor graphs

    @property
    def device(self) -> torch.device:
        """The first GPU, or the CPU of a dry run."""
        return torch.device("cpu") if self.cpu else torch.device("cuda", 0)

    @property
    def simulated(self) -> bool:
        """Whether the device is the one of tests/simulated."""
        return self.device.type == "cuda" and torch.cuda.get_device_name(0).startswith("simulated")

    @property
    def values(self) -> bool:
        """False on the simulated device without values, on which kernels leave memory as it is."""
        return not self.simulated or os.environ.get("SIMULATED_VALUES") == "1"

    @property
    def triton(self) -> bool:
        """False on the simulated device with values, which Triton kernels do not have there."""
        return not (self.simulated and self.values)

    @property
    def block(self) -> int:
        """Calls between two looks at the GPU's clock."""
        return 2 if self.tiny else STEPS

    @property
    def system(self) -> System:
        """This machine's GPUs, or the CPU of a dry run, in fp32."""
        return System("cpu", memory_gib=2) if self.cpu else detect_gpu()

    def tell(self, **facts: Any) -> None:
        """Append what is known now, whole: whoever reads takes the last line of each item and kind."""
        assert "exit" not in facts, "how an item ended is the campaign's own line"
        line = json.dumps({"item": self.name, "at": round(time.time(), 1), "tiny": self.tiny, **facts})
        descriptor = os.open(self.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    def attempt(self, what: str, work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Carry out one of several independent measurements and tell what it finds; -> that, or {"refused": what it raised}."""
        try:
            facts = work()
        except Exception as problem:
            facts = {"refused": f"{type(problem).__name__}: {problem}".split("\n")[0][:400]}
            traceback.print_exc()
        self.tell(what=what, **facts)
        return facts


def insist(found: Mapping[str, Mapping[str, Any]]) -> None:
    """End with a failure that names what was refused or does not agree; for what may not fail."""
    bad = [what for what, facts in found.items() if "refused" in facts or not facts.get("agrees", True)]
    if bad:
        raise SystemExit(f"refused, or not as it must be: {', '.join(bad)}")


def run(measurements: Mapping[str, Callable[[Item], None]]) -> None:
    """Carry out the measurement that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(measurements))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    keep = asked.scratch / "keep"
    keep.mkdir(parents=True, exist_ok=True)
    measurements[asked.name](Item(asked.name, asked.results, asked.scratch, keep, asked.photos, asked.tiny, asked.cpu))
    # Skips the interpreter's finalization. If a backward pass was the last call, torch's autograd thread may drop its result just
    # then: it waits for the GIL, and Python before 3.14 ends such a thread by an exception, which a destructor turns into an abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

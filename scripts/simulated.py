"""What one training step of a recipe asks of a GPU, counted on a CUDA device that computes nothing
(docs/contributing/testing-without-a-gpu.md).

    python scripts/simulated.py resnet50 256 --graph --operations
    python scripts/simulated.py ssd 4 --ranks 8 --bn-batch-size 32             # joined BatchNorm, collectives of each rank
    SIMULATED_COPIES=late python scripts/simulated.py maskrcnn 2

Kernels by name, waits with the lines that led to them, copies, memory by torch's own allocator beside the estimate, graphs and
their nodes, collectives, and a modelled time that serves to compare two forms of a step and nothing else. Needs g++ and a torch that
was built for CUDA; no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "simulated"))
import build
import device

STEP = "tests/simulated/one_step.py"
GIB = 2**30
UNKNOWN = "calls without a meaning here: "  # sets an option, frees a handle


def count(words: list[str], ranks: int = 1) -> tuple[dict[str, Any], list[list[str]]]:
    """-> what rank 0 counted, and every rank's collectives in their order; SystemExit where the step failed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "collectives"
        settings = {"SIMULATED_COLLECTIVES": str(log), "SIMULATED_DEVICES": str(ranks)}
        started = device.torchrun(ranks, STEP, *words) if ranks > 1 else [STEP, *words]
        done = device.run(started, **settings)
        if done.returncode:
            raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
        found = json.loads(done.stdout[done.stdout.index("{") :])
        return found, [one.read_text().splitlines() for one in sorted(Path(folder).glob("collectives.*"))]


def lines(found: dict[str, Any], collectives: list[list[str]], most: int) -> list[str]:
    rows = [
        f"{found['kernels']:,} kernels, {found['groups of BatchNorm']} groups of BatchNorm, "
        f"{found['blocks taken']:,} blocks taken from torch's allocator",
        f"memory: {found['peak'] / GIB:.2f} GiB at the peak, {found['estimated'] / GIB:.2f} estimated",
        *found["graphs"],
        *(f"BROKEN RULE: {rule}" for rule in found["broken rules"]),
        *(f"waits: {wait}" for wait in found["waits"]),
        *(
            f"{number:,} {what}"
            for what, number in found["counts"].items()
            if not what.startswith(("broken rule", UNKNOWN))
        ),
        "",
        *(f"{launches:8,}  {kernel}" for kernel, launches in list(found["by kernel"].items())[:most]),
    ]
    if found.get("operations"):
        rows += ["", *by_operation(found["operations"], most)]
    if len(collectives) > 1:
        orders = {tuple(one) for one in collectives}
        kinds = Counter(line.split(" ", 1)[1] for line in collectives[0])
        rows += [
            "",
            f"{len(collectives)} ranks, collectives {'in the same order' if len(orders) == 1 else 'IN DIFFERENT ORDERS'}",
        ]
        rows += [f"{number:8,}  {kind}" for kind, number in kinds.most_common(most)]
    return rows


def by_operation(rows: list[list[Any]], most: int) -> list[str]:
    total = defaultdict(float)
    for _, _, calls, launches, moved, flop, seconds in rows:
        for name, value in zip(("calls", "launches", "bytes", "flop", "seconds"), (calls, launches, moved, flop, seconds)):
            total[name] += value
    head = (
        f"{total['calls']:,.0f} operations, {total['bytes'] / 1e9:.1f} GB, {total['flop'] / 1e12:.2f} TFLOP, "
        f"modelled {1000 * total['seconds']:.1f} ms"
    )
    body = [
        f"{phase:9} {name:38} {launches:7,.0f} kernels {moved / 1e9:8.2f} GB {1000 * seconds:8.2f} ms"
        for phase, name, _, launches, moved, _, seconds in sorted(rows, key=lambda row: -row[-1])[:most]
    ]
    return [head, *body]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--ranks", type=int, default=1, help="processes, each with a device of its own")
    words.add_argument("--top", type=int, default=20, help="lines of a list")
    own, others = words.parse_known_args()
    try:
        print("\n".join(lines(*count(others, own.ranks), own.top)))
    except build.CannotBuild as absent:
        raise SystemExit(str(absent)) from absent


if __name__ == "__main__":
    main()

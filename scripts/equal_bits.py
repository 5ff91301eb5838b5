"""The bits of short runs, before and after a change that must not move them.

    python scripts/equal_bits.py before.json                      # in the tree as it was
    python scripts/equal_bits.py after.json --against before.json # in the changed tree; exit code 1 where anything differs

Each case is a whole `paceline train` on rendered pictures, on 1, 2 or 3 ranks with fixed thread counts: every tiny recipe, LARS,
scaled fp16, accumulation, BatchNorm over groups, loss groups. Recorded are the SHA-256 of every tensor file of the last
checkpoint without its card, and the losses and metrics of events.jsonl. --data KIND=DIR takes other pictures, --seed another seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXED = "--system cpu --system.intra-op-threads 1 --system.loader-threads 2"
FP32 = f"{FIXED} --system.precision fp32"
RESNET = "--model.depth 10 --model.width 8 --input.size 32 --input.eval-size 32 --input.eval-resize 36 --optim.lr 0.01"
SSD = "--model.depth 10 --model.width 4 --model.extras 8 --input.size 96 --optim.lr 0.01"
MASKRCNN = (
    "--model.width 8 --model.channels 16 --model.roi.channels 32 --model.rpn.pre-train 100 --model.rpn.post-train 32 "
    "--model.rpn.pre-test 100 --model.rpn.post-test 32 --model.detect.keep 20 --input.short 64 --input.long 96 "
    "--model.rpn.sizes 12 24 36 48 64 --optim.lr 0.002"
)
# What must stay: of an event of each kind. Rates and times are the machine's.
KEPT = re.compile(r"loss.*|lr|samples|step|images|status|best|(top|box_|mask_).*|.*_loss")


@dataclass(frozen=True)
class Case:
    """One run: its recipe, its flags, and on how many ranks it is started."""

    recipe: str
    data: str  # kind of pictures: classes or boxes
    flags: str
    ranks: tuple[int, ...] = (1,)


R12, S12, M = (
    f"{RESNET} --bn-span 12 --global-batch 12",
    f"{SSD} --bn-span 4 --global-batch 12",
    f"{MASKRCNN} --bn-span 4",
)
CASES = {
    "resnet": Case("resnet50-tiny", "classes", f"{FP32} {R12}", (1, 2, 3)),
    "resnet, bf16": Case("resnet50-tiny", "classes", f"{FIXED} --system.precision bf16 {R12}"),
    "resnet, fp16 scaled": Case("resnet50-tiny", "classes", f"{FIXED} --system.precision fp16 {R12}", (1, 2)),
    "resnet, accumulated": Case(
        "resnet50-tiny", "classes", f"{FP32} {RESNET} --bn-span 6 --global-batch 24 --system.images-per-forward 6"
    ),
    "resnet, BatchNorm in groups": Case(
        "resnet50-tiny", "classes", f"{FP32} {RESNET} --bn-span 6 --global-batch 12", (1, 3)
    ),
    "resnet, LARS": Case(
        "resnet50-mlperf-3200", "classes", f"{FP32} {R12} --epochs 4 --schedule.warmup 1 --quality.targets", (1, 2)
    ),
    "ssd": Case("ssd-tiny", "boxes", f"{FP32} {S12}", (1, 2, 3)),
    "ssd, accumulated": Case("ssd-tiny", "boxes", f"{FP32} {S12} --system.images-per-forward 4"),
    "ssd, SGD over the batch": Case(
        "ssd", "boxes", f"{FP32} {S12} --weights none --model.loss-over batch --quality.targets", (1, 2)
    ),
    "maskrcnn": Case("maskrcnn-tiny", "boxes", f"{FP32} {M} --global-batch 12", (1, 2, 3)),
    "fasterrcnn": Case(
        "maskrcnn-tiny", "boxes", f"{FP32} {M} --global-batch 12 --model.no-masks --quality.targets", (1, 2)
    ),
    "maskrcnn, loss groups": Case(
        "maskrcnn-tiny", "boxes", f"{FP32} {M} --global-batch 8 --model.loss-group 2", (1, 2)
    ),
    "maskrcnn, accumulated": Case(
        "maskrcnn-tiny", "boxes", f"{FP32} {M} --global-batch 8 --system.images-per-forward 4"
    ),
}  # fmt: skip


def main() -> int:
    """Run the cases, write what they gave, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="JSON file of the tree as it was")
    parser.add_argument("--only", default="", help="regular expression: cases whose name it finds")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--data", action="append", default=[], metavar="KIND=DIR", help="other pictures: classes=DIR, boxes=DIR"
    )
    flags = parser.parse_args()
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as lab:
        data = {kind: rendered(Path(lab), kind) for kind in ("classes", "boxes")}
        data |= {kind: Path(folder).resolve() for kind, _, folder in (entry.partition("=") for entry in flags.data)}
        for name, case in CASES.items():
            for ranks in case.ranks:
                title = f"{name}, {ranks} rank{'s'[: ranks > 1]}"
                if re.search(flags.only, title):
                    out = Path(lab) / f"run-{len(found)}"
                    found[title] = result(case, ranks, data[case.data], out, flags)
                    print(f"{title}: {found[title]['weights'].get('model.safetensors', '')[:16]}", flush=True)
    flags.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if flags.against is None else compared(json.loads(flags.against.read_text()), found)


def rendered(lab: Path, kind: str) -> Path:
    """A small set of pictures, the same in every tree."""
    from paceline.datasets.shapes.render import render_shapes

    render_shapes(kind, lab / kind, train=64, val=16, side=96, processes=1)
    return lab / kind


def result(case: Case, ranks: int, data: Path, out: Path, flags: argparse.Namespace) -> dict:
    """What one run left: hashes of its tensors, and the numbers of its events."""
    words = [
        "train",
        case.recipe,
        "--data",
        str(data),
        "--out",
        str(out),
        "--seed",
        str(flags.seed),
        *shlex.split(case.flags),
    ]
    words += ["--steps", str(flags.steps), "--log-every", "1", "--eval-every", str(flags.steps // 2)]
    start = [sys.executable, "-m", "paceline"]
    if ranks > 1:
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(ranks),
            "--standalone",
            "-m",
            "paceline",
        ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*start, *words], env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    last = out / "checkpoints" / "last"
    weights = {file.name: digest(file.read_bytes()) for file in sorted(last.glob("*.safetensors"))}
    events = []
    for line in (out / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] in ("train", "eval"):
            events.append({key: value for key, value in event.items() if KEPT.fullmatch(key)})
    return {"weights": weights, "events": events}


def digest(content: bytes) -> str:
    """SHA-256 of a safetensors file without its card, which has the recipe's fields: a new field moves no tensor."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    return hashlib.sha256(json.dumps(header).encode() + content[end:]).hexdigest()


def compared(before: dict[str, dict], after: dict[str, dict]) -> int:
    """Print a line a case; -> 1 where one differs."""
    differ = 0
    for title, now in after.items():
        was = before.get(title)
        parts = [] if was is None else [part for part in ("weights", "events") if was[part] != now[part]]
        said = "not there before" if was is None else f"{' and '.join(parts)} differ" if parts else "equal bits"
        differ += bool(parts)
        print(f"{title:<40} {said}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

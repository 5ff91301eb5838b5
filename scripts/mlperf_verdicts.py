"""What MLPerf's compliance checker says of real, tiny runs of all three workloads: ended, interrupted and gone on, aborted.

    .venv/bin/python scripts/mlperf_verdicts.py [--out FOLDER] [--ranks 1 2] [--tasks classification ssd maskrcnn]

Each run is a training of its own process (its own processes on 2 ranks, started by torchrun) on the built-in pictures. The checker's
text is printed as it is; the last table says for each run what it objects to, and whether that is something that a run of a few
steps cannot have (see LACKING). Exit code 0 where nothing else is objected to. Runs that are in FOLDER already are judged as they are.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from paceline._utils.text import escape_text
from paceline.models.registry import WORKLOADS
from paceline.tools.mlperf.compliance import ComplianceResult, check_compliance
from paceline.training.logging.events import read_events

ROOT = Path(__file__).resolve().parents[1]
CPU = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1 --quiet --max-val-images 16"
# A published closed recipe each, made small; what the rules look at stays: optimizer, schedule, tensors, targets out of reach.
RUNS = {
    "classification": "resnet50-mlperf-3200 --data DATA --model.depth 10 --model.width 8 --input.image-size 32 "
    "--input.eval-crop-size 32 "
    "--input.eval-resize-size 36 --global-batch-size 16 --bn-batch-size 8 --optim.lr 0.1 --epochs 7 --max-train-images 128 "
    "--target top1=1.5",
    "ssd": "ssd-mlperf-1024 --model.width 4 --model.extra-channels 8 --global-batch-size 8 --bn-batch-size 8 "
    "--max-train-images 48 --optim.lr 0.01 "
    "--epochs 4 --schedule.warmup 5 --eval.at 2 4 --target box_ap=1.5",
    "maskrcnn": "maskrcnn-nvidia-96 --model.width 8 --model.fpn-channels 16 --model.roi.fc-channels 32 "
    "--model.detect.max-detections 20 "
    "--input.min-size 64 --input.max-size 96 --model.rpn.anchor-sizes 12 24 36 48 64 --model.loss-normalizer-images 4 "
    "--global-batch-size 8 --optim.lr 0.002 "
    "--max-images 0 --epochs 3 --max-train-images 64 --schedule.warmup 5 --target mask_ap=1.5",
}
# What a run of a few tiny steps cannot have -> what an objection to it says.
LACKING = {"eval_accuracy": "the quality target of ImageNet or COCO"}
# And what one lacks that was interrupted before its first epoch or evaluation was over, until it goes on.
UNFINISHED = "Required AT_LEAST_ONE occurrence of"
KINDS = ("ended", "interrupted and gone on", "interrupted", "aborted")


def main() -> int:
    """Train, judge, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", default="", help="where the runs go; empty = a folder that is removed again")
    asked.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    asked.add_argument("--tasks", nargs="+", choices=list(RUNS), default=list(RUNS))
    flags = asked.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(flags.out or scratch).absolute()
        base.mkdir(parents=True, exist_ok=True)
        table, surprises = [], 0
        for task in flags.tasks:
            for ranks in flags.ranks:
                for kind, run in runs_of(task, ranks, base):
                    verdict = check_compliance(run / "mllog.txt", WORKLOADS[task].reporting.ruleset)
                    print(
                        f"=== {task}, {ranks} rank{'s' if ranks > 1 else ''}, {kind}: rules {WORKLOADS[task].reporting.ruleset}",
                        flush=True,
                    )
                    print(escape_text(verdict.text), flush=True)
                    known = (*LACKING, UNFINISHED) if kind == "interrupted" else LACKING
                    unexpected = [line for line in verdict.failed if not any(part in line for part in known)]
                    surprises += len(unexpected)
                    table.append((task, ranks, kind, verdict, unexpected))
    print("| workload | ranks | run | objections | of them not to be expected |\n| --- | --- | --- | --- | --- |")
    for task, ranks, kind, verdict, unexpected in table:
        print(f"| {task} | {ranks} | {kind} | {_named(verdict)} | {'; '.join(unexpected) or 'none'} |")
    return 1 if surprises else 0


def runs_of(task: str, ranks: int, base: Path) -> list[tuple[str, Path]]:
    """The runs of one workload, trained: (kind, folder)."""
    data = photos(base) if task == "classification" else None
    words = [data if word == "DATA" else word for word in (*RUNS[task].split(), *CPU.split())]
    ended, stopped = base / f"{task}-{ranks}-ended", base / f"{task}-{ranks}-stopped"
    kept, cut = base / f"{task}-{ranks}-interrupted", base / f"{task}-{ranks}-aborted"
    if not is_over(ended):
        train(ended, words, ranks, codes=(1,))
    if not kept.exists():
        stop(stopped, words, ranks)
        kept.mkdir()
        (kept / "mllog.txt").write_bytes((stopped / "mllog.txt").read_bytes())
    if not is_over(stopped):
        train(stopped, words, ranks, codes=(1,))
    if not is_over(cut):
        train(cut, [*words, "--max-steps", "3"], ranks, codes=(0,))
    return list(zip(KINDS, (ended, stopped, kept, cut), strict=True))


def is_over(run: Path) -> bool:
    """Whether a run has ended otherwise than by an interruption."""
    file = run / "events.jsonl"
    events = read_events(file) if file.exists() else []
    return bool(events) and events[-1]["event"] == "end" and events[-1]["status"] != "interrupted"


def photos(base: Path) -> str:
    """Class folders of noise."""
    import numpy as np
    from PIL import Image

    folder, random = base / "photos", np.random.default_rng(0)
    for split, count in (("train", 43), ("val", 6)):
        for label in ("ant", "bee", "cat"):
            (folder / split / label).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(
                    folder / split / label / f"{number}.jpg"
                )
    return str(folder)


def command(run: Path, words: Sequence[str], ranks: int) -> list[str]:
    """The training's command line."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"] if ranks > 1 else []
    return [sys.executable, *launcher, "-m", "paceline", "train", *words, "--output-dir", str(run)]


def train(run: Path, words: Sequence[str], ranks: int, *, codes: Sequence[int]) -> None:
    """A training to its end. torchrun turns every code but 0 into 1."""
    done = subprocess.run(command(run, words, ranks), cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode not in codes or not is_over(run):
        raise SystemExit(f"{run}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def stop(run: Path, words: Sequence[str], ranks: int) -> None:
    """A training that is told to stop once it has made a few steps."""
    said = run.with_name(f"{run.name}.said")
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command(run, words, ranks), "--log-every", "1"],
            cwd=ROOT, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + 600
        while time.monotonic() < until and process.poll() is None and steps_done(run) < 2:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=600)
    events = read_events(run / "events.jsonl") if run.exists() else []
    if not events or events[-1].get("status") != "interrupted":
        raise SystemExit(f"{run}: was to be interrupted, and ended otherwise:\n{said.read_text()}")


def steps_done(run: Path) -> int:
    """The newest step that the run has told of."""
    file = run / "events.jsonl"
    events = read_events(file) if file.exists() else []
    return events[-1]["step"] if events else 0


def environment() -> dict[str, str]:
    """This package, one thread, nothing of a launcher's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "TORCHELASTIC"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _named(verdict: ComplianceResult) -> str:
    """The keys that a verdict objects to."""
    named = [part for part in LACKING if any(part in line for line in verdict.failed)]
    missing = sum(line.startswith(UNFINISHED) for line in verdict.failed)
    named += [f"{missing} lines that are still to come"] if missing else []
    return ", ".join(named) if verdict.failed else "none: accepted"


if __name__ == "__main__":
    sys.exit(main())

"""Everything that is to be learned on a GPU, in parts that end within ten minutes each and keep what they have found.

    python scripts/gpu/campaign.py PART --out DIR [--photos DIR] [--wheels DIR] [--limit SECONDS] [--only ITEM ...] [--dry-run]

PART   1 does it run, how fast is it as it is; 2 compiled; 3 the real loop; 4 the oracles' first steps in each number format
--out  gets log.txt (what every item printed), results.jsonl (one line whenever more is known), env.txt and part-N.tar.gz
       (traces, events of runs); a part that is cut off leaves what it had
--wheels  a folder of wheels that are unpacked into the scratch folder and put first on the path
Each item is a process with a time limit of its own; one that fails or hangs costs itself alone. Correctness comes before speed.
--dry-run takes every item at tiny sizes on the CPU, without the packages that a bare GPU machine lacks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What a machine with torch, torchvision, triton, timm and pytest may lack. The first five are what training needs.
WHEELS = ("tyro", "docstring_parser", "typeguard", "simplejpeg", "hotcoco")
EXTRAS = ("pycocotools", "faster_coco_eval", "mlperf_logging", "detectron2", "nvidia.nvimgcodec")
KILLED_AFTER = 5  # seconds between asking an item to end and ending it
LARGEST = 15 * 2**20  # bytes of the packed file


@dataclass(frozen=True)
class Item:
    """One process of a part, or several side by side."""

    name: str
    seconds: int  # its limit
    commands: tuple[tuple[str, ...], ...]
    photos: bool = False  # whether it needs them
    packages: bool = False  # whether it needs what the wheels hold


def measurement(file: str, name: str, seconds: int, **needs: bool) -> Item:
    """A measurement of one of the files beside this one."""
    return Item(name, seconds, ((f"{file}.py", name),), **needs)


def tests(name: str, seconds: int, chosen: str, workers: int) -> Item:
    """tests/gpu, as far as -k chooses. Warnings stay warnings: torch has some of its own on a GPU."""
    words = ["-m", "pytest", "tests/gpu", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "-k", chosen, "-v"]
    if importlib.util.find_spec("pytest_timeout"):
        words += ["--timeout", "120"]
    if importlib.util.find_spec("xdist") and workers > 1:
        words += ["-n", str(workers)]
    return Item(name, seconds, (tuple(words),))


def part_of(number: int, workers: int) -> tuple[str, Sequence[Item], Sequence[str]]:
    """What the part is, its items in their order, and what of it does not exist yet."""
    if number == 1:
        return (
            "does it run, how fast is it as it is",
            (
                measurement("ceilings", "ceilings", 40),
                tests("gpu-tests", 200, "not compiled", workers),
                measurement("against_cpu", "against-cpu", 90),
                measurement("steps", "resnet-256", 100),
                measurement("steps", "ssd-128", 90),
                measurement("steps", "maskrcnn-12", 90),
                measurement("steps", "maskrcnn-4", 60),
                measurement("steps", "resnet-32", 60),
                measurement("steps", "profile", 60),
                measurement("probes", "conv-relu", 40),
                measurement("probes", "decode", 30, photos=True),
                measurement("probes", "loader", 50, photos=True, packages=True),
                measurement("probes", "convolutions", 60),
            ),
            (),
        )
    if number == 2:
        fills = ("fill-resnet", "fill-torchvision", "fill-ssd", "fill-ssd-fused", "fill-ssd-plain")
        return (
            "compiled",
            (
                Item("fill", 200, tuple(("steps.py", name) for name in fills)),
                tests("gpu-tests-compiled", 120, "compiled", workers),
                measurement("steps", "resnet-256-compiled", 150),
                measurement("steps", "ssd-128-compiled", 150),
            ),
            ("Triton kernels beside their CPU twins, and beside ATen",),
        )
    if number == 4:
        return (
            "the oracles' first steps in each number format",
            tuple(
                measurement("oracles", f"oracle-{name}", 90, packages=True) for name in ("resnet", "ssd", "maskrcnn")
            ),
            (),
        )
    return (
        "the real loop",
        (
            *(
                measurement("loop", f"gate-{name}", 110, photos=True, packages=True)
                for name in ("resnet", "ssd", "maskrcnn")
            ),
            measurement("loop", "syncs", 120, photos=True, packages=True),
            *(
                measurement("loop", f"throughput-{name}", seconds, photos=True, packages=True)
                for name, seconds in (("resnet", 150), ("ssd", 150), ("maskrcnn", 180))
            ),
            measurement("loop", "target-resnet50-tiny", 120, packages=True),
            measurement("loop", "target-ssd-tiny", 150, packages=True),
            measurement("loop", "resume", 200, photos=True, packages=True),
        ),
        (),
    )


@dataclass(frozen=True)
class Campaign:
    """One call: where it writes, and what it may use."""

    part: int
    out: Path
    scratch: Path
    photos: Path | None
    wheels: Path | None
    deadline: float  # time.monotonic()
    dry: bool

    def say(self, text: str) -> None:
        """On the console and in the log."""
        print(text, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(text + "\n")

    def tell(self, **facts: Any) -> None:
        """One line of results."""
        with (self.out / "results.jsonl").open("a") as results:
            results.write(json.dumps({"part": self.part, "at": round(time.time(), 1), **facts}) + "\n")

    def environment(self, *, packages: bool) -> dict[str, str]:
        """Of an item's process."""
        site = self.scratch / "site"
        path = [*([str(HERE / "bare")] if self.dry else []), *([str(site)] if site.is_dir() else []), str(ROOT)]
        if before := os.environ.get("PYTHONPATH"):
            path.append(before)
        found = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "PACELINE_CACHE": str(self.scratch / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
        }
        if self.dry:
            # Without unpacked wheels an item that needs them borrows them from this Python.
            lacking = WHEELS if site.is_dir() or not packages else ()
            found |= {"ABSENT": ",".join((*lacking, *EXTRAS)), "PRESENT": str(site) if site.is_dir() else ""}
        return found

    def words(self, command: Sequence[str]) -> list[str]:
        """The process of one command of an item."""
        if command[0] == "-m":
            return [sys.executable, *command]
        words = [sys.executable, str(HERE / command[0]), command[1], "--results", str(self.out / "results.jsonl")]
        words += ["--scratch", str(self.scratch)]
        words += ["--photos", str(self.photos)] if self.photos else []
        return [*words, "--tiny"] if self.dry else words


def carry_out(campaign: Campaign, item: Item) -> bool:
    """Run one item under its limit; -> whether it ended well."""
    left = campaign.deadline - time.monotonic() - 2 * KILLED_AFTER
    if left < KILLED_AFTER:
        campaign.say(f"== {item.name}: no time is left")
        campaign.tell(item=item.name, exit=None, skipped="no time left")
        return False
    if item.photos and campaign.photos is None:
        campaign.say(f"== {item.name}: skipped, it needs --photos")
        campaign.tell(item=item.name, exit=None, skipped="no photos")
        return True
    # Of a dry run it matters that every line runs, on whatever machine.
    limit = min(item.seconds * (4 if campaign.dry else 1), int(left))
    campaign.say(f"== {item.name} (at most {limit} s)")
    began, seen = time.monotonic(), len(samples(campaign))
    codes = []
    with (campaign.out / "log.txt").open("a") as log:
        running = [
            subprocess.Popen(
                ["timeout", "-k", str(KILLED_AFTER), str(limit), *campaign.words(command)],
                stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=campaign.environment(packages=item.packages),
            )
            for command in item.commands
        ]  # fmt: skip
        codes = [process.wait() for process in running]
    seconds = round(time.monotonic() - began, 1)
    campaign.tell(item=item.name, exit=codes, seconds=seconds, **clocks(samples(campaign)[seen:]))
    last = (campaign.out / "log.txt").read_text(errors="replace").splitlines()[-6:]
    for line in last if any(codes) else ():
        print(f"   {line[:200]}")
    campaign.say(f"== {item.name}: exit {', '.join(map(str, codes))} after {seconds} s")
    pack(campaign)
    return not any(codes)


def samples(campaign: Campaign) -> list[list[float]]:
    """What nvidia-smi has said so far, twice a second: watts, MHz of the SMs, MiB in use, degrees."""
    file, found = campaign.scratch / "smi.csv", []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append([float(part) for part in line.split(",")])
        except ValueError:  # a column that this GPU does not tell, or the line that is being written
            continue
    return [row for row in found if len(row) == 4]


def clocks(rows: list[list[float]]) -> dict[str, float]:
    """Of one item: mean and highest power, lowest and highest clock, most memory."""
    if not rows:
        return {}
    watts, mhz, mib, degrees = zip(*rows)
    return {
        "watts_mean": round(statistics.fmean(watts), 1), "watts_most": max(watts), "mhz_least": min(mhz),
        "mhz_most": max(mhz), "mib_most": max(mib), "degrees_most": max(degrees),
    }  # fmt: skip


def pack(campaign: Campaign) -> None:
    """What items want to come back, smallest first, in one file; done after each item, so that none is lost."""
    files = sorted((campaign.scratch / "keep").glob("*"), key=lambda path: path.stat().st_size)
    part = campaign.scratch / "packed.tar.gz"
    spent, left = 0, []
    with tarfile.open(part, "w:gz") as archive:
        for path in files:
            # Traces are compressed already, so a file's size is about what it adds.
            spent += path.stat().st_size
            (left.append(path.name) if spent > LARGEST else archive.add(path, path.name))
    if files:
        shutil.copyfile(part, campaign.out / f"part-{campaign.part}.tar.gz")
    if left:
        campaign.say(f"too large to come back: {', '.join(left)}")


def describe(campaign: Campaign) -> None:
    """env.txt: machine, versions, commit."""
    lines = [f"python {platform.python_version()}  {platform.platform()}  {os.cpu_count()} cores"]
    code = "from paceline.machine.provenance import versions, git_commit, cpu_name; print(versions(), git_commit(), cpu_name())"
    for words in (
        [sys.executable, "-c", code],
        [sys.executable, "-m", "paceline", "doctor"],
        [sys.executable, "-m", "pip", "list", "--format", "freeze"],
        ["nvidia-smi"],
        ["nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY"],
    ):
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=campaign.environment(packages=False), capture_output=True, text=True, timeout=40
            )
            lines += [f"$ {' '.join(words[-2:])}", done.stdout + done.stderr]
        except (OSError, subprocess.TimeoutExpired) as problem:
            lines += [f"$ {' '.join(words[-2:])}", f"{type(problem).__name__}: {problem}"]
        (campaign.out / "env.txt").write_text("\n".join(lines) + "\n")


def unpack(campaign: Campaign) -> None:
    """Wheels into the scratch folder, once."""
    site = campaign.scratch / "site"
    if campaign.wheels is None or site.is_dir():
        return
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    if importlib.util.find_spec("pip") is None:
        words = [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--python",
            sys.executable,
            "--target",
            str(site),
        ]
    done = subprocess.run([*words, *map(str, sorted(campaign.wheels.glob("*.whl")))], capture_output=True, text=True)
    campaign.say(f"== wheels: exit {done.returncode} {done.stderr[-500:]}")


def main() -> int:
    """Carry out one part; 0 where every item ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", type=int, choices=(1, 2, 3, 4))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/paceline-gpu"))
    parser.add_argument("--limit", type=float, default=560.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--dry-run", action="store_true")
    asked = parser.parse_args()
    about, items, missing = part_of(asked.part, 1 if asked.dry_run else 4)
    if unknown := set(asked.only) - {item.name for item in items}:
        parser.error(f"--only {' '.join(unknown)}: part {asked.part} has {', '.join(item.name for item in items)}")
    campaign = Campaign(
        asked.part, asked.out.resolve(), asked.scratch.resolve(), asked.photos and asked.photos.resolve(),
        asked.wheels and asked.wheels.resolve(), time.monotonic() + asked.limit, asked.dry_run,
    )  # fmt: skip
    for folder in (campaign.out, campaign.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(campaign.scratch / "keep", ignore_errors=True)
    campaign.say(f"part {asked.part}: {about}" + (", dry run" if asked.dry_run else ""))
    unpack(campaign)
    if not asked.only:
        describe(campaign)
    for what in missing:
        campaign.say(f"== {what}: does not exist yet; skipped")
    watcher = None
    if shutil.which("nvidia-smi") and not asked.dry_run:
        query = "--query-gpu=power.draw,clocks.sm,memory.used,temperature.gpu"
        with (campaign.scratch / "smi.csv").open("w") as file:
            watcher = subprocess.Popen(
                ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "500"], stdout=file
            )
    try:
        chosen = [item for item in items if not asked.only or item.name in asked.only]
        well = [carry_out(campaign, item) for item in chosen]
    finally:
        if watcher is not None:
            watcher.kill()
    campaign.say(f"part {asked.part}: {sum(well)} of {len(well)} items ended well")
    return 0 if all(well) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Everything that is to be learned on a GPU, in calls that end within ten minutes each and keep what they have found.

    python scripts/gpu/campaign.py CALL --out DIR [--photos DIR] [--wheels DIR] [--limit SECONDS] [--only ITEM ...]

CALL   first (400 s) and second (250 s): the items that tell most, by their worth (parts.py); rest: the others; or all
--limit  seconds of the call, if they are not its own
--out  gets log.txt (what every item printed), results.jsonl (one line whenever more is known), tables.md (results/gpu's tables,
       filled), env.txt and kept.tar.gz (traces, events of runs); a call that is cut off leaves what it had
--wheels  a folder of wheels that are unpacked into the scratch folder and put first on the path
Each item is a process with a time limit of its own; one that fails or hangs costs itself alone. A call with a folder of results, its
own or a copy, goes on: an item that has ended there by itself, well or not, is not repeated, unless --only names it.
--tiny takes every item at tiny sizes; --dry-run does so on the CPU, without the packages that a bare GPU machine lacks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables
from parts import CALLS, Item, all_items, stages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What a machine with torch, torchvision, triton, timm and pytest may lack. The first five are what training needs.
WHEELS = ("tyro", "docstring_parser", "typeguard", "simplejpeg", "hotcoco")
EXTRAS = ("pycocotools", "faster_coco_eval", "mlperf_logging", "detectron2", "nvidia.nvimgcodec")
KILLED_AFTER = 5  # seconds between asking an item to end and ending it
CUT = frozenset([124, 137, -9])  # how `timeout` ends an item, or somebody its process
SLOWER = 8  # of tiny items it matters that every line runs, on whatever machine
LARGEST = 15 * 2**20  # bytes of the packed file


@dataclass(frozen=True)
class Campaign:
    """One call: where it writes, and what it may use."""

    out: Path
    scratch: Path
    photos: Path | None
    wheels: Path | None
    deadline: float  # time.monotonic()
    tiny: bool = False
    dry: bool = False

    def say(self, text: str) -> None:
        """On the console and in the log."""
        print(text, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(text + "\n")

    def tell(self, **facts: Any) -> None:
        """One line of results."""
        with (self.out / "results.jsonl").open("a") as results:
            results.write(json.dumps({"at": round(time.time(), 1), "tiny": self.tiny, **facts}) + "\n")

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
        return [*words, *(["--tiny"] if self.tiny else []), *(["--cpu"] if self.dry else [])]


def ended(campaign: Campaign) -> dict[str, bool]:
    """Of each item that has begun in this folder at these sizes, whether it ended by itself."""
    lines = [line for line in tables.read(campaign.out / "results.jsonl") if line.get("tiny", False) == campaign.tiny]
    found = dict.fromkeys((line["item"] for line in lines if "exit" not in line), False)
    for line in lines:
        if line.get("exit"):
            found[line["item"]] = CUT.isdisjoint(line["exit"])
    return found


def carry_out(campaign: Campaign, stage: Sequence[Item]) -> bool:
    """Run items side by side, each under its limit; -> whether all ended well."""
    limits = {item.name: limit_of(campaign, item) for item in stage}
    codes: dict[str, list[int]] = {}
    began, seen = time.monotonic(), len(samples(campaign))
    with (campaign.out / "log.txt").open("a") as log, ExitStack() as started:
        going = {
            item.name: (item, started.enter_context(running(campaign, item, limit, log)))
            for item in stage
            if (limit := limits[item.name])
        }
        while going:
            for item, processes in list(going.values()):
                if any(process.poll() is None for process in processes):
                    continue
                del going[item.name]
                codes[item.name] = [process.returncode for process in processes]
                seconds = round(time.monotonic() - began, 1)
                facts = clocks(samples(campaign)[seen:])
                campaign.tell(call=item.call, item=item.name, exit=codes[item.name], seconds=seconds, **facts)
                last = (campaign.out / "log.txt").read_text(errors="replace").splitlines()[-6:]
                for line in last if any(codes[item.name]) else ():
                    print(f"   {line[:200]}")
                campaign.say(f"== {item.name}: exit {', '.join(map(str, codes[item.name]))} after {seconds} s")
            time.sleep(0.05)
    if codes:
        pack(campaign)
        tables.write(campaign.out, tiny=campaign.tiny)
    return None not in limits.values() and not any(map(any, codes.values()))


def limit_of(campaign: Campaign, item: Item) -> int | None:
    """Seconds that an item may take; None if too few are left, 0 if it lacks its photos. Either is told."""
    if item.photos and campaign.photos is None:
        campaign.say(f"== {item.name}: skipped, it needs --photos")
        campaign.tell(item=item.name, exit=None, skipped="no photos")
        return 0
    limit = item.seconds * (SLOWER if campaign.tiny else 1)
    left = int(campaign.deadline - time.monotonic() - 2 * KILLED_AFTER)
    if left < limit / 2:
        campaign.say(f"== {item.name}: no time is left for {limit} s")
        campaign.tell(item=item.name, exit=None, skipped="no time left")
        return None
    limit = min(limit, left)
    campaign.say(f"== {item.name} (at most {limit} s)")
    return limit


@contextmanager
def running(campaign: Campaign, item: Item, limit: int, log: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The item's processes; none of them outlives the block, for whatever reason that is left."""
    processes = [
        subprocess.Popen(
            ["timeout", "-k", str(KILLED_AFTER), str(limit), *campaign.words(command)],
            stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=campaign.environment(packages=item.packages),
        )
        for command in item.commands
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()  # `timeout` passes it on, and ends what does not follow
        for process in processes:
            process.wait()


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
    spent, left = 0, []
    if not files:
        return
    part = campaign.out / "kept.part"
    with tarfile.open(part, "w:gz") as archive:
        for path in files:
            # Traces are compressed already, so a file's size is about what it adds.
            spent += path.stat().st_size
            (left.append(path.name) if spent > LARGEST else archive.add(path, path.name))
    os.replace(part, campaign.out / "kept.tar.gz")
    if left:
        campaign.say(f"too large to come back: {', '.join(left)}")


def go_on(campaign: Campaign) -> None:
    """Folders, with what an earlier call into --out kept."""
    keep, packed = campaign.scratch / "keep", campaign.out / "kept.tar.gz"
    shutil.rmtree(keep, ignore_errors=True)
    for folder in (campaign.out, keep):
        folder.mkdir(parents=True, exist_ok=True)
    if packed.exists():
        with tarfile.open(packed) as archive:
            archive.extractall(keep, filter="data")


def describe(campaign: Campaign) -> None:
    """env.txt: machine, versions, commit."""
    lines = [f"python {platform.python_version()}  {platform.platform()}  {os.cpu_count()} cores"]
    module = "paceline.distributed.device.provenance"
    code = f"from {module} import versions, git_commit, cpu_name; print(versions(), git_commit(), cpu_name())"
    for words in (
        [sys.executable, "-c", code],
        [sys.executable, "-m", "paceline", "doctor"],
        ["nvidia-smi"],
        ["nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY"],
    ):
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=campaign.environment(packages=False), capture_output=True, text=True, timeout=30
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


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("call", choices=[*CALLS, "all"], metavar="CALL")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--photos", type=Path)
    words.add_argument("--wheels", type=Path)
    words.add_argument("--scratch", type=Path, default=Path("/tmp/paceline-gpu"))
    words.add_argument("--limit", type=float, default=0.0)
    words.add_argument("--only", nargs="+", default=[])
    words.add_argument("--tiny", action="store_true")
    words.add_argument("--dry-run", action="store_true")
    return words


def chosen(asked: argparse.Namespace, words: argparse.ArgumentParser) -> list[Item]:
    """The items of the call, or those of them that --only names."""
    workers = 1 if asked.tiny or asked.dry_run else 4
    items = [item for item in all_items(workers) if asked.call in ("all", item.call)]
    if unknown := set(asked.only) - {item.name for item in items}:
        have = ", ".join(item.name for item in items)
        words.error(f"--only {' '.join(sorted(unknown))}: call {asked.call} has {have}")
    return [item for item in items if not asked.only or item.name in asked.only]


def left_of(campaign: Campaign, items: list[Item]) -> list[Item]:
    """Without those that have ended by themselves; those that were cut off come after those that never began."""
    before = ended(campaign)
    if done := [item.name for item in items if before.get(item.name)]:
        campaign.say(f"== {', '.join(done)}: done before")
    return sorted((item for item in items if not before.get(item.name)), key=lambda item: item.name in before)


@contextmanager
def watched(campaign: Campaign) -> Iterator[None]:
    """While inside, nvidia-smi writes down watts, clocks, memory and degrees, where there is one."""
    if campaign.dry or not shutil.which("nvidia-smi"):
        yield
        return
    query = "--query-gpu=power.draw,clocks.sm,memory.used,temperature.gpu"
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "500"]
    with (campaign.scratch / "smi.csv").open("w") as file:
        watcher = subprocess.Popen(words, stdout=file)
    try:
        yield
    finally:
        watcher.kill()


def main() -> int:
    """Carry out what is asked for and was not done before; 0 where every item ended well."""
    words = parser()
    asked = words.parse_args()
    items, limit = chosen(asked, words), asked.limit or CALLS.get(asked.call, max(CALLS.values()))
    for given in (asked.photos, asked.wheels):
        if given is not None and not given.is_dir():
            words.error(f"{given} is no folder: results/gpu/README.md says how it is made")
    campaign = Campaign(
        asked.out.resolve(), asked.scratch.resolve(), asked.photos and asked.photos.resolve(),
        asked.wheels and asked.wheels.resolve(), time.monotonic() + limit, asked.tiny or asked.dry_run, asked.dry_run,
    )  # fmt: skip
    # What is asked to end ends its item too, and the watcher.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    go_on(campaign)
    campaign.say(f"call {asked.call}, at most {limit:g} s" + (", dry run" if asked.dry_run else ""))
    unpack(campaign)
    if not asked.only and not (campaign.out / "env.txt").exists():
        describe(campaign)
    with watched(campaign):
        chosen_stages = stages(items if asked.only else left_of(campaign, items))
        well = [carry_out(campaign, stage) for stage in chosen_stages]
    campaign.say(f"call {asked.call}: {sum(well)} of {len(well)} stages ended well")
    return 0 if all(well) else 1


if __name__ == "__main__":
    raise SystemExit(main())

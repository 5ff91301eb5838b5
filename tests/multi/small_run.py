"""Small trainings as real processes: tiny photos, a tiny network, and what a run left behind, ready to be compared.

`Trainer` starts ranks through a zygote, half a second each; `plain`, `torchrun` and `mpirun` start them as a user does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mllog_order import by_step
from PIL import Image
from zygote import Ended, Job, Zygote, by_hand

from paceline.log.events import MEASURED, read_events

ROOT = Path(__file__).resolve().parents[2]
CLASSES, TRAIN_EACH, VAL_EACH = 3, 17, 67  # 51 images at a batch of 12: epochs end inside steps, 5 steps and later
RECIPES = Path(__file__).with_name("small_recipe.py")
FLAGS = "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.loader-threads 1 --eval-every 13 --limit-val 21"
# Evaluations at a large size take about two seconds on one core: long enough to be interrupted.
LONG_EVALUATION = "--input.eval-size 224 --input.eval-resize 240 --limit-val 0"


def make_photos(root: Path) -> Path:
    """A class-folder set of tiny JPEGs: coarse coloured noise whose colour tells the class."""
    random = np.random.default_rng(0)
    for split, each in (("train", TRAIN_EACH), ("val", VAL_EACH)):
        for label in range(CLASSES):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(each):
                pixels = random.integers(0, 255, (5, 5, 3), dtype=np.uint8)
                pixels[..., label] //= 2
                Image.fromarray(pixels).resize((40, 36)).save(folder / f"{number:03d}.jpg")
    return root


def free_port() -> int:
    """A TCP port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    """Look every few milliseconds until `condition` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.003)


class Trainer:
    """Starts `paceline train` with the small recipe on the small photos, as 1 or more ranks of this host."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.zygote, self.folder = zygote, folder
        self.photos = make_photos(folder / "photos")
        self.environ = {"PACELINE_CACHE": str(folder / "cache"), "WITHOUT_REPORT": ""}
        self._jobs = 0

    def train(self, run: Path, flags: str = "", *, recipe: str = "small") -> list[str]:
        """The command line of one training; `flags` outweigh the defaults above."""
        given: dict[str, list[str]] = {}
        for word in f"{FLAGS} {flags}".split():
            if word.startswith("--"):
                name, given[word] = word, []
            else:
                given[name].append(word)
        chosen = [word for name, values in given.items() for word in (name, *values)]
        return ["train", f"{RECIPES}:{recipe}", "--data", str(self.photos), "--out", str(run), *chosen]

    def start(
        self,
        arguments: list[str],
        *,
        ranks: int = 1,
        own: Sequence[Sequence[str]] = (),
        environs: Sequence[Mapping[str, str]] = (),
        deadline: float = 90,
    ) -> Job:
        """Start one command on `ranks` ranks and return at once; those alive after `deadline` seconds are killed.

        own       further arguments of each rank alone
        environs  further variables of each rank alone
        """
        self._jobs += 1
        outs = self.folder / f"job{self._jobs}"
        outs.mkdir()
        port = free_port()
        more = environs or [{}] * ranks
        every = [{**by_hand(rank, ranks, port), **self.environ, **more[rank]} for rank in range(ranks)]
        if ranks == 1:
            every = [{**self.environ, **more[0]}]  # as without a launcher
        return self.zygote.start(outs, every, *arguments, own=own, deadline=deadline)

    def run(self, arguments: list[str], *, ranks: int = 1, own: Sequence[Sequence[str]] = ()) -> list[Ended]:
        """Run one command on `ranks` ranks to its end."""
        return self.start(arguments, ranks=ranks, own=own).wait()

    def finished(self, run: Path, flags: str = "", *, ranks: int = 1, recipe: str = "small") -> Path:
        """A training that must end with exit code 0; -> its folder."""
        ended = self.run(self.train(run, flags, recipe=recipe), ranks=ranks)
        assert [rank.code for rank in ended] == [0] * ranks, said(ended)
        return run

    def launched(self, launcher: list[str], arguments: list[str], **more: str) -> subprocess.CompletedProcess:
        """Run one command as a user does: `launcher` in front of `python -m paceline`."""
        process = self.launching(launcher, arguments, **more)
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(process.args, process.returncode, out)

    def launching(self, launcher: list[str], arguments: list[str], **more: str) -> subprocess.Popen:
        """Start the same, in a process group of its own, and return at once."""
        started = ("SLURM_", "OMPI_", "PMI", "TORCHELASTIC", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(started)}
        environ = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **self.environ, **more}
        if environ.pop("PYTHONDONTWRITEBYTECODE", None):
            environ["PYTHONPYCACHEPREFIX"] = str(self.folder / "bytecode")  # torch is compiled once, not by every rank
        return subprocess.Popen(
            [*launcher, "-m", "paceline", *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


PLAIN = [sys.executable]


def torchrun(ranks: int) -> list[str]:
    """The launcher's part of a command; its ranks are on this host."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return [*command, "--master-port", str(free_port())]


def mpirun(ranks: int) -> list[str]:
    """The same with Open MPI."""
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable]


def said(ended: list[Ended]) -> str:
    """Everything that all ranks printed, for a failed assertion's text."""
    return "\n".join(f"rank {rank}: exit {one.code}\n{one.text}" for rank, one in enumerate(ended))


def events(run: Path, *, without: tuple[str, ...] = ("resume",)) -> list[dict[str, Any]]:
    """A run's events without clocks and pace, and without the kinds named; each process of a run has its own warm-up."""
    found = read_events(run / "events.jsonl")
    return [
        {name: value for name, value in event.items() if name not in MEASURED}
        for event in found
        if event["event"] not in (*without, "warm_up")
    ]


def kinds(run: Path) -> list[tuple[str, int]]:
    """(event, step) of every event, in order."""
    return [(event["event"], event["step"]) for event in read_events(run / "events.jsonl")]


def step_reached(run: Path) -> int:
    """Step of the newest event; -1 before the first."""
    found = read_events(run / "events.jsonl")
    return found[-1]["step"] if found else -1


def last_event(run: Path) -> Mapping[str, Any]:
    """The newest event, with its clocks."""
    return read_events(run / "events.jsonl")[-1]


def tensor_files(run: Path, checkpoint: str = "last") -> dict[str, bytes]:
    """The bytes of every tensor file of a checkpoint."""
    return {path.name: path.read_bytes() for path in sorted((run / "checkpoints" / checkpoint).glob("*.safetensors"))}


def mllog(run: Path) -> list[tuple[str, Any, Any]]:
    """(key, value, facts) of every line of mllog.txt, `by_step`; the measured throughput's value is left out."""
    lines = []
    for line in (run / "mllog.txt").read_text().splitlines():
        record = json.loads(line.removeprefix(":::MLLOG "))
        value = None if record["key"] == "tracked_stats" else record["value"]
        facts = {name: fact for name, fact in record["metadata"].items() if name not in ("file", "lineno")}
        lines.append((record["key"], value, facts))
    return by_step(lines, lambda line: (line[0], line[2].get("step_num")))


def assert_same_run(run: Path, unbroken: Path) -> None:
    """Both ended alike: the same tensor bytes, the same events but for clocks and resumes, the same MLPerf log."""
    assert sorted(tensor_files(run)) == sorted(tensor_files(unbroken))
    different = [name for name, data in tensor_files(run).items() if data != tensor_files(unbroken)[name]]
    assert not different
    assert events(run) == events(unbroken)
    assert mllog(run) == mllog(unbroken)
    for link in ("last", "best"):
        assert os.readlink(run / "checkpoints" / link) == os.readlink(unbroken / "checkpoints" / link)


def copy_of(run: Path, name: str) -> Path:
    """A copy of a run folder beside it."""
    return Path(shutil.copytree(run, run.with_name(name), symlinks=True))

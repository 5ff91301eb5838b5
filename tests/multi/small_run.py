"""Small trainings as real processes: tiny photos, a tiny network, and what a run left behind, ready to be compared.

`Trainer` starts ranks through a zygote, half a second each; `plain`, `torchrun` and `mpirun` start them as a user does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mllog_order import by_step
from PIL import Image
from run_files import tensor_files
from zygote import Ended, Job, Zygote, by_hand

from paceline.distributed.comm.interfaces import find_free_port
from paceline.training.logging.events import MEASURED, read_events

if TYPE_CHECKING:
    from torch import Tensor

    Found = dict[str, Tensor]

ROOT = Path(__file__).resolve().parents[2]
CLASSES, TRAIN_EACH, VAL_EACH = 3, 17, 67  # 51 images at a batch of 12: epochs end inside steps, 5 steps and later
RECIPES = Path(__file__).with_name("small_recipe.py")
FLAGS = (
    "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1 --eval-every 13 "
    "--max-val-images 21"
)
# These make a run last until whoever started it is asked to stop it: two ranks exchange the statistics of every norm.
UNTIL_STOPPED = "--save-every 100 --log-every 2 --input.eval-crop-size 160 --input.eval-resize-size 176 --max-val-images 0"
UNTIL_STOPPED += " --eval-every 15 --bn-batch-size 4"


def make_photos(root: Path) -> Path:
    """A class-folder set of tiny JPEGs: coarse colored noise whose color tells the class."""
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


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    """Look every few milliseconds until `condition` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.003)


class Trainer:
    """Starts `paceline train`, or another command of `module`, as 1 or more ranks of this host.

    recipes  the file with the recipes
    flags    of every training, unless others outweigh them
    photos   makes what is trained on
    """

    def __init__(
        self,
        zygote: Zygote,
        folder: Path,
        module: str = "training_rank",
        *,
        recipes: Path = RECIPES,
        flags: str = FLAGS,
        photos: Callable[[Path], Path] = make_photos,
    ) -> None:
        self.zygote, self.folder, self.module = zygote, folder, module
        self.recipes, self.flags, self._photos = recipes, flags, photos
        self.environ = {"PACELINE_CACHE": str(folder / "cache"), "WITHOUT_REPORT": ""}
        self._jobs = 0

    @cached_property
    def photos(self) -> Path:
        """What is trained on."""
        return self._photos(self.folder / "photos")

    def train(self, run: Path, flags: str = "", *, recipe: str = "small") -> list[str]:
        """The command line of one training; `flags` outweigh the defaults above."""
        given: dict[str, list[str]] = {}
        for word in f"{self.flags} {flags}".split():
            if word.startswith("--"):
                name, given[word] = word, []
            else:
                given[name].append(word)
        chosen = [word for name, values in given.items() for word in (name, *values)]
        return ["train", f"{self.recipes}:{recipe}", "--data", str(self.photos), "--output-dir", str(run), *chosen]

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
        port = find_free_port()
        more = environs or [{}] * ranks
        every = [{**by_hand(rank, ranks, port), **self.environ, **more[rank]} for rank in range(ranks)]
        if ranks == 1:
            every = [{**self.environ, **more[0]}]  # as without a launcher
        return self.zygote.start(outs, every, *arguments, module=self.module, own=own, deadline=deadline)

    def run(self, arguments: list[str], *, ranks: int = 1, **how: Any) -> list[Ended]:
        """Run one command on `ranks` ranks to its end."""
        return self.start(arguments, ranks=ranks, **how).wait()

    def ended_well(self, arguments: list[str], *, ranks: int = 1, **how: Any) -> list[Ended]:
        """The same; all must end with exit code 0."""
        ended = self.run(arguments, ranks=ranks, **how)
        assert [rank.code for rank in ended] == [0] * ranks, said(ended)
        return ended

    def finished(self, run: Path, flags: str = "", *, ranks: int = 1, recipe: str = "small", **how: Any) -> Path:
        """A training that must end with exit code 0; -> its folder."""
        self.ended_well(self.train(run, flags, recipe=recipe), ranks=ranks, **how)
        return run

    def refused(self, run: Path, flags: str = "", *, ranks: int = 2, **how: Any) -> list[Ended]:
        """A training that all ranks must refuse without a traceback or a folder; -> what they said."""
        ended = self.run(self.train(run, flags), ranks=ranks, **how)
        assert [rank.code for rank in ended] == [2] * ranks, said(ended)
        assert "Traceback" not in said(ended) and not run.exists(), said(ended)
        return ended

    def signalled(
        self, run: Path, flags: str, number: signal.Signals, *, step: int = 4, ranks: int = 1, rank: int | None = None
    ) -> list[Ended]:
        """A training that got a signal, on one rank or on all, once it had written of `step`; -> how the ranks ended."""
        job = self.start(self.train(run, flags), ranks=ranks)
        wait_until(lambda: step_reached(run) >= step, f"step {step}")
        job.send(number, rank=rank)
        return job.wait()

    def evaluated(self, run: Path, *flags: str, ranks: int = 1) -> tuple[dict[str, Any], str]:
        """What `eval --json` on so many ranks found: its numbers, which rank 0 alone prints, and its predictions' text."""
        file = self.folder / f"{run.name}-by-{ranks}.json"
        ended = self.ended_well(["eval", str(run), *flags, "--json", "--output", str(file)], ranks=ranks)
        (line,) = [line for rank in ended for line in rank.text.splitlines() if line.startswith("{")]
        assert line in ended[0].text
        return json.loads(line), file.read_text()

    def found(self, *words: str, ranks: int = 2) -> list[Any]:
        """What `steps FOLDER WORDS` of a module of its own leaves in FOLDER/RANK.pt on each rank."""
        import torch  # not by the program tests/faults/harness.py, which sets variables first

        folder = self.folder / "-".join(("steps", *words, str(ranks)))
        folder.mkdir()
        self.ended_well(["steps", str(folder), *words], ranks=ranks)
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]

    def launched(self, launcher: list[str], arguments: list[str], **more: str) -> subprocess.CompletedProcess:
        """Run one command as a user does: `launcher` in front of `python -m paceline`."""
        process = self.launching(launcher, arguments, **more)
        text = told(process, seconds=120)
        return subprocess.CompletedProcess(process.args, process.returncode, text)

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
    return [*command, "--master-port", str(find_free_port())]


def mpirun(ranks: int) -> list[str]:
    """The same with Open MPI."""
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable]


def told(process: subprocess.Popen[str], *, seconds: float = 60) -> str:
    """What it prints until its end, which comes within so many seconds."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


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


def losses(run: Path, name: str = "loss") -> list[float]:
    """Of every train event."""
    return [event[name] for event in events(run) if event["event"] == "train"]


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
    assert tensor_files(run) == tensor_files(unbroken)
    assert events(run) == events(unbroken)
    assert mllog(run) == mllog(unbroken)
    for link in ("last", "best"):
        assert os.readlink(run / "checkpoints" / link) == os.readlink(unbroken / "checkpoints" / link)


def assert_same_end(run: Path, unbroken: Path) -> None:
    """The same tensor bytes and the same events; but a run that was stopped has checkpoints of where it was."""
    assert tensor_files(run) == tensor_files(unbroken)
    assert events(run, without=("resume", "checkpoint")) == events(unbroken, without=("resume", "checkpoint"))


def assert_joined(both: Sequence[Found], alone: Found, *, halves: tuple[str, ...], shares: tuple[str, ...]) -> None:
    """Two ranks have what one process has with the joined batch, up to float noise.

    halves  parts of the names of what each rank has of its own images
    shares  parts of the names of what adds up; everything else is the same on both ranks
    """
    import torch

    first, second = both
    for name, expected in alone.items():
        if any(part in name for part in halves):
            got = torch.cat((first[name], second[name]))
        elif any(part in name for part in shares):
            got = first[name] + second[name]
        else:
            got = first[name]
            assert torch.equal(got, second[name]), f"ranks disagree about {name}"
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def assert_same_statistics(run: Path, wanted: Path, *, rtol: float) -> None:
    """BatchNorm's running statistics, up to float noise."""
    import safetensors.torch
    from torch.testing import assert_close

    got, expected = (safetensors.torch.load(tensor_files(one)["model.safetensors"]) for one in (run, wanted))
    running = [name for name in got if "running_" in name]
    assert len(running) > 10
    for name in running:
        assert_close(got[name], expected[name], rtol=rtol, atol=1e-5)


def copy_of(run: Path, name: str) -> Path:
    """A copy of a run folder beside it."""
    return Path(shutil.copytree(run, run.with_name(name), symlinks=True))

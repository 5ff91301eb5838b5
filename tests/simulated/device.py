"""The simulated CUDA device from Python: start a program on it, and read what it counted.

    python tests/simulated/device.py [--values] SCRIPT.py WORDS...      or -m MODULE, or -c CODE

Settings are environment variables, because the library reads them before there is an interpreter:

SIMULATED_DEVICES        devices of this process (1)
SIMULATED_GIB            memory of each (139.7); what is never written takes none of the host's
SIMULATED_COPIES         now; late: as late as is legal; random: by SIMULATED_SEED (1). Errors in the order of streams show so.
SIMULATED_FAIL           "copy 12", "launch 1000", "malloc 3" or "collective 5": that one fails with a device's error
SIMULATED_RESIDENT_GIB   a process that really takes more ends (3)
SIMULATED_COLLECTIVES    FILE: each rank writes its collectives into FILE.RANK, in the order in which they were sent
SIMULATED_PATIENCE       seconds for which a rank waits for the others in a collective, and then ends (60)
SIMULATED_VALUES         1: right values, by values.py; else kernels leave memory as it is
"""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEARD = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def environment(**settings: str) -> dict[str, str]:
    """The environment of a process on the device. Raises build.CannotBuild."""
    import build

    library = build.library()
    own = [HERE / "start", ROOT, HERE, HERE.parent]  # the first has a module that Python imports as it starts
    python_path = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "PYTHONPATH": python_path,
        "LD_PRELOAD": f"{library}:{library.with_name('libnvrtc.so')}",
        "TRITON_LIBCUDA_PATH": str(library.parent),
        **settings,
    }
    return {**os.environ, "OMP_NUM_THREADS": "1", **settings}


@cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
    for name, result in {
        "simulated_counts": ctypes.c_char_p,
        "simulated_kernels": ctypes.c_char_p,
        "simulated_launches": ctypes.c_long,
    }.items():
        getattr(found, name).restype = result
    atexit.register(found.simulated_watch, None)  # torch frees memory when there is no interpreter to hear of it
    return found


class Watch:
    """What the device did since this was made.

    calls       waits and broken rules, each with the lines of this project that led there, the innermost first
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._hear = HEARD(self._heard)  # kept, or the library would call freed memory
        library().simulated_forget_counts()
        library().simulated_forget_kernels()
        library().simulated_watch(self._hear)

    def _heard(self, what: bytes) -> None:
        frames = reversed(traceback.extract_stack()[:-1])
        self.calls[what.decode(), " < ".join(lines_of_ours(frames))] += 1

    def close(self) -> None:
        library().simulated_watch(None)

    @property
    def counts(self) -> dict[str, int]:
        """Waits, copies, allocations, captures and broken rules by name."""
        return read(library().simulated_counts())

    @property
    def kernels(self) -> dict[str, int]:
        """Launches by kernel, as the compiler names it; those of replayed graphs too."""
        return read(library().simulated_kernels())

    @property
    def launches(self) -> int:
        return library().simulated_launches()

    def broken_rules(self) -> list[str]:
        """Rules of CUDA's that were broken."""
        return [what.removeprefix("broken rule: ") for what in self.counts if what.startswith("broken rule: ")]

    def waits(self) -> list[str]:
        """Each way in which the host waited for the device, with its lines and how often."""
        return [
            f"{n} x {what.removeprefix('wait: ')}: {lines}"
            for (what, lines), n in self.calls.items()
            if what.startswith("wait")
        ]


def lines_of_ours(frames: Iterable[traceback.FrameSummary], most: int = 4) -> list[str]:
    ours = [frame for frame in frames if str(ROOT) in frame.filename and str(HERE) not in frame.filename]
    inside = [frame for frame in ours if ".venv" not in frame.filename]
    return [f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno} {frame.name}" for frame in inside[:most]]


def read(text: bytes) -> dict[str, int]:
    rows = (line.split("\t", 1) for line in text.decode().splitlines())
    return {what: int(number) for number, what in rows}


def readable(names: Iterable[str]) -> dict[str, str]:
    """Kernels as a person writes them, without their arguments, by the names that the compiler gave them."""
    names = list(names)
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, env=plain, check=True)
    return dict(zip(names, done.stdout.splitlines()))


def run(words: Iterable[str], *, timeout: float = 600, **settings: str) -> subprocess.CompletedProcess[str]:
    """Python with these words on the device; its output as text. Raises build.CannotBuild."""
    return subprocess.run(
        [sys.executable, *words],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )


def torchrun(ranks: int, *words: str) -> list[str]:
    """The words that start `words` on so many ranks."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]


def wants_values(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is to have right values."""
    return environ.get("SIMULATED_VALUES") == "1"


if __name__ == "__main__":
    words = sys.argv[1:]
    wanted = {"SIMULATED_VALUES": "1"} if words[:1] == ["--values"] else {}
    os.execve(sys.executable, [sys.executable, *words[len(wanted) :]], environment(**wanted))

"""Ranks that start at once: one process imports what a training imports, then forks a rank whenever a test wants one.

As a program it reads jobs from stdin, one JSON object a line, and answers each with two lines: its ranks' process ids, and,
when all have ended, their exit codes. Each rank imports the job's MODULE and calls MODULE.main(). As a module it offers
`Zygote`, the test's side of that conversation. A rank's stdout and stderr go to one file; the variables STDOUT and STDERR of
its environment name others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Ended:
    """One rank's exit code (negative: the signal that ended it) and everything it printed."""

    code: int
    text: str


class Zygote:
    """Starts ranks of modules that lie here or in `folder`; use as a context manager. One job at a time."""

    def __init__(self, folder: Path = HERE) -> None:
        self._folder = folder
        self._job: Job | None = None

    def __enter__(self) -> Zygote:
        path = os.pathsep.join((str(HERE.parents[1]), str(HERE.parent), str(self._folder)))
        environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # Newer Pythons warn of forking beside threads; here those are torch's, and idle.
        warnings = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
        command = [sys.executable, *warnings, str(HERE / "zygote.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True, cwd=HERE
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def start(
        self,
        folder: Path,
        environs: list[dict[str, str]],
        *arguments: str,
        module: str = "world_rank",
        own: Sequence[Sequence[str]] = (),
        deadline: float = 45,
    ) -> Job:
        """Start one rank per environment, all in one process group; those alive after `deadline` seconds are killed.

        own  further arguments of each rank alone
        """
        if self._job is not None:  # of a test that failed before it waited
            with contextlib.suppress(ProcessLookupError):
                self._job.send(signal.SIGKILL)
            self._answer()
        outs = [folder / f"rank{i}.txt" for i in range(len(environs))]
        job = {
            "module": module,
            "environs": environs,
            "outs": [str(out) for out in outs],
            "arguments": [[*arguments, *more] for more in own or [()] * len(environs)],
            "deadline": deadline,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self._job = Job(json.loads(self._answer()), outs, self)
        return self._job

    def run(self, folder: Path, environs: list[dict[str, str]], *arguments: str, **how: Any) -> list[Ended]:
        """`start`, and wait until all have ended."""
        return self.start(folder, environs, *arguments, **how).wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@dataclass
class Job:
    """Ranks at work."""

    pids: list[int]
    outs: list[Path]
    zygote: Zygote

    def send(self, number: signal.Signals, *, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all at once."""
        if rank is None:
            os.killpg(self.pids[0], number)
        else:
            os.kill(self.pids[rank], number)

    def wait(self) -> list[Ended]:
        """What each rank left, when all have ended; call it once."""
        codes = json.loads(self.zygote._answer())
        self.zygote._job = None
        return [Ended(code, out.read_text()) for code, out in zip(codes, self.outs)]


def by_hand(rank: int, world: int, port: int, **more: str) -> dict[str, str]:
    """The variables of one rank, all on this host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }


def _fork_rank(module: str, environ: dict[str, str], out: str, arguments: list[str], group: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, group)
        for number, variable in ((1, "STDOUT"), (2, "STDERR")):
            with open(out, "a") as file, open(environ.get(variable, os.devnull), "w") as other:
                os.dup2((other if variable in environ else file).fileno(), number)
        os.environ.update(environ)
        tempfile.tempdir = None  # what was imported may have asked for it
        sys.argv = [f"{module}.py", *arguments]
        code = importlib.import_module(module).main() or 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pids: list[int] = []
        for environ, out, arguments in zip(job["environs"], job["outs"], job["arguments"]):
            group = pids[0] if pids else 0
            pids.append(_fork_rank(job["module"], environ, out, arguments, group))
            os.setpgid(pids[-1], pids[0])  # here too: the next rank, or a test, may want the group before the rank does
        print(json.dumps(pids), flush=True)
        until = time.monotonic() + job["deadline"]
        codes: dict[int, int] = {}
        while len(codes) < len(pids):
            for pid in set(pids) - set(codes):
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        print(json.dumps([codes[pid] for pid in pids]), flush=True)


if __name__ == "__main__":
    import training_rank  # noqa: F401

    _serve()

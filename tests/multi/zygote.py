"""Ranks that start at once: one process imports torch, then forks a rank whenever a test wants one.

As a program it reads jobs from stdin, one JSON object a line, and answers each with one line. As a module it offers
`Zygote`, the test's side of that conversation. A rank's stdout and stderr go to one file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Ended:
    """One rank's exit code (negative: the signal that ended it) and everything it printed."""

    code: int
    text: str


class Zygote:
    """Starts ranks of world_rank.py; use as a context manager."""

    def __enter__(self) -> Zygote:
        environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
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

    def run(self, folder: Path, environs: list[dict[str, str]], *arguments: str, deadline: float = 45) -> list[Ended]:
        """Run one rank per environment until all have ended; those alive after `deadline` seconds are killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        outs = [str(folder / f"rank{i}.txt") for i in range(len(environs))]
        job = {"environs": environs, "outs": outs, "arguments": arguments, "deadline": deadline}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [Ended(code, Path(out).read_text()) for code, out in zip(codes, outs)]


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


def _fork_rank(environ: dict[str, str], out: str, arguments: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(out, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(environ)
        sys.argv = ["world_rank.py", *arguments]
        import world_rank

        world_rank.main()
        code = 0
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
    import world_rank  # noqa: F401  imports torch, once

    for line in sys.stdin:
        job = json.loads(line)
        pids = [_fork_rank(environ, out, job["arguments"]) for environ, out in zip(job["environs"], job["outs"])]
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
    _serve()

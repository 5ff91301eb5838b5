"""Ranks of this machine for a measurement: one process each, with the variables that a launcher would have set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from paceline.dist.launcher import THIS_HOST

# A rank that fails ends the others within seconds (paceline/dist/failure.py); one that does not listen any more is killed.
PATIENCE_SECONDS = 30


def run_ranks(words: Sequence[str], ranks: int) -> int:
    """Run `paceline WORDS` as `ranks` processes here; -> rank 0's exit code, or else the first that is not 0."""
    with socket.socket() as probe:
        probe.bind((THIS_HOST, 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": THIS_HOST,
        "MASTER_PORT": str(port),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "paceline", *words],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        codes = [started[0].wait()]
        codes += [process.wait(PATIENCE_SECONDS) for process in started[1:]]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    return next((code for code in codes if code), 0)

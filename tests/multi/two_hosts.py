"""Two hosts on this machine, as scripts/two_hosts.sh makes them: each with a network, processes and an sshd of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from small_run import ROOT, Trainer, told

SCRIPT = str(ROOT / "scripts" / "two_hosts.sh")
MISSING = "two hosts on one machine need root, iproute2, util-linux, openssh-server and openssh-client"


class TwoHosts:
    """node1, where people sit and type, and node2."""

    def __init__(self, folder: Path, trainer: Trainer):
        self.folder, self.trainer = folder, trainer
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text("node1 slots=1\nnode2 slots=1\n")

    def command(self, host: str, *words: str) -> list[str]:
        """What runs `words` there."""
        return [SCRIPT, "on", str(self.folder), host, *words]

    def said(self, host: str, *words: str) -> str:
        """What they print there, for words that end at once."""
        done = subprocess.run(self.command(host, *words), capture_output=True, text=True, timeout=30, check=False)
        return done.stdout + done.stderr

    def plug(self, how: str, host: str) -> None:
        """`cut` or `join` a host's cable."""
        subprocess.run([SCRIPT, how, str(self.folder), host], check=True, timeout=30)

    def processes(self, host: str) -> list[str]:
        """Command lines of what runs there beside its sshd."""
        lines = self.said(host, "ps", "axo", "stat=,args=").splitlines()
        running = [line.split(maxsplit=1)[1] for line in lines if not line.startswith("Z")]
        return [line for line in running if not line.startswith(("sshd:", "ps axo"))]

    def launching(self, run: Path, flags: str = "", *, start: str = "torchrun", nodes: int = 2) -> subprocess.Popen[str]:
        """`paceline launch --scheduler hostfile`, typed on node1."""
        words = ["launch", *self.trainer.train(run, flags)[1:], "--scheduler", "hostfile", "--launcher", start]
        words += ["--hostfile", str(self.hostfile), "--nodes", str(nodes)]
        return self.trainer.launching(self.command("node1", sys.executable), words)

    def launched(self, run: Path, flags: str = "", **more) -> tuple[int, str]:
        """The same, to its end: exit code and all that it said."""
        process = self.launching(run, flags, **more)
        out = told(process, seconds=240)
        return process.returncode, out


def port_holder(port: int) -> list[str]:
    """A command that listens at `port` until it is ended."""
    code = f"import socket, time; s = socket.create_server(('', {port})); print('listens', flush=True); time.sleep(600)"
    return [sys.executable, "-c", code]


__all__ = ["MISSING", "SCRIPT", "TwoHosts", "port_holder"]

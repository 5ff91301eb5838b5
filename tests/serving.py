"""`paceline serve` for tests: its real server on a real socket, in a thread of this process, or the command in one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messages import check_text

from paceline.cli.commands.serve import ServeFlags, make_server
from paceline.inference.predictor import Predictor

PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Reply:
    """What a request was answered with."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def refused(self, status: int, *wanted: str) -> None:
        """It is this refusal, in a sentence with all these words."""
        assert self.status == status, self
        said = self.json["error"]
        assert said.endswith(".") and "Traceback" not in said, said
        check_text(said, *wanted)


@dataclass(frozen=True)
class Served:
    """A running service."""

    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Of its page."""
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, body: bytes | None = None, *, method: str = "", **headers: str) -> Reply:
        """One request on a connection of its own; in names of headers _ stands for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, body, named)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def form(self, *files: tuple[str, bytes], path: str = "/predict") -> Reply:
        """Files in a form."""
        parts = [
            f'--line\r\nContent-Disposition: form-data; name="photo"; filename="{name}"\r\n\r\n'.encode() + data + b"\r\n"
            for name, data in files
        ]
        return self.ask(path, b"".join([*parts, b"--line--\r\n"]), Content_Type="multipart/form-data; boundary=line")

    def raw(self, *parts: bytes, end: bool = False) -> bytes:
        """Bytes on a socket -> what comes back until the service hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as line:
            for part in parts:
                line.sendall(part)
            if end:
                line.shutdown(socket.SHUT_WR)
            came = []
            with contextlib.suppress(ConnectionResetError):
                while part := line.recv(1 << 16):
                    came.append(part)
            return b"".join(came)

    def healthy(self) -> bool:
        """Whether it answers at all."""
        return self.ask("/health").json == {"status": "ok"}

    def resident(self) -> int:
        """Bytes of the command's memory."""
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served(predictor: Predictor, token: str = "", **flags: Any) -> Iterator[Served]:
    """The service in a thread; flags: those of `serve`."""
    server = make_server(predictor, ServeFlags(**flags), token)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield Served(port)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


@contextmanager
def commanded(*words: object, **environ: str) -> Iterator[Served]:
    """`paceline serve WORDS --port 0` as a process, ready to answer; killed at the end where it still runs."""
    command = [sys.executable, "-m", "paceline", "serve", *map(str, words), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as a user's
    with subprocess.Popen(command, text=True, env={**surroundings, **environ}, **pipes) as process:  # type: ignore[call-overload]
        try:
            lines: list[str] = []
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if "press Ctrl-C" in line:
                    break
            assert len(lines) > 1, lines
            yield Served(int(lines[-2].split("http://")[1].split("/")[0].rpartition(":")[2]), process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


def until(condition: Any) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

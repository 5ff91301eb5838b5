"""A small web server on the loopback that keeps files in memory, answers ranges, and can be told to fail.

It speaks what http:// and, at /BUCKET/KEY, reading from s3:// need; signatures are not looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

# "cut": no answer; "reset": no answer, and the connection is torn down; "half": half of the body, then cut;
# "whole": the range that was asked for is not heard; a number: that status; "slow": the answer comes late.
Fault = int | str


@lru_cache(64)
def _digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@dataclass
class FaultyServer:
    """Files by path ("/bucket/a.tar"), and what goes wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    # What is sent in place of a file, under its mark of version: what a memory or a proxy did to it.
    sent: dict[str, bytes] = field(default_factory=dict)
    # What happens to the next requests, one each, the first one first; "" is a right answer.
    faults: list[Fault] = field(default_factory=list)
    # What happens to all others.
    always: Fault = ""
    late_seconds: float = 0.0
    # "GET /bucket/a.tar bytes=0-9" of every request that came.
    requests: list[str] = field(default_factory=list)
    # How each of them was signed; "" where it was not.
    authorizations: list[str] = field(default_factory=list)
    # Most that were under way at once.
    most: int = 0
    port: int = 0
    _under_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultyServer:
        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            handle_error = lambda *_: None  # noqa: E731  (a client that went is no trouble)

        self._server = Server(("127.0.0.1", self.port), self._handler())
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """The server is gone; its port refuses."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def be_reached(self, monkeypatch: pytest.MonkeyPatch, patience: str = "1") -> None:
        """As s3://, gs:// and az:// too, by clients that give up after so many seconds."""
        for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
            monkeypatch.delenv(name)
        for name, value in {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key-of-mine",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_CONFIG_FILE": "/nowhere",
            "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
            "AZURE_STORAGE_ENDPOINT": self.url,
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_SKIP_SIGNATURE": "true",
            "GOOGLE_BASE_URL": self.url,
            "GOOGLE_SKIP_SIGNATURE": "true",
            "PACELINE_STORE_PATIENCE": patience,
        }.items():
            monkeypatch.setenv(name, value)

    def _begin(self, line: str, authorization: str) -> Fault:
        with self._lock:
            self.requests.append(line)
            self.authorizations.append(authorization)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            return self.faults.pop(0) if self.faults else self.always

    def _end(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None:
                """Not a word."""

            def do_GET(self) -> None:
                line = f"{self.command} {unquote(self.path)} {self.headers.get('Range', '')}".strip()
                fault = server._begin(line, self.headers.get("Authorization", ""))
                try:
                    self._answer(fault)
                finally:
                    server._end()

            do_HEAD = do_GET

            def _answer(self, fault: Fault) -> None:
                if fault in ("cut", "reset"):
                    if fault == "reset":
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                time.sleep(server.late_seconds if fault in ("", "slow") else 0)
                data = server.files.get(unquote(self.path))
                if isinstance(fault, int) or data is None:
                    self._send(fault if isinstance(fault, int) else 404, b"", {})
                    return
                tag = f'"{_digest(data)}"'
                data = server.sent.get(unquote(self.path), data)
                headers = {"ETag": tag, "Last-Modified": formatdate(1_700_000_000, usegmt=True), "Accept-Ranges": "bytes"}
                if self.headers.get("If-Match", tag) != tag:
                    self._send(412, b"", headers)
                    return
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if asked is None or fault == "whole":
                    self._send(200, data, headers)
                    return
                first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
                if first >= len(data):
                    self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                    return
                headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                self._send(206, data[first : last + 1], headers, half=fault == "half")

            def _send(self, status: int, body: bytes, headers: dict[str, str], half: bool = False) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if half else body)
                if half:
                    self.close_connection = True

        return Handler

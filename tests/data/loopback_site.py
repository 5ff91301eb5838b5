"""A real HTTP server on the loopback that misbehaves as it is told to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Site:
    """What the server has and does; a test changes the fields as it goes."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"one"'
    cut_after: int = -1  # bytes of a body after which the connection is closed; -1: never
    cuts: int = 10**9  # how many answers are cut
    fail: list[int] = field(default_factory=list)  # answers of the next requests, before any file is given
    always: int = 0  # the answer to each request
    wrong_start: int = 0  # added to the range that the answer claims, but for the first byte's
    claimed: int = 0  # added to the length of the whole that the answer claims
    length: bool = True  # Content-Length is sent
    pause: float = 0.0  # seconds before each kilobyte
    stalls: int = 0  # how many of the next bodies stop for a while after their first bytes
    stall: float = 0.0  # seconds
    flip: int = -1  # position of a byte that is sent wrong
    encoding: str = ""
    redirect: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # path and Range of each request
    at_once: int = 0
    most_at_once: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: object) -> None:
        """Tests are silent."""

    def do_GET(self) -> None:
        site = self.site
        site.asked.append((self.path, self.headers.get("Range", "")))
        self.close_connection = True
        if site.redirect and self.path != "/moved":
            self._answer(302, b"", {"Location": site.redirect})
            return
        if site.always or site.fail:
            self._answer(site.always or site.fail.pop(0), b"")
            return
        content = site.files.get(self.path.partition("?")[0])
        if content is None:
            self._answer(404, b"")
            return
        if 0 <= site.flip < len(content):
            content = content[: site.flip] + bytes([content[site.flip] ^ 1]) + content[site.flip + 1 :]
        headers = {"ETag": site.etag} if site.etag else {}
        if site.encoding:
            headers["Content-Encoding"] = site.encoding
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        fresh = self.headers.get("If-Range") in (None, site.etag)
        if not (site.ranges and asked and fresh):
            self._answer(200, content, headers, claimed=len(content) + site.claimed)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        shift = site.wrong_start if first else 0
        headers["Content-Range"] = f"bytes {first + shift}-{last + shift}/{len(content) + site.claimed}"
        self._answer(206, content[first : last + 1], headers)

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None, claimed: int | None = None) -> None:
        site = self.site
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if site.length:
            self.send_header("Content-Length", str(len(body) if claimed is None else claimed))
        self.send_header("Connection", "close")
        self.end_headers()
        if site.cut_after >= 0 and site.cuts > 0 and len(body) > site.cut_after:
            site.cuts -= 1
            body = body[: site.cut_after]
        site.at_once += 1
        site.most_at_once = max(site.most_at_once, site.at_once)
        try:
            if site.stalls > 0 and len(body) > 1:
                site.stalls -= 1
                self.wfile.write(body[:10])
                self.wfile.flush()
                time.sleep(site.stall)
                body = body[10:]
            for at in range(0, len(body), 1024 if site.pause else 1 << 16):
                time.sleep(site.pause)
                self.wfile.write(body[at : at + (1024 if site.pause else 1 << 16)])
                self.wfile.flush()
        except OSError:
            self.close_connection = True
        finally:
            site.at_once -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # eight connections at once would wait a second for a longer queue


@contextmanager
def serving() -> Iterator[Site]:
    """A server for the block."""
    site = Site()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def small_blocks(monkeypatch: pytest.MonkeyPatch, block: int = 1000) -> None:
    """A file of some kilobytes is many blocks."""
    from paceline.data.download import fetch, http, part

    for module in (fetch, part):
        monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(http, "PAUSES", (0.0,) * 3)
    monkeypatch.setattr(http, "SILENCE", 5.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")

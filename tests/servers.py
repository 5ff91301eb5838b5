"""A server that speaks S3, on the loopback: moto's, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

# Ends when this process does: its standard input is closed then.
SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_numbers = count()


@dataclass(frozen=True)
class S3Bucket:
    """An empty bucket, and how to reach it."""

    name: str
    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which the bucket is found, for this process or another."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
        }

    def url(self, key: str = "") -> str:
        """s3://BUCKET/KEY."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        """One object; -> its URL."""
        _request("PUT", f"{self.endpoint}/{self.name}/{quote(key)}", data)
        return self.url(key)

    def upload(self, folder: Path, prefix: str = "") -> list[str]:
        """Every plain file below a folder, under its path from there; -> the URLs, sorted."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [self.put(prefix + path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]


@contextmanager
def s3_server() -> Iterator[str]:
    """-> its endpoint. Skips where moto is not installed."""
    for needed in ("moto", "flask", "flask_cors"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (extra paceline[dev])")
    command = [sys.executable, "-W", "ignore", "-c", SERVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            port = next(line.split()[1] for line in server.stdout if line.startswith(b"port "))
            yield f"http://127.0.0.1:{int(port)}"
        finally:
            server.stdin.close()
            server.wait(20)


def new_bucket(endpoint: str) -> S3Bucket:
    """A bucket that no other test has."""
    bucket = S3Bucket(f"photos-{next(_numbers)}", endpoint)
    _request("PUT", f"{endpoint}/{bucket.name}", b"")
    return bucket


def _request(method: str, url: str, data: bytes) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": "application/octet-stream"}, method=method)
    urllib.request.urlopen(request, timeout=20).close()

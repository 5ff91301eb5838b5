"""What a read of a photo from an S3 server on the loopback costs, by obstore as paceline uses it, by boto3 and by http.client.

    python scripts/compare_store_clients.py --reads 2000 --bytes 110000 --late-ms 0

Every side reads the same random ranges in 16 threads, and the bytes must be the same. Printed: reads/s, and this process's
processor time a read; the server is a process of its own. boto3 is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import ByteRange

THREADS = 16
SIZE = 64 << 20
NAME = b"s3://bucket/a.tar"
SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from faulty_server import FaultyServer
with FaultyServer(files={"/bucket/a.tar": bytes(range(256)) * (int(sys.argv[2]) // 256)}) as server:
    server.late_seconds = float(sys.argv[3])
    print(server.port, flush=True)
    sys.stdin.read()
"""
Read = Callable[[int], bytes]


def through_store(length: int) -> Read:
    store = open_store(NAME)
    return lambda offset: store.read(ByteRange(NAME, offset, length))


def through_http_client(port: int, length: int) -> Read:
    own = threading.local()

    def read(offset: int) -> bytes:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection("127.0.0.1", port)
        own.connection.request("GET", "/bucket/a.tar", headers={"Range": f"bytes={offset}-{offset + length - 1}"})
        return own.connection.getresponse().read()

    return read


def through_boto3(length: int) -> Read:
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=THREADS))

    def read(offset: int) -> bytes:
        answer = client.get_object(Bucket="bucket", Key="a.tar", Range=f"bytes={offset}-{offset + length - 1}")
        return answer["Body"].read()

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=110_000)
    parser.add_argument("--late-ms", type=float, default=0.0, help="how late the server answers")
    asked = parser.parse_args()
    tests = str(Path(__file__).parents[1] / "tests")
    command = [sys.executable, "-c", SERVE, tests, str(SIZE), str(asked.late_ms / 1000)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        port = int(server.stdout.readline())
        os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_REGION="us-east-1")
        os.environ.update(AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any")
        sides = {"paceline (obstore)": through_store(asked.bytes), "http.client": through_http_client(port, asked.bytes)}
        if importlib.util.find_spec("boto3"):
            sides["boto3"] = through_boto3(asked.bytes)
        drawn = random.Random(0)
        offsets = [drawn.randrange(SIZE - asked.bytes) for _ in range(asked.reads)]
        wanted = [(bytes(range(256)) * (asked.bytes // 256 + 2))[at % 256 :][: asked.bytes] for at in offsets[:50]]
        for name, read in sides.items():
            with ThreadPoolExecutor(THREADS) as threads:
                list(threads.map(read, offsets[:THREADS]))  # connections are open before the clock runs
                began, used = time.perf_counter(), time.process_time()
                found = list(threads.map(read, offsets))
                seconds, used = time.perf_counter() - began, time.process_time() - used
            assert found[:50] == wanted, name
            print(
                f"{name:20} {asked.reads / seconds:8,.0f} reads/s {used / asked.reads * 1e6:8,.0f} us of processor a read"
            )
        server.stdin.close()


if __name__ == "__main__":
    main()

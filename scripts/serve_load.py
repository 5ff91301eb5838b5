"""`paceline serve` under load: many clients for a while, each with a photo at a time; what they waited, and the service's memory.

    python scripts/serve_load.py RUN PHOTOS_DIR --clients 64 --seconds 60

Each client keeps one connection and sends the next photo when the last is answered; refused (429, 503), it waits as it is told.
The service is a process of its own; its resident memory is read before, every second, and after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

WARM = 3.0  # seconds before memory is taken as "before"


async def client(port: int, photos: list[bytes], start: int, end: float, waited: list[float], told: Counter[int]) -> None:
    """One client until `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = start
    while time.monotonic() < end:
        photo = photos[number % len(photos)]
        number += 1
        began = time.monotonic()
        head = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: {len(photo)}\r\n\r\n"
        )
        writer.write(head.encode() + photo)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        await reader.readexactly(int(headers["content-length"]))
        status = int(lines[0].split()[1])
        told[status] += 1
        if status == 200:
            waited.append(time.monotonic() - began)
        if headers.get("connection") == "close":
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if "retry-after" in headers:
            await asyncio.sleep(float(headers["retry-after"]))
    writer.close()


async def load(port: int, pid: int, photos: list[bytes], clients: int, seconds: float) -> None:
    """Warm up, load, and print."""
    waited: list[float] = []
    told: Counter[int] = Counter()

    def resident() -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

    async def clients_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(client(port, photos, 7 * place, end, waited, told) for place in range(clients)))

    idle = resident()
    await clients_for(WARM)
    before, memory = resident(), []
    waited.clear()
    told.clear()
    work = asyncio.create_task(clients_for(seconds))
    began = time.monotonic()
    while not work.done():
        await asyncio.sleep(1)
        memory.append(resident())
    await work
    took = time.monotonic() - began
    waited.sort()
    p50, p99 = (waited[min(len(waited) - 1, round(share * len(waited)))] for share in (0.5, 0.99))
    print(f"{clients} clients, {took:.1f} s: answers {dict(told)}, {told[200] / took:.1f} photos/s")
    print(f"waited p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms, longest {1000 * waited[-1]:.0f} ms")
    tenth = max(1, len(memory) // 10)
    print(
        f"memory MiB: idle {idle}, loaded {before}, first tenth {max(memory[:tenth])}, last tenth {max(memory[-tenth:])}, "
        f"most {max(memory)}, after {resident()}"
    )
    print(f"load of the machine {os.getloadavg()[0]:.1f}, cores {os.cpu_count()}")


def main() -> None:
    """Start the service, load it, end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    flags, others = parser.parse_known_args()  # the others are the service's
    photos = [path.read_bytes() for path in sorted(flags.photos.rglob("*.jp*g"))[:50]]
    command = [sys.executable, "-m", "paceline", "serve", flags.run, "--port", "0", *others]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        port = next(
            int(line.split("http://")[1].split(":")[1].split("/")[0]) for line in service.stdout if "http://" in line
        )
        try:
            asyncio.run(load(port, service.pid, photos, flags.clients, flags.seconds))
        finally:
            service.terminate()
            print(f"ended with {service.wait(60)}")


if __name__ == "__main__":
    main()

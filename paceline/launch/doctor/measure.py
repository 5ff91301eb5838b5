"""What a node measures for a preflight: folders, the speed of its cores, and how it reaches the others.

Folders are tried with a probe of a megabyte, as large files find a full disk that small ones do not.
Nodes reach each other over plain TCP, without any library between. Each node listens at a port of the system's choice, as gloo's
and NCCL's are, and at rank 0's where that is known; every other node connects to both. Who connects sends the start's token first,
asks for the time, and sends some megabytes to its neighbors.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from paceline._utils.text import abbreviate

MIB = 1 << 20
# A checkpoint of a full-size recipe is some 0.3 GB; elsewhere there are small files, indexes and sockets.
MIN_RUN_MIB, MIN_MIB = 1024, 100
ROUNDS, ROUND_SECONDS = 7, 0.2
BLOCK = bytes(1 << 18)
CONNECT_SECONDS = 5.0
TRIPS = 8
SENT_MIB, SENDINGS = 32, 3
_NUMBER, _TIME = struct.Struct("!Q"), struct.Struct("!d")


def find_folder_problems(run: Path, written: Iterable[tuple[str, Path]], read: Iterable[tuple[str, Path]]) -> list[str]:
    """What hinders a run from writing and reading where it will, a sentence each.

    run      the run's folder
    written  (what it is for, folder) of others that a run writes into
    read     (what it is for, file or folder) of what it only reads
    """
    results = [_full("run", run, MIN_RUN_MIB), *(_full(what, folder, MIN_MIB) for what, folder in written)]
    for what, path in read:
        if not path.exists():
            results.append(f"{what} {abbreviate(str(path), 200)}: not found")
        elif not os.access(path, os.R_OK):
            results.append(f"{what} {abbreviate(str(path), 200)}: not readable")
    return [text for text in results if text]


def _full(what: str, folder: Path, least: int) -> str:
    there = next(path for path in (folder, *folder.parents) if path.exists())  # what is not there yet is made below it
    name = f"{what} folder {abbreviate(str(folder), 200)}"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(MIB))
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(there).free / MIB
    except OSError as problem:
        return f"{name}: {problem.strerror}"
    return "" if free >= least else f"{name}: {free:.0f} MiB free, at least {least} MiB are required"


def measure_cores(cpus: Collection[int], *, rounds: int = ROUNDS, seconds: float = ROUND_SECONDS) -> dict[int, float]:
    """Hardware thread -> MB/s of SHA-256 of one block, the median of `rounds` of so many seconds; all at once, a bound thread each.

    The standard library's hash lets other threads run meanwhile, needs no memory bandwidth, and is nothing but the core's clock
    and whoever else uses the core. The median passes over what disturbs for a moment; a program that stays, a clock that is held
    down or a core that the host above a virtual machine takes away is in every round.
    """
    result: dict[int, float] = {}
    together = threading.Barrier(len(cpus))

    def measure(cpu: int) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu})  # 0 is the calling thread
        together.wait()
        result[cpu] = statistics.median(_rate(seconds) for _ in range(rounds))

    threads = [threading.Thread(target=measure, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {cpu: round(result[cpu], 1) for cpu in sorted(result)}


def _rate(seconds: float) -> float:
    began, blocks = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds or not blocks:
        hashlib.sha256(BLOCK).digest()
        blocks += 1
    return blocks * len(BLOCK) / taken / 1e6 if taken else 0.0


def estimate_clock_offset(trips: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """-> (how far this clock is ahead of the other, by how much that may be wrong), seconds.

    NTP's four times, of which the middle two are one here (RFC 5905, section 8). The answer was written somewhere between both ends
    of the trip, so the offset is known to half the trip's length; of several trips the shortest tells most.

    trips  (this clock when it asked, the other's when it answered, this clock when the answer came); at least one
    """
    requested, theirs, came = min(trips, key=lambda trip: trip[2] - trip[0])
    return (requested + came) / 2 - theirs, max(0.0, (came - requested) / 2)


class Listener:
    """This node's open ports, for the length of a `with` block."""

    def __init__(self, token: str, port: int = 0):
        """port   rank 0's, listened at too; 0 = not known. `trouble` says why it cannot be; '' where it can."""
        self._token, self.trouble = token.encode(), ""
        self._sockets = [self._open(0)]
        if port:
            try:
                self._sockets.append(self._open(port))
            except OSError as problem:
                self.trouble = f"port {port}, planned for rank 0, is already in use ({problem.strerror})"
        self.ports = tuple(opened.getsockname()[1] for opened in self._sockets)

    def _open(self, port: int) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:  # two nodes of one machine listen at it both, as only one of them will when ranks start
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            opened.bind(("", port))
            opened.listen(4096)
        except OSError:
            opened.close()
            raise
        return opened

    def __enter__(self) -> Listener:
        for opened in self._sockets:
            threading.Thread(target=self._accept, args=(opened,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; a thread that waits in accept() would keep the port open, so it is woken first."""
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self, opened: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = opened.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError):
            connection.settimeout(60)
            if not hmac.compare_digest(_take(connection, len(self._token)), self._token):
                return
            while request := connection.recv(1):
                if request == b"t":
                    connection.sendall(_TIME.pack(time.time()))
                elif request == b"b":
                    _take(connection, min(SENT_MIB * MIB, *_NUMBER.unpack(_take(connection, _NUMBER.size))))
                    connection.sendall(b"k")


def _take(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes. Raises EOFError."""
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(buffer) if count <= MIB else b""


def measure_round_trips(address: str, port: int, token: str) -> list[tuple[float, float, float]]:
    """Connect, and ask for the time TRIPS times: as `estimate_clock_offset` takes them. Raises OSError where nobody
    of ours answers."""
    with _connected(address, port, token) as connection:
        results = []
        for _ in range(TRIPS):
            requested = time.time()
            connection.sendall(b"t")
            results.append((requested, *_TIME.unpack(_take_or_refused(connection, _TIME.size)), time.time()))
        return results


def measure_bandwidth(address: str, port: int, token: str) -> float:
    """MB/s of one TCP stream, the best of SENDINGS. Raises OSError."""
    data, best = bytes(SENT_MIB * MIB), 0.0
    with _connected(address, port, token) as connection:
        for _ in range(SENDINGS):
            began = time.perf_counter()
            connection.sendall(b"b" + _NUMBER.pack(len(data)))
            connection.sendall(data)
            _take_or_refused(connection, 1)
            best = max(best, len(data) / (time.perf_counter() - began) / 1e6)
    return round(best, 1)


def _connected(address: str, port: int, token: str) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    connection.settimeout(60)
    connection.sendall(token.encode())
    return connection


def _take_or_refused(connection: socket.socket, count: int) -> bytes:
    try:
        return _take(connection, count)
    except EOFError:
        raise ConnectionRefusedError(0, "another program uses the port") from None


def short_reason(problem: OSError) -> str:
    """The reason in a few words."""
    return problem.strerror or str(problem) or type(problem).__name__


def ring_neighbors(own: int, all_of_them: Iterable[int]) -> list[int]:
    """The next two nodes in the ring of their numbers, without this one: who this node sends to."""
    ring = sorted(all_of_them)
    index = ring.index(own)
    return [ring[(index + step) % len(ring)] for step in (1, 2) if len(ring) > step]

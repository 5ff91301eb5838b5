"""Whether nodes reach each other, how fast, and how far apart their clocks are: plain TCP, without any library between.

Each node listens at a port of the system's choice, as gloo's and NCCL's are, and at rank 0's where that is known; every other node
connects to both. Who connects says the start's token first, asks for the time, and sends some megabytes to its neighbours.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

CONNECT_SECONDS = 5.0
TRIPS = 8
MIB = 1 << 20
SENT_MIB, SENDINGS = 32, 3
_NUMBER, _TIME = struct.Struct("!Q"), struct.Struct("!d")


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
                self.trouble = f"port {port}, where rank 0 would listen, is taken there ({problem.strerror})"
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
        """Listen no more; a thread that waits in accept() would keep the port open, so it is woken first."""
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


def trips_to(address: str, port: int, token: str) -> list[tuple[float, float, float]]:
    """Connect, and ask for the time TRIPS times: as clocks.py takes them. Raises OSError where nobody of ours answers."""
    with _connected(address, port, token) as connection:
        found = []
        for _ in range(TRIPS):
            asked = time.time()
            connection.sendall(b"t")
            found.append((asked, *_TIME.unpack(_take_or_refused(connection, _TIME.size)), time.time()))
        return found


def rate_to(address: str, port: int, token: str) -> float:
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
        raise ConnectionRefusedError(0, "another program answers there") from None


def why(problem: OSError) -> str:
    """The reason in a few words."""
    return problem.strerror or str(problem) or type(problem).__name__


def neighbours(own: int, all_of_them: Iterable[int]) -> list[int]:
    """The next two nodes in the ring of their numbers, without this one: who this node sends to."""
    ring = sorted(all_of_them)
    place = ring.index(own)
    return [ring[(place + step) % len(ring)] for step in (1, 2) if len(ring) > step]

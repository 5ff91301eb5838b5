"""What a client may not do to the service: each is refused in a sentence, or cut off, and the next one is answered."""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from serving import Reply, Served, commanded, served, until
from stand_in_predictors import predictor_of
from torch import nn

from paceline.config.recipe import Recipe
from paceline.config.ssd import BoxInput, SSDModel
from paceline.data.transforms.image_io import MAX_PIXELS
from paceline.inference.serve import limits
from paceline.inference.trained_model import TorchPredictor

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


class Held(nn.Module):
    """A detector that finds as many things as it is told, and waits while `go` is clear."""

    def __init__(self, things: int = 1) -> None:
        super().__init__()
        self.things, self.go, self.forwards = things, threading.Event(), 0
        self.go.set()

    def predict(self, batch) -> torch.Tensor:
        self.forwards += 1
        assert self.go.wait(60)
        return torch.tensor([0.1, 0.1, 0.5, 0.5, 0.9, 1]).repeat(len(batch.images), self.things, 1)


def predictor(network: nn.Module | None = None, name: str = "cat") -> TorchPredictor:
    return predictor_of(
        Recipe(task="detection", model=SSDModel(), input=BoxInput(image_size=64)), network or Held(), classes=[name, "dog"]
    )


def photo(side: int = 32) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "white").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def hasty(monkeypatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 30.0)
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.5)


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split()[1])


def test_an_upload_beyond_the_limit_is_refused_by_its_length_alone_or_where_it_passes_it():
    with served(predictor(), max_upload_bytes=10_000) as service:
        told = service.raw(HEAD + b"Content-Length: 100000000\r\nConnection: close\r\n\r\n", b"x" * 1000, end=True)
        assert status_of(told) == 413 and b"exceeds 10,000 bytes" in told
        chunk = b"%x\r\n" % 8000 + b"x" * 8000 + b"\r\n"
        assert status_of(service.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk)) == 413
        service.ask("/predict", b"x" * 10_001).refused(413, "--max-upload-bytes")
        service.ask("/predict", b"x" * 10_000).refused(422)
        assert service.ask("/predict", photo()).status == 200


def test_a_refusal_arrives_though_the_client_still_sends():
    limits.LINGER_SECONDS = 30.0  # undone with `hasty`
    with served(predictor(), max_upload_bytes=1000) as service:
        for _ in range(5):  # closing with bytes unread would lose some of the answers
            service.ask("/predict", b"x" * 5_000_000, Connection="close").refused(413)


def test_a_body_that_stops_half_way_is_told_so_and_one_that_drips_too():
    with served(predictor(), timeout_seconds=0.5) as service:
        half = service.raw(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 500)
        assert status_of(half) == 408 and b"500 bytes arrived in 0.5 seconds" in half
        with socket.create_connection(("127.0.0.1", service.port), 30) as line:
            line.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
            line.settimeout(0.05)
            came = b""
            while not came:
                with contextlib.suppress(TimeoutError):
                    line.sendall(b"x")
                    came = line.recv(1000)
            assert status_of(came) == 408
        # Two lengths: the chunks count, and none comes.
        assert status_of(service.raw(HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nabcde")) in (400, 408)
        assert service.healthy()


def test_a_head_that_does_not_come_to_its_end_is_cut_off_at_the_first_request_and_later():
    limits.HEAD_SECONDS = 1.0  # undone with `hasty`
    with served(predictor()) as service:
        for sent in (b"", b"GET / HT", HEAD + b"X-More: "):
            cut = service.raw(sent)
            assert status_of(cut) == 408 and b"within 1 seconds" in cut
        with socket.create_connection(("127.0.0.1", service.port), 30) as line:
            for _ in range(2):
                line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                came = b""
                while not came.endswith(b"}"):
                    came += line.recv(5000)
                assert status_of(came) == 200
                time.sleep(1.3)  # between two requests a client may rest
            line.sendall(b"GET /heal")
            assert status_of(line.recv(5000)) == 408
        assert service.healthy()


def test_who_comes_when_all_connections_are_taken_is_told_so_and_gets_in_when_one_is_free():
    with served(predictor(), max_connections=3) as service, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 30)) for _ in range(3)]
        for line in lines:
            line.sendall(b"GET /health HTTP/1.1\r\n")
        refused = service.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(refused) == 503 and b"Too many connections" in refused and b"Retry-After: 1" in refused
        lines[0].close()
        until(lambda: service.ask("/health").status == 200)


def test_who_does_not_take_the_answer_is_cut_off():
    with served(predictor(Held(things=6000), "x" * 1000), timeout_seconds=0.5) as service, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(30)
        line.connect(("127.0.0.1", service.port))
        line.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(photo()) + photo())
        line.recv(100)
        time.sleep(1.5)
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                taken += len(part)
        whole = len(service.ask("/predict", photo()).body)
        assert whole > 4_000_000 > taken
        assert service.healthy()


@contextlib.contextmanager
def busy(service: Served, network: Held, waiting: int) -> Iterator[list[Reply]]:
    """One photo is being computed, and so many wait; their replies are there after the block."""
    network.go.clear()
    forwards, replies = network.forwards, list[Reply]()
    with ThreadPoolExecutor(waiting + 1) as pool:
        try:
            pool.submit(lambda: replies.append(service.ask("/predict", photo())))
            until(lambda: network.forwards > forwards)
            for _ in range(waiting):
                pool.submit(lambda: replies.append(service.ask("/predict", photo())))
            until(lambda: service.ask("/predict", b"").status == 429)
            yield replies
        finally:
            network.go.set()


def test_beyond_the_queue_requests_are_told_to_come_again_and_those_in_it_are_answered():
    network = Held()
    with served(predictor(network), max_queue=2, max_batch_size=1, batch_timeout_ms=0) as service:
        with busy(service, network, 2) as replies:
            again = service.ask("/predict", photo())
            again.refused(429, "Retry")
            assert again.headers["retry-after"] == "1"
            assert service.healthy()
        assert [reply.status for reply in replies] == [200, 200, 200]
        service.form(*[("a.png", photo())] * 3).refused(400, "files is 2")
        assert service.form(*[("a.png", photo())] * 2).status == 200


def test_a_client_who_hangs_up_gives_his_place_in_the_queue_back():
    network = Held()
    with served(predictor(network), max_queue=1, max_batch_size=1, batch_timeout_ms=0) as service:
        network.go.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(service.ask, "/predict", photo())
            until(lambda: network.forwards == 1)
            with socket.create_connection(("127.0.0.1", service.port), 30) as line:
                line.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(photo()) + photo())
                until(lambda: service.ask("/predict", b"").status == 429)
            until(lambda: service.ask("/predict", b"").status == 400)  # there is room
            network.go.set()
            assert first.result().status == 200
        assert network.forwards == 1


def test_uploads_that_are_too_many_together_are_refused_and_their_memory_is_given_back():
    with served(predictor(), max_upload_bytes=100_000, timeout_seconds=5) as service, contextlib.ExitStack() as stack:
        for _ in range(limits.LARGEST_HELD):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 30))
            line.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 99_000)
        until(lambda: service.ask("/predict", b"x" * 50_000).status == 503)
        service.ask("/predict", b"x" * 50_000).refused(503, "Too many uploads")
        assert service.ask("/predict", photo()).status == 200  # a small one still has room
        stack.close()
        until(lambda: service.ask("/predict", b"x" * 50_000).status == 422)


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header says so."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [head, b"IDAT" + zlib.compress(b"\0" * 1000), b"IEND"]
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_photos_that_are_bombs_are_refused_by_their_headers():
    with served(predictor()) as service:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for side in (20_000, 65_000, 2**31 - 1):
            service.ask("/predict", png_of(side, side)).refused(422, "pixels")
        jpeg = bytearray(np.asarray(bytearray(_jpeg())))
        at = jpeg.index(b"\xff\xc0")
        jpeg[at + 5 : at + 9] = struct.pack(">HH", 65_000, 65_000)
        service.ask("/predict", bytes(jpeg)).refused(422, f"limit of {MAX_PIXELS:,}")
        # Scans without end: each costs a pass over the whole picture.
        scans = _jpeg(progressive=True)
        first = scans.index(b"\xff\xda")
        endless = scans[:first] + scans[first:-2] * 200 + scans[-2:]
        service.ask("/predict", endless).refused(422, "scans")
        assert service.ask("/predict", photo()).status == 200
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB; one bomb would take gigabytes


def _jpeg(**more: bool) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(buffer, "JPEG", **more)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
     b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", HEAD + b"Content-Length: -5\r\n\r\n"],
    ids=["TLS", "no address", "a long header", "an address of other bytes", "a length below 0"],
)  # fmt: skip
def test_what_is_no_http_is_refused(shared_service, sent):
    assert status_of(shared_service.raw(sent)) in (400, 404, 431)
    assert shared_service.healthy()


@pytest.mark.parametrize(
    ("kind", "body"),
    [("multipart/form-data", b"x"), ("multipart/form-data; boundary=a", b"nothing of that"),
     ("multipart/form-data; boundary=a", b"--a\r\nContent-Disposition: form-data\r\n\r\nx\r\n--a--\r\n"),
     ("multipart/form-data; boundary=a", b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n--a--\r\n'),
     ("multipart/form-data; boundary=a", b"--a\r\n" + b"X: y\r\n" * 10_000), ("image/jpeg", b"")],
    ids=["no boundary", "no parts", "no name", "no file", "headers without end", "nothing"],
)  # fmt: skip
def test_a_form_that_is_none_is_refused(shared_service, kind, body):
    shared_service.ask("/predict", body, Content_Type=kind).refused(400)
    assert shared_service.healthy()


@pytest.fixture(scope="module")
def shared_service() -> Iterator[Served]:
    with served(predictor()) as service:
        yield service


@pytest.mark.nightly("moves gigabytes")
def test_fifty_uploads_of_a_hundred_megabytes_at_once_leave_the_service_as_it_was(ssd_run):
    """Half of them say their length, half do not; among them clients that are slow, half-sent or bombs."""
    limits.LINGER_SECONDS = 10.0
    part = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"

    def upload(service: Served, number: int) -> int:
        line = socket.create_connection(("127.0.0.1", service.port), 120)
        with line:
            line.sendall(
                HEAD + (b"Content-Length: 104857600\r\n\r\n" if number % 2 else b"Transfer-Encoding: chunked\r\n\r\n")
            )
            answer: list[bytes] = []
            reader = threading.Thread(target=lambda: answer.append(line.recv(5000)))
            reader.start()
            with contextlib.suppress(OSError):
                for _ in range(100):
                    line.sendall(b"x" * (1 << 20) if number % 2 else part)
                    if answer:
                        break
            reader.join()
        return status_of(answer[0])

    with commanded(ssd_run.folder, "--timeout-seconds", 20) as service, contextlib.ExitStack() as stack:
        photo_of_run = next(
            path for path in sorted(ssd_run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png")
        ).read_bytes()
        assert service.ask("/predict", photo_of_run).status == 200
        before = service.resident()
        for _ in range(60):  # half-sent heads and bodies beside them
            for sent in (b"GET / HT", HEAD + b"Content-Length: 1000000\r\n\r\nx"):
                stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 30)).sendall(sent)
        with ThreadPoolExecutor(50) as pool:
            uploads = [pool.submit(upload, service, number) for number in range(50)]
            for _ in range(5):
                assert service.ask("/predict", photo_of_run).status in (200, 429, 503)
                service.ask("/predict", png_of(60_000, 60_000)).refused(422, "pixels")
            assert {one.result() for one in uploads} <= {413, 503}
        until(lambda: service.ask("/predict", photo_of_run).status == 200)
        assert service.resident() - before < 400 << 20

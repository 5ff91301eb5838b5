"""Who may ask, and what one client may cost.

That is bytes and seconds of an upload, seconds of a head and of taking an answer, and connections.

A refusal has to reach who is still sending: its system throws an answer away when a connection is closed with bytes unread. So
the answer goes out at once, and what is still coming is read and dropped for some seconds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for a request's line and headers, which fit into one packet
LINGER_SECONDS = 10.0  # what is sent after a refusal is read for so long
# Uploads held at once, of all clients together, in largest uploads: memory beside the model stays below it.
LARGEST_HELD = 8
AGAIN = {"Retry-After": "1"}


class UploadLimits:
    """The bodies of requests, each of at most `most` bytes in at most `seconds`; all that are held together are bounded too."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self._seconds, self._held = most, seconds, 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body; it counts as held until the block ends.

        Raises HTTPException: 413 too large, 408 too slow, 503 no memory for it now; ClientDisconnect.
        """
        if int(request.headers.get("content-length", 0)) > self.most:  # digits: h11 has looked
            raise self._too_large()
        data = bytearray()
        try:
            await asyncio.wait_for(self._read(request, data), self._seconds)
            yield bytes(data)
        except asyncio.TimeoutError:
            said = f"The upload timed out: {len(data):,} bytes arrived in {self._seconds:g} seconds. Send it again."
            raise HTTPException(408, said, {"Connection": "close"}) from None
        finally:
            self._held -= len(data)

    async def _read(self, request: Request, data: bytearray) -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            if len(data) + len(part) > self.most:
                raise self._too_large()
            if self._held + len(part) > LARGEST_HELD * self.most:
                raise HTTPException(503, "Too many uploads at once. Retry in a second.", AGAIN)
            data += part
            self._held += len(part)
            if not message.get("more_body"):
                return

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The upload exceeds {self.most:,} bytes (--max-upload-bytes).")


class DrainMiddleware:
    """Around an application: where it answers before it has read the request, the answer arrives all the same."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        ended = not names & {b"content-length", b"transfer-encoding"}

        async def received() -> Message:
            nonlocal ended
            message = await receive()
            ended = not message.get("more_body")  # a client that has gone, too
            return message

        async def rest() -> None:
            while not ended:
                await received()

        async def sent(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                ended = ended or message["status"] == 408  # nothing more will come
                if not ended:
                    MutableHeaders(scope=message)["Connection"] = "close"  # or uvicorn would read on without end
            elif not ended and not message.get("more_body"):
                await send({**message, "more_body": True})
                try:
                    await asyncio.wait_for(rest(), LINGER_SECONDS)
                except asyncio.TimeoutError:
                    ended = True
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, received, sent)


def make_guarded_protocol(connections: int, seconds: float) -> type[H11Protocol]:
    """uvicorn's HTTP, which by itself waits for slow clients for ever.

    connections   how many may be open at once; who comes then is told so
    seconds       in which a client has to take what is written to it
    """

    class SlowClientGuard(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(0)  # told of whatever cannot be written at once
            self._head: asyncio.TimerHandle | None = None
            self._writing: asyncio.TimerHandle | None = None
            self._refused = len(self.connections) > connections
            if self._refused:
                self.connections.discard(self)
                self._refuse(503, "Too many connections. Retry in a second.")
            else:
                self._await_head()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._cancel()
            elif self._head is None:
                self._await_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing = self._writing or self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)
            self.resume_writing()

        def _await_head(self) -> None:
            late = f"The headers of a request must arrive within {HEAD_SECONDS:g} seconds."
            self._head = self.loop.call_later(HEAD_SECONDS, self._refuse, 408, late)

        def _cancel(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _refuse(self, status: int, reason: str) -> None:
            """Say it, and let the client hang up; it is cut off a second later."""
            self._refused, text = True, json.dumps({"error": reason})
            line = f"HTTP/1.1 {status} {'Service Unavailable' if status == 503 else 'Request Timeout'}"
            head = [line, "Content-Type: application/json", f"Content-Length: {len(text)}", "Connection: close"]
            if status == 503:
                head.append("Retry-After: 1")
            self.transport.write("\r\n".join([*head, "", text]).encode())
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(1, self.transport.abort)

    return SlowClientGuard


# Who may ask: holders of the token; without one, only this machine by its own names. And what browsers may do with the answers.
#
# A page from elsewhere in a browser on this machine reaches the loopback too: by a name of its own that resolves to 127.0.0.1
# (another Host), or as it is (another Origin). Both are refused. There are no CORS headers, so none may read an answer either.

# For everybody: the page asks for the token itself, and probes have none.
OPEN = ("/", "/health", "/openapi.json")
MIN_LETTERS = 16  # of a token


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class SecurityMiddleware:
    """Around an application: refuses strangers, and adds the headers that a browser obeys."""

    def __init__(self, app: ASGIApp, *, token: str, page: str) -> None:
        """token: "" for none; then only the loopback may be listened on   page: HTML with its scripts and styles"""
        self._app, self._token = app, token
        self._headers = {
            "Content-Security-Policy": _policy(page),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
            "Cache-Control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, sent)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        if self._token:
            known = hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {self._token}".encode())
            if path in OPEN or known:
                return None
            error = "This service requires a token: Authorization: Bearer TOKEN."
            return JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            local = is_loopback(urlsplit(f"//{host}").hostname or "")
            foreign = origin is not None and urlsplit(origin).netloc != host
        except ValueError:  # no address at all
            local, foreign = False, True
        if not local:
            return JSONResponse({"error": "Without a token, only requests to localhost and 127.0.0.1 are accepted."}, 403)
        return JSONResponse({"error": "Requests from other websites are not accepted."}, 403) if foreign else None


def _policy(page: str) -> str:
    """Only the page's own script and style run; nothing is fetched from elsewhere."""
    kinds = {"script": "", "style": ""}
    for kind in kinds:
        for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page, flags=re.S):
            kinds[kind] += f" 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    return (
        f"default-src 'none'; script-src{kinds['script']}; style-src{kinds['style']}; connect-src 'self'; "
        "img-src 'self' blob: data:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

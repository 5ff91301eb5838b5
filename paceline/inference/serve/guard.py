"""Who may ask: holders of the token; without one, only this machine by its own names. And what browsers may do with the answers.

A page from elsewhere in a browser on this machine reaches the loopback too: by a name of its own that resolves to 127.0.0.1
(another Host), or as it is (another Origin). Both are refused. There are no CORS headers, so none may read an answer either.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            error = "This service wants its token: Authorization: Bearer TOKEN."
            return JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            local = is_loopback(urlsplit(f"//{host}").hostname or "")
            foreign = origin is not None and urlsplit(origin).netloc != host
        except ValueError:  # no address at all
            local, foreign = False, True
        if not local:
            return JSONResponse({"error": "Without a token only localhost and 127.0.0.1 are answered."}, 403)
        return JSONResponse({"error": "Pages from elsewhere may not ask here."}, 403) if foreign else None


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

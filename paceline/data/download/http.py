"""HTTP requests for a file or a range of it, checked against what was requested.

Standard library only: urllib follows redirects, knows the environment's proxies and checks certificates. The length, range and
version that a server reports are compared with the request, because a body in the wrong place would be noticed late.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import escape_line
from paceline._utils.version import __version__

# Seconds without a byte until a connection counts as cut.
SILENCE = 30.0
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
# Temporary failures: too many requests, timeouts, faults of the server or of what stands before it.
TEMPORARY = {408, 425, 429, 500, 502, 503, 504, 520, 522, 524}
REASONS = {
    401: "a login is required",
    403: "access is denied; some URLs require an account or accepted terms",
    404: "file not found",
    410: "the file was removed",
    451: "the file is withheld for legal reasons",
}
# Seconds before each retry; and attempts at a host that was never reached and whose name leads nowhere.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
ATTEMPTS_AT_UNKNOWN = 2

Result = TypeVar("Result")


class DownloadRefused(Exception):
    """This address does not give the file, now or later."""


class ConnectionLost(Exception):
    """The network or the server failed; a retry may succeed. `after`: seconds that the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class UnknownHost(ConnectionLost):
    """The host's name leads to no address, or there is no network."""


class RemoteFileChanged(Exception):
    """The file under this address is another version than the one that was begun."""


@dataclass
class HttpResponse:
    """An open answer. Its body holds `length` bytes of a file of `size`; None where the server does not say."""

    response: HTTPResponse
    is_range: bool  # the requested range; else the whole file
    length: int | None
    size: int | None
    validator: str  # strong ETag or date of the version
    is_framed: bool  # whether an end that comes too soon would be noticed

    def read(self, most: int) -> bytes:
        """The next bytes, as soon as there are some; b"" at the end. Raises Cut."""
        try:
            return self.response.read1(most)
        except (OSError, HTTPException) as error:
            raise ConnectionLost(f"the connection was lost ({_reason(error)})") from None


@cache
def _opener() -> urllib.request.OpenerDirector:
    """Neither FTP nor files are opened: an address that redirects to one is refused."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def with_retries(
    attempt: Callable[[], Result], stop: threading.Event, reporter: Reporter = SILENT, *, first: bool = False
) -> Result:
    """`attempt()`, again after a pause where the network fails; `stop` ends the waiting.

    The reporter gets one line, when the waiting begins.
    first  the host was never reached: where its name leads nowhere, it hardly will a little later
    Raises the last Cut when all pauses are used up.
    """
    for number, pause in enumerate(PAUSES, 1):
        try:
            return attempt()
        except ConnectionLost as cut:
            unknown = first and isinstance(cut, UnknownHost)
            if unknown and number == ATTEMPTS_AT_UNKNOWN:
                raise
            if number == 1:
                seconds = sum(PAUSES[: ATTEMPTS_AT_UNKNOWN - 1] if unknown else PAUSES)
                reporter.line(f"{cut}; retrying for {seconds:.0f} second{'' if seconds == 1 else 's'}")
            if stop.wait(max(pause, cut.after)):
                raise
    return attempt()


@contextmanager
def get(url: str, first: int | None = None, last: int | None = None, validator: str = "") -> Iterator[HttpResponse]:
    """The answer to a request for bytes first..last, both included, or for the whole file.

    validator  of the version that the range must belong to; another version raises Changed
    Raises Refused or Cut.
    """
    headers = {"User-Agent": f"paceline/{__version__}", "Accept-Encoding": "identity"}
    if first is not None:
        headers["Range"] = f"bytes={first}-{last}"
        if validator:
            headers["If-Range"] = validator
    try:
        response = _opener().open(urllib.request.Request(url, headers=headers), timeout=SILENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in TEMPORARY:
            wait = error.headers.get("Retry-After", "")  # seconds, a minute at most; a date counts as nothing
            after = min(60.0, float(wait)) if re.fullmatch(r"\d{1,6}", wait) else 0.0
            raise ConnectionLost(f"the server responded with {error.code}", after) from None
        raise DownloadRefused(f"{REASONS.get(error.code, 'the server rejects the request')} ({error.code})") from None
    except (OSError, HTTPException) as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise DownloadRefused(f"its certificate is not valid ({_reason(error)})") from None
        if isinstance(getattr(error, "reason", error), socket.gaierror):
            raise UnknownHost(f"the host was not found ({_reason(error)}); check the network connection") from None
        raise ConnectionLost(_reason(error)) from None
    except ValueError as error:
        raise DownloadRefused(f"this is not a valid URL ({escape_line(str(error))})") from None
    with response:
        yield _answer(response, first, last, validator)


def _answer(response: HTTPResponse, first: int | None, last: int | None, validator: str) -> HttpResponse:
    headers = response.headers
    if (coding := headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadRefused(f"the server changes the transferred file (Content-Encoding {escape_line(coding)[:40]})")
    etag = headers.get("ETag", "")
    # What If-Range takes: a strong ETag, else the date.
    new = etag[:200] if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")[:100]
    if response.status == 206 and first is not None and last is not None:
        result = CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if result is None:
            raise DownloadRefused("the server sends a partial response without its range")
        size = None if result[3] == "*" else int(result[3])
        begins, ends = int(result[1]), int(result[2])
        if begins != first or ends > last or (size is not None and ends >= size):
            raise DownloadRefused(f"the server sends bytes {begins:,} to {ends:,} instead of {first:,} to {last:,}")
        if validator and new and new != validator:
            raise RemoteFileChanged
        return HttpResponse(response, True, ends - begins + 1, size, new, True)
    if response.status != 200:
        raise DownloadRefused(f"the server responded with {response.status}")
    if validator:
        raise RemoteFileChanged  # a whole file, because its version is another one
    content_length = headers.get("Content-Length", "")
    length = int(content_length) if re.fullmatch(r"\d{1,18}", content_length) else None
    is_framed = length is not None or response.chunked  # pyright: ignore[reportAttributeAccessIssue]
    return HttpResponse(response, False, length, length, new, is_framed)


def _reason(error: Exception) -> str:
    """An error of the network in a few words."""
    inner = getattr(error, "reason", error)
    return escape_line(str(getattr(inner, "strerror", None) or str(inner) or type(inner).__name__))[:200]


def printable_url(url: str) -> str:
    """An address for a message: without a password, and without the query that signed addresses have."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return escape_line(url)[:200]
    return escape_line(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))[:300]

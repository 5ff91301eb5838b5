"""What obstore says of a failed request, in one line that says what to do."""

from __future__ import annotations

import errno
import re

from paceline.store.stores import StoreTrouble

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RETRIES = re.compile(r"after (\d+) retries")
# What stands in obstore's account of a connection that failed -> what a user calls it; the first one that fits counts.
_CAUSES = (
    ("Connection refused", "connection refused"),
    ("failed to lookup address", "its name is not known"),
    ("dns error", "its name is not known"),
    ("TimedOut", "timed out"),
    (
        "InvalidCertificate",
        "its certificate is not trusted here; a private authority's goes into AWS_CA_BUNDLE or SSL_CERT_FILE",
    ),
    ("Network is unreachable", "the network is not reachable"),
    ("error sending request", "the connection broke"),
    ("body error", "the connection broke"),
)
# Both refuse in this way whoever shows no credentials, or wrong ones.
_REFUSALS = {
    401: "not let in (401): the credentials are wrong or have expired",
    403: "no permission (403): the credentials may not {does} it, or the bucket is not yours",
}


def in_words(error: Exception, name: bytes, seconds: float, *, does: str = "read") -> OSError:
    """The OSError to raise for a request about the file `name` that failed after `seconds`; does: what was to be done with it."""
    told = str(error)
    found = _STATUS.search(told)
    status = int(found[1]) if found else 0
    code = _CODE.search(told)
    if "169.254.169.254" in told:
        return StoreTrouble(
            errno.EACCES, "no credentials: this machine has no role that gives any (see AWS_* or GOOGLE_*)"
        )
    if isinstance(error, FileNotFoundError):
        what = "no such bucket" if code and code[1] == "NoSuchBucket" else "no such object (404)"
        return FileNotFoundError(errno.ENOENT, what, name)
    if status in _REFUSALS:
        detail = f", {code[1]}" if code else ""
        return StoreTrouble(errno.EACCES, _REFUSALS[status].format(does=does) + detail, name)
    if "without LOCATION" in told or (code and code[1] in ("PermanentRedirect", "AuthorizationHeaderMalformed")):
        return StoreTrouble(errno.EINVAL, "the bucket is in another region: set AWS_REGION to it", name)
    if "NotPartial" in told or "RangeNotSupported" in told:
        return StoreTrouble(errno.EINVAL, "its server sends whole files only, no ranges of bytes", name)
    if isinstance(error, ValueError) or "InvalidPath" in type(error).__name__:
        return OSError(errno.EINVAL, f"a name that cannot be read ({_first_line(told)})", name)
    retried = _RETRIES.search(told)
    tries = f"{int(retried[1]) + 1} tries in {seconds:.0f} s" if retried else f"tried for {seconds:.0f} s"
    if status:
        detail = f" {code[1]}" if code else ""
        if status >= 500 or status in (408, 429):
            return StoreTrouble(errno.EIO, f"the server fails ({status}{detail}): {tries}", name)
        what = "no such bucket" if code and code[1] == "NoSuchBucket" else f"the server answers {status}{detail}"
        return StoreTrouble(errno.EIO, what, name)
    for words, cause in _CAUSES:
        if words in told:
            return StoreTrouble(errno.EIO, f"the server does not answer ({cause}): {tries}", name)
    return OSError(errno.EIO, _first_line(told), name)


def _first_line(told: str) -> str:
    return told.splitlines()[0] if told else "for no reason given"

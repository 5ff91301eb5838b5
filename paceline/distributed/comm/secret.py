"""What the ranks of one job share and nobody else knows: the secret that their messages are signed with.

It never enters the store. Either the launcher hands it to every rank in the variable PACELINE_SECRET, or rank 0 draws it
and leaves it in a file of mode 0600: on one host in a private temporary folder, on several in a folder that all of them
see by contract (the run folder, or the nearest folder above it that is there already). The file is gone as soon as all
ranks have signed in. Rank 0's greeting in the store names the file, with a fresh number: the key that signs messages is
drawn from secret, job and number, so what an earlier start signed is worth nothing.

The greeting can be forged, and gains nothing by it: it must be signed with the secret in the file that it names, which
must be this user's own, a plain file, and closed to everybody else.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline._utils.errors import RankError
from paceline._utils.hashing import sha256
from paceline._utils.platform import O_NOFOLLOW, O_NONBLOCK, get_user_id
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.messages import verify_message

VARIABLE = "PACELINE_SECRET"
# Shorter ones can be found by trying all, by whoever reads one signed message.
SHORTEST = 16
LONGEST = 4096
HOW_TO_SET = (
    f"Give every rank the same one: export {VARIABLE}=$(openssl rand -hex 32) before srun or torchrun, mpirun -x {VARIABLE}"
)
GREETING = "greeting"


@dataclass(frozen=True)
class Handshake:
    """Rank 0's first message. Its text is public."""

    job: str  # the job's name
    number: str  # drawn anew at each start
    path: str  # file that holds the secret; empty: it is in the environment

    def text(self) -> str:
        """As it stands in the store."""
        return json.dumps(asdict(self))

    def key(self, secret: bytes) -> bytes:
        """What this start's messages are signed with."""
        return hmac.digest(secret, b"paceline messages\0" + self.text().encode(), "sha256")


class ForeignPeer(Exception):
    """A greeting that this rank must not trust, and why, for the text of an error."""


class SecretMismatch(ForeignPeer):
    """It is this job's, and the variable differs between this rank and rank 0: waiting mends nothing."""


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """The launcher's secret, None without one.

    raise RankError   too short or too long
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    if not SHORTEST <= len(text) <= LONGEST:
        raise RankError(f"{VARIABLE} has {len(text)} characters: {SHORTEST} to {LONGEST} random ones. {HOW_TO_SET}.")
    return text.encode()


@contextmanager
def offer_token(launch: Launch, folder: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[bytes, Handshake]]:
    """Rank 0's secret and greeting; a file that holds it is there until the block ends.

    folder  one that all hosts see, needed only where there are several and the environment has no secret
    raise RankError   nowhere to leave it
    """
    number = secrets.token_hex(16)
    secret = read_secret(environ)
    if secret is not None:
        yield secret, Handshake(launch.job, number, "")
        return
    secret = secrets.token_hex(32).encode()
    try:
        path, made = _place(launch, folder)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
    except OSError as problem:
        where = folder if launch.nodes > 1 else tempfile.gettempdir()
        raise RankError(
            f"rank 0 (of {launch.world}) cannot leave the secret for the other ranks in {where} ({problem.strerror}).\n"
            f"{HOW_TO_SET}."
        ) from None
    try:
        yield secret, Handshake(launch.job, number, str(path))
    finally:
        if made is None:
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(made, ignore_errors=True)


def _place(launch: Launch, folder: Path | None) -> tuple[Path, Path | None]:
    """(file to make, the folder that was made for it alone)."""
    if launch.nodes == 1:
        made = Path(tempfile.mkdtemp(prefix="paceline-"))
        return made / "secret", made
    if folder is None:
        raise RankError(
            f"rank 0 (of {launch.world}) and the other hosts share no folder to leave a secret in.\n{HOW_TO_SET}."
        )
    # The same name at the next start of the same job: what a killed start left is replaced.
    name = sha256(f"{launch.job} {launch.address}:{launch.port}")[:16]
    path = folder.absolute() / f".secret-{name}"
    path.unlink(missing_ok=True)
    return path, None


def verify_handshake(raw: bytes, job: str, environ: Mapping[str, str]) -> bytes:
    """The key of the messages that a greeting in the store announces.

    raise ForeignPeer   it is not this job's, or this rank cannot check that
    """
    greeting = _parsed(raw)
    if greeting is None or greeting.job != job:
        raise ForeignPeer("another job's greeting")
    secret = read_secret(environ)
    if bool(greeting.path) == (secret is not None):
        here, there = (f"has {VARIABLE}", "has none") if secret is not None else (f"has no {VARIABLE}", "has one")
        raise SecretMismatch(f"this rank {here}, rank 0 {there}")
    secret = secret or _read(greeting.path)
    if verify_message(secret, GREETING, raw) is None:
        if greeting.path:
            raise ForeignPeer("its greeting is signed with another secret than the one in its file")
        raise SecretMismatch(f"its greeting is signed with another {VARIABLE} than this rank's")
    return greeting.key(secret)


def _parsed(raw: bytes) -> Handshake | None:
    try:
        facts = json.loads(raw.partition(b" ")[2])
        greeting = Handshake(**facts)
    except (ValueError, TypeError, RecursionError):
        return None
    fields = (greeting.job, greeting.number, greeting.path)
    return greeting if all(isinstance(field, str) for field in fields) else None


def _read(path: str) -> bytes:
    """The secret in a file that rank 0 left; nothing else is ever read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != get_user_id() or facts.st_mode & 0o077:
                raise ForeignPeer(f"{path!r}, which holds rank 0's secret, is not a private file of this rank's user")
            secret = file.read(LONGEST)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in a forged name
        reason = getattr(problem, "strerror", None) or problem
        raise ForeignPeer(
            f"rank 0 left its secret in {path!r}, which this rank cannot read ({reason}): all ranks must see that "
            f"folder, or have the same {VARIABLE}"
        ) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", secret):
        raise ForeignPeer(f"{path!r} holds no secret of rank 0's")
    return secret

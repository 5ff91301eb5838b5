"""Signed messages between the ranks of one job, in a store that anybody who reaches its port may write into; and their secret.

Each message is stored as "MAC TEXT": MAC is HMAC-SHA256 (RFC 2104) over the key's name and the text, in hexadecimal, with
a key that only this start of this job knows. So a message is of no use under another name, in
another job or in a later start. What does not bear our signature counts as not there, which is printed once.

Counters are not used: nobody can sign one, and torch ends the connection of whoever adds to what is no number.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist

from paceline._utils.errors import RankError
from paceline._utils.hashing import sha256
from paceline._utils.platform import O_NOFOLLOW, O_NONBLOCK, get_user_id
from paceline.distributed.comm.launcher import SECRET_VARIABLE, Launch

MAC_LENGTH = 64  # hexadecimal digits
# compare_set with this as both values reads without ever waiting: what is not there comes back as this, and stays away.
NOTHING = "-"
SAID = "said"  # prefix of keys: a warning that was printed
# Between two looks of `wait`: short at first, and no storm of requests from thousands of ranks when it takes long.
FIRST_POLL, LONGEST_POLL = 0.01, 0.2


class Messages:
    """One connection's signed messages.

    store    the connection, under the job's own prefix
    key      the key of this start of this job
    rank     of this process
    """

    def __init__(self, store: dist.Store, key: bytes, rank: int) -> None:
        self.store = store
        self._key, self.rank = key, rank
        self._warned: set[str] = set()

    def over(self, store: dist.Store) -> Messages:
        """The same messages over another connection; a warning that was printed is not printed again."""
        other = Messages(store, self._key, self.rank)
        other._warned = self._warned
        return other

    def set(self, name: str, text: str) -> None:
        """Leave `text` under `name`, over whatever is there."""
        self.store.set(name, self.signed(name, text))

    def get(self, name: str) -> str | None:
        """What a rank left under `name`; None where nothing is, or nothing of ours. Never waits."""
        raw = self.store.compare_set(name, NOTHING, NOTHING)
        return None if raw == NOTHING.encode() else self.verified(name, raw)

    def are_there(self, names: Sequence[str]) -> bool:
        """Whether something, ours or not, lies under every one of `names`: one request, however many they are."""
        return self.store.check(list(names))

    def get_all(self, names: Sequence[str]) -> list[str | None]:
        """`get` for each name; two requests where all are there."""
        if not names or not self.are_there(names):
            return [self.get(name) for name in names]
        return [self.verified(name, raw) for name, raw in zip(names, self.store.multi_get(list(names)))]

    def claim(self, name: str, text: str) -> str:
        """Leave `text` under `name` unless a rank was there before: -> the text that holds. A foreign one gives way."""
        mine = self.signed(name, text)
        raw = self.store.compare_set(name, "", mine)
        theirs = self.verified(name, raw)
        if theirs is None:
            self.store.set(name, mine)
            return text
        return theirs

    def wait(self, name: str, *, until: float = float("inf"), poll_seconds: float = LONGEST_POLL) -> str:
        """What a rank leaves under `name`, however long that takes.

        until  time.monotonic() at which to give up; raises TimeoutError then
        """
        pause = min(FIRST_POLL, poll_seconds)
        while (text := self.get(name)) is None:
            if time.monotonic() > until:
                raise TimeoutError(name)
            time.sleep(pause)
            pause = min(2 * pause, poll_seconds)
        return text

    def signed(self, name: str, text: str) -> str:
        """What is stored for `text` under `name`."""
        return f"{_mac(self._key, name, text.encode())} {text}"

    def verified(self, name: str, raw: bytes) -> str | None:
        """The text in what is stored under `name`; None, with one warning, where we did not sign it."""
        text = verify_message(self._key, name, raw)
        if text is None:
            self._ignore(name)
        return text

    def _ignore(self, name: str) -> None:
        """Warn that what lies under `name` counts for nothing: once a job, by the rank that noticed it first."""
        kind = name.partition("/")[0]  # beat/0, beat/1, ... are one kind: one warning for a flood
        if kind in self._warned or kind == SAID:
            return
        self._warned.add(kind)
        if self.claim(f"{SAID}/{kind}", str(self.rank)) == str(self.rank):
            print(
                f"rank {self.rank}: warning: ignoring a message in the store without this run's signature (key {name!r}, unknown "
                "sender). Block access to the port of the store from other hosts.",
                file=sys.stderr,
                flush=True,
            )


def verify_message(key: bytes, name: str, raw: bytes) -> str | None:
    """The text in what is stored under `name` if its signature is by `key`, else None."""
    mac, space, text = raw[:MAC_LENGTH], raw[MAC_LENGTH : MAC_LENGTH + 1], raw[MAC_LENGTH + 1 :]
    if space != b" " or not hmac.compare_digest(mac, _mac(key, name, text).encode()):
        return None
    return text.decode()


def _mac(key: bytes, name: str, text: bytes) -> str:
    return hmac.digest(key, name.encode() + b"\0" + text, "sha256").hex()


# What the ranks of one job share and nobody else knows: the secret that their messages are signed with.
#
# It never enters the store. Either the launcher hands it to every rank in the variable PACELINE_SECRET, or rank 0 draws it
# and leaves it in a file of mode 0600: on one host in a private temporary folder, on several in a folder that all of them
# see by contract (the run folder, or the nearest folder above it that is there already). The file is gone as soon as all
# ranks have signed in. Rank 0's greeting in the store names the file, with a fresh number: the key that signs messages is
# drawn from secret, job and number, so what an earlier start signed is worth nothing.
#
# The greeting can be forged, and gains nothing by it: it must be signed with the secret in the file that it names, which
# must be this user's own, a plain file, and closed to everybody else.


# Shorter ones can be found by trying all, by whoever reads one signed message.
SHORTEST = 16
LONGEST = 4096
HOW_TO_SET = (
    f"Set the same secret on every rank: export {SECRET_VARIABLE}=$(openssl rand -hex 32) before srun or torchrun, "
    f"or mpirun -x {SECRET_VARIABLE}"
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
    text = environ.get(SECRET_VARIABLE, "")
    if not text:
        return None
    if not SHORTEST <= len(text) <= LONGEST:
        raise RankError(f"{SECRET_VARIABLE}: must have {SHORTEST} to {LONGEST} characters, got {len(text)}. {HOW_TO_SET}.")
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
            f"rank 0 (of {launch.world}) failed to write the secret for the other ranks to {where} ({problem.strerror}).\n"
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
            f"rank 0 (of {launch.world}) requires a folder that all hosts share, to pass the secret to them.\n{HOW_TO_SET}."
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
        raise ForeignPeer("the handshake of another job")
    secret = read_secret(environ)
    if bool(greeting.path) == (secret is not None):
        here, there = (
            (f"has {SECRET_VARIABLE}", "does not") if secret is not None else (f"has no {SECRET_VARIABLE}", "has one")
        )
        raise SecretMismatch(f"this rank {here}, and rank 0 {there}")
    secret = secret or _read(greeting.path)
    if verify_message(secret, GREETING, raw) is None:
        if greeting.path:
            raise ForeignPeer("its handshake is not signed with the secret in its file")
        raise SecretMismatch(f"its handshake is signed with a different {SECRET_VARIABLE} from that of this rank")
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
                raise ForeignPeer(f"{path!r}, the secret of rank 0, is not a private file of this rank's user")
            secret = file.read(LONGEST)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in a forged name
        reason = getattr(problem, "strerror", None) or problem
        raise ForeignPeer(
            f"rank 0 wrote its secret to {path!r}, which this rank failed to read ({reason}). All ranks must share that "
            f"folder, or set the same {SECRET_VARIABLE}"
        ) from None
    if not re.fullmatch(rb"[0-9a-f]{64}", secret):
        raise ForeignPeer(f"{path!r} does not contain a secret of rank 0")
    return secret

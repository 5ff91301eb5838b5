"""Messages between the ranks of one job, in a store that anybody who reaches its port may write into.

Each message is stored as "MAC TEXT": MAC is HMAC-SHA256 (RFC 2104) over the key's name and the text, in hexadecimal, with
a key that only this start of this job knows (paceline/distributed/comm/secret.py). So a message is of no use under another name, in
another job or in a later start. What does not bear our signature counts as not there, which is printed once.

Counters are not used: nobody can sign one, and torch ends the connection of whoever adds to what is no number.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import hmac
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist

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
                f"rank {self.rank}: ignored a message in the store that this run did not sign (key {name!r}; who left it "
                "cannot be told). The store's port should be out of reach for others.",
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

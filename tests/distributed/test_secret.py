"""Which greetings a rank believes, and what it reads for that: nothing but a private file of its own user."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from messages import raises

from paceline._utils.errors import RankError
from paceline.distributed.comm import rendezvous
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.messages import (
    GREETING,
    SECRET_VARIABLE,
    ForeignPeer,
    Handshake,
    Messages,
    offer_token,
    read_secret,
    verify_handshake,
)

ONE_HOST = Launch(0, 2, "torchrun", 0, 2, 0, 1, "127.0.0.1", 29500, "job")
TWO_HOSTS = Launch(0, 2, "torchrun", 0, 1, 0, 2, "node-a", 29500, "job")
SECRET = "correct horse battery staple"


def stored(secret: bytes, greeting: Handshake) -> bytes:
    """A greeting as it lies in the store."""
    return Messages(dist.HashStore(), secret, 0).signed(GREETING, greeting.text()).encode()


def test_a_greeting_with_the_secret_of_its_file_is_believed() -> None:
    with offer_token(ONE_HOST, None, {}) as (secret, greeting):
        assert verify_handshake(stored(secret, greeting), "job", {}) == greeting.key(secret)
        raw = stored(secret, greeting)
    assert not Path(greeting.path).parent.exists()
    with pytest.raises(ForeignPeer, match="failed"):
        verify_handshake(raw, "job", {})


def test_with_the_launchers_secret_no_file_is_made(tmp_path) -> None:
    environ = {SECRET_VARIABLE: SECRET}
    with offer_token(TWO_HOSTS, tmp_path, environ) as (secret, greeting):
        assert secret == SECRET.encode() and greeting.path == "" and not list(tmp_path.iterdir())
        assert verify_handshake(stored(secret, greeting), "job", environ) == greeting.key(secret)


def test_each_start_has_a_key_of_its_own() -> None:
    keys = []
    for _ in range(2):
        with offer_token(ONE_HOST, None, {SECRET_VARIABLE: SECRET}) as (secret, greeting):
            keys.append(greeting.key(secret))
    assert keys[0] != keys[1]


def test_what_a_killed_start_left_is_replaced(tmp_path) -> None:
    with offer_token(TWO_HOSTS, tmp_path, {}) as (_, greeting):
        left = Path(greeting.path)
    left.write_text("left")
    with offer_token(TWO_HOSTS, tmp_path, {}) as (secret, greeting):
        assert Path(greeting.path) == left and left.read_bytes() == secret
        assert left.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [None, "gone"])
def test_nowhere_to_leave_a_secret_is_a_sentence_with_the_way_out(tmp_path, folder) -> None:
    with (
        pytest.raises(RankError, match=f"export {SECRET_VARIABLE}="),
        offer_token(TWO_HOSTS, folder and tmp_path / folder, {}),
    ):
        pass


def test_only_a_private_plain_file_that_holds_a_secret_is_taken(tmp_path) -> None:
    good, secret = tmp_path / "good", b"0" * 64
    good.write_bytes(secret)
    good.chmod(0o600)

    def key(path: str) -> bytes:
        return verify_handshake(stored(secret, Handshake("job", "1", path)), "job", {})

    assert key(str(good))
    (tmp_path / "open").write_bytes(secret)
    (tmp_path / "open").chmod(0o640)
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    (tmp_path / "other").write_bytes(b"root:x:0:0")
    (tmp_path / "other").chmod(0o600)
    for name in ("open", "link", "pipe", "folder", "other", "gone", "a\0b"):
        with pytest.raises(ForeignPeer):
            key(f"{tmp_path}/{name}")
    if os.geteuid() == 0:
        os.chown(good, 12345, 12345)
        with raises(ForeignPeer, "private"):
            key(str(good))


@pytest.mark.parametrize(
    "raw",
    [b"", b"-", b"x y", b"0 {", b'0 {"job": "job"}', b'0 {"job": "job", "number": 1, "path": ""}', b"0 " + b"[" * 99_999],
)
def test_what_is_no_greeting_is_not_believed(raw) -> None:
    with pytest.raises(ForeignPeer):
        verify_handshake(raw, "job", {SECRET_VARIABLE: SECRET})


def test_a_greeting_of_another_job_or_secret_is_not_believed() -> None:
    raw = stored(b"wrong horse battery staple", Handshake("job", "1", ""))
    with pytest.raises(ForeignPeer, match=f"{SECRET_VARIABLE}"):
        verify_handshake(raw, "job", {SECRET_VARIABLE: SECRET})
    with pytest.raises(ForeignPeer, match="another job"):
        verify_handshake(stored(SECRET.encode(), Handshake("other", "1", "")), "job", {SECRET_VARIABLE: SECRET})


@pytest.mark.parametrize("secret", ["", "wrong horse battery staple"])
def test_a_rank_with_another_secret_waits_for_no_timeout_to_say_so(monkeypatch, secret) -> None:
    raw = stored(SECRET.encode(), Handshake("job", "1", ""))
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    monkeypatch.setattr(rendezvous, "GREETING_SECONDS", 0.3)
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as server:
        launch = replace(ONE_HOST, rank=1, port=server.getsockname()[1])
        store = dist.HashStore()
        store.set(f"{rendezvous._prefix('job')}/{GREETING}", raw)
        monkeypatch.setattr(rendezvous, "_client_within", lambda *_: store)
        with raises(RankError, SECRET_VARIABLE, "rank 0"):
            rendezvous._connect(launch, 3600)


def test_a_stranger_who_greets_for_a_moment_keeps_no_rank_away(monkeypatch) -> None:
    greeting = Handshake("job", "1", "")
    forged, ours = (stored(secret, greeting) for secret in (b"wrong horse battery staple", SECRET.encode()))
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    monkeypatch.setattr(rendezvous, "GREETING_SECONDS", 0.05)
    found = iter([forged, ours])
    monkeypatch.setattr(rendezvous, "_greeted", lambda launch, _: greeted(next(found), launch.job))
    assert isinstance(rendezvous._connect(replace(ONE_HOST, rank=1), 3600), Messages)


def greeted(raw: bytes, job: str) -> Messages | ForeignPeer:
    """What a rank makes of a greeting that stays as it is for as long as it looks."""
    try:
        return Messages(dist.HashStore(), verify_handshake(raw, job, os.environ), 1)
    except ForeignPeer as problem:
        return problem


def test_a_changed_greeting_is_not_believed() -> None:
    mac, _, text = stored(SECRET.encode(), Handshake("job", "1", "")).partition(b" ")
    changed = json.loads(text) | {"number": "2"}
    with pytest.raises(ForeignPeer):
        verify_handshake(mac + b" " + json.dumps(changed).encode(), "job", {SECRET_VARIABLE: SECRET})


def test_a_foreign_store_that_goes_away_is_still_said_to_be_foreign(monkeypatch) -> None:
    raw = stored(SECRET.encode(), Handshake("other", "1", ""))
    answers = [raw, raw]

    class Leaving:
        def compare_set(self, *_: str) -> bytes:
            if not answers:
                raise dist.DistError("Connection reset by peer")
            return answers.pop()

    monkeypatch.setattr(rendezvous, "_client_within", lambda *_: Leaving())
    monkeypatch.setattr(dist, "PrefixStore", lambda _, store: store)
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as server:
        launch = replace(ONE_HOST, rank=1, port=server.getsockname()[1])
        found = rendezvous._greeted(launch, time.monotonic() + 5)
    assert isinstance(found, ForeignPeer) and "another job" in str(found)


@pytest.mark.parametrize("length", [16, 4096])
def test_a_secret_may_be_as_short_and_as_long_as_is_said(length) -> None:
    assert read_secret({SECRET_VARIABLE: "x" * length}) == b"x" * length
    for other in (15, 4097):
        with pytest.raises(RankError, match=f"16 to 4096 characters, got {other}"):
            read_secret({SECRET_VARIABLE: "x" * other})

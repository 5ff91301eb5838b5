"""Strangers at the store: what they leave there ends no run, decides nothing, and is said; and who can reach it at all."""

from __future__ import annotations

import json
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from messages import check_line
from small_run import said, wait_until
from zygote import Job, Zygote, by_hand

from paceline.distributed.comm.interfaces import find_free_port
from paceline.distributed.comm.messages import SECRET_VARIABLE

# The ranks' patience with each other is counted in seconds here.
pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]

IGNORED = "ignoring a message in the store without this run's signature"
ESCAPES = "\x1b[2Jdone\x07"


class Run:
    """Two ranks that go on until they are told to stop, and a stranger's connection to their store.

    late  rank 1 comes when this run's file `come` is there
    """

    def __init__(self, zygote: Zygote, folder: Path, *, late: bool = False, hosts: int = 1, **environ: str) -> None:
        self.folder, self.port = folder, find_free_port()
        self.tmp = folder / "tmp"
        self.tmp.mkdir(exist_ok=True)
        more = {"STOP_FILE": str(folder / "STOP"), "TMPDIR": str(self.tmp), **environ}
        if hosts == 2:
            more |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environs = [by_hand(rank, 2, self.port, **{**by_hand(rank, 2, self.port), **more}) for rank in range(2)]
        if late:
            environs[1]["LATE"] = str(folder / "come")
        self.job: Job = zygote.start(folder, environs, "told")

    def stranger(self) -> dist.Store:
        """A connection to the store under the run's prefix, as soon as rank 0 has greeted."""
        deadline = time.monotonic() + 30
        while True:
            try:
                client = dist.TCPStore(
                    "127.0.0.1", self.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30)
                )
                break
            except dist.DistError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        self.client = client
        store = dist.PrefixStore(f"paceline/127.0.0.1:{self.port}.0", client)
        store.wait(["greeting"])
        return store

    def is_running(self) -> None:
        """Wait until both ranks are at work."""
        wait_until(lambda: all("ready" in out.read_text() for out in self.job.outs if out.exists()), "two ranks")

    def ends_well(self) -> str:
        """Tell the ranks to stop; -> what they said."""
        (self.folder / "come").touch()
        self.is_running()
        (self.folder / "STOP").touch()
        ended = self.job.wait()
        assert [rank.code for rank in ended] == [0, 0], said(ended)
        for number, rank in enumerate(ended):
            assert f"rank {number} read 0.75 after a STOP file" in rank.text, said(ended)
            assert "\x1b" not in rank.text and "\x07" not in rank.text and "Traceback" not in rank.text
        return "".join(rank.text for rank in ended)


FORGED_FAILURES = (
    json.dumps({"rank": 1, "text": ESCAPES, "code": 0}),
    "not json",
    "",
    "0" * 64 + " " + json.dumps({"rank": 1, "text": "x", "code": 0}),
)


def test_a_forged_failure_ends_nothing_and_is_said_once(zygote, tmp_path):
    run = Run(zygote, tmp_path)
    store = run.stranger()
    run.is_running()
    for value in FORGED_FAILURES:
        store.set("failed", value)
        time.sleep(0.6)  # a look of the watch
    text = run.ends_well()
    assert text.count(IGNORED) == 1 and "(key 'failed'" in text


def test_forged_words_of_every_kind_decide_nothing(zygote, tmp_path):
    run = Run(zygote, tmp_path)
    store = run.stranger()
    run.is_running()
    forged = {
        "stop": "3",
        "suspicious": "1",
        "post/score": ESCAPES,
        "first to fail": "1",
        "read/1": "1",
        "beat/1": "bye",
        "beat/0": "-1",
    }
    for name, value in forged.items():
        store.set(name, value)
    time.sleep(1.2)  # two looks of the watch
    text = run.ends_well()
    assert all(text.count(f"(key '{name}'") == 1 for name in ("stop", "suspicious", "post/score")), text


def test_a_stranger_in_the_roll_call_is_no_rank(zygote, tmp_path):
    run = Run(zygote, tmp_path, late=True)
    store = run.stranger()
    store.set("here/1", '["elsewhere", "0"]')
    store.set("roll call", f"all is lost {ESCAPES}")
    store.set("start verdict", "1")
    time.sleep(0.5)
    assert "(key 'here/1'" in run.ends_well()


def test_a_forged_greeting_is_mended_by_rank_0(zygote, tmp_path):
    run = Run(zygote, tmp_path, late=True)
    store = run.stranger()
    own = tmp_path / "own"
    own.write_text("0" * 64)
    own.chmod(0o600)
    store.set("greeting", "0" * 64 + " " + json.dumps({"job": "x", "number": "1", "path": str(own)}))
    run.ends_well()


def test_a_signed_message_is_of_no_use_under_another_name(zygote, tmp_path):
    run = Run(zygote, tmp_path)
    store = run.stranger()
    run.is_running()
    store.set("stop", store.get("beat/1"))
    store.set("failed", store.get("roll call"))
    time.sleep(1.2)
    text = run.ends_well()
    assert "(key 'stop'" in text and "(key 'failed'" in text


def test_what_an_earlier_start_signed_is_of_no_use_in_a_later_one(zygote, tmp_path):
    secret, old, new = {SECRET_VARIABLE: "correct horse battery staple"}, tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    first = Run(zygote, old, **secret)
    store = first.stranger()
    first.is_running()
    kept = {name: store.get(name) for name in ("beat/1", "here/1", "roll call", "start verdict")}
    first.ends_well()
    second = Run(zygote, new, late=True, **secret)
    later = second.stranger()
    for name, value in kept.items():
        later.set(name, value)
    time.sleep(0.5)
    assert "(key 'here/1'" in second.ends_well()


def test_the_secret_is_a_private_file_for_as_long_as_ranks_come_and_never_in_the_store(zygote, tmp_path):
    run = Run(zygote, tmp_path, late=True)
    run.stranger()
    (file,) = (path for path in run.tmp.rglob("*") if path.is_file())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    secret = file.read_bytes()
    assert len(secret) == 64
    if hasattr(run.client, "list_keys"):  # torch 2.9's store does not name them
        stored = [run.client.get(name) for name in run.client.list_keys() if run.client.check([name])]
        assert stored and not any(secret in value for value in stored)
    run.ends_well()
    assert list(run.tmp.iterdir()) == []


def test_a_failure_after_a_forged_one_is_still_told(zygote, tmp_path):
    port = find_free_port()
    environs = [by_hand(rank, 2, port) for rank in range(2)]
    environs[1]["LATE"] = str(tmp_path / "come")
    job = zygote.start(tmp_path, environs, "hang", "1", "raise")
    wait_until(lambda: _listens(port) != "", "a store")
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    store = dist.PrefixStore(f"paceline/127.0.0.1:{port}.0", client)
    store.set("failed", "forged")
    store.set("first to fail", "forged")
    (tmp_path / "come").touch()
    ended = job.wait()
    assert [rank.code for rank in ended] == [3, 3], said(ended)
    assert "KeyError: 'no such layer'" in ended[1].text
    assert check_line(ended[0].text, "rank 0", "rank 1 (of 2)", "KeyError: 'no such layer'")


def _listens(port: int) -> str:
    """The address that somebody listens at on `port`, as the kernel writes it; '' for nobody."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if local.endswith(f":{port:04X}") and state == "0A":
            return local.partition(":")[0]
    return ""


@pytest.mark.parametrize("hosts, address", [(1, "0100007F"), (2, "00000000")])
def test_only_other_hosts_make_the_store_listen_to_more_than_the_loopback(zygote, tmp_path, hosts, address):
    run = Run(zygote, tmp_path, hosts=hosts, SECRET_FOLDER=str(tmp_path))
    run.stranger()
    assert _listens(run.port) == address
    (tmp_path / "STOP").touch()
    ended = run.job.wait()
    assert [rank.code for rank in ended] == [0, 0], said(ended)
    assert not list(tmp_path.glob(".secret*"))


def test_several_hosts_without_a_common_folder_need_the_launchers_secret(zygote, tmp_path):
    port = find_free_port()
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TIMEOUT": "2"}
    environs = [{**by_hand(rank, 2, port), **alone} for rank in range(2)]
    ended = zygote.run(tmp_path, environs, "talk")
    assert [rank.code for rank in ended] == [2, 2]
    assert "secret" in ended[0].text and f"export {SECRET_VARIABLE}=" in ended[0].text
    for environ in environs:
        environ[SECRET_VARIABLE] = "correct horse battery staple"
    assert [rank.code for rank in zygote.run(tmp_path, environs, "talk")] == [0, 0]


@pytest.mark.parametrize(
    "secrets, reasons",
    [
        (
            ("correct horse battery", ""),
            ("rank 1 (of 2) did not connect", f"this rank has no {SECRET_VARIABLE}, and rank 0 has one"),
        ),
        (
            ("", "correct horse battery"),
            ("rank 1 (of 2) did not connect", f"this rank has {SECRET_VARIABLE}, and rank 0 does not"),
        ),
        (("correct horse battery", "wrong horse battery"), ("did not connect", f"a different {SECRET_VARIABLE}")),
        (("short", "short"), ("4096 characters, got 5",) * 2),
    ],
)
def test_ranks_with_different_secrets_say_so(zygote, tmp_path, secrets, reasons):
    port = find_free_port()
    environs = [by_hand(rank, 2, port, TIMEOUT="1.5", **{SECRET_VARIABLE: secrets[rank]}) for rank in range(2)]
    ended = zygote.run(tmp_path, environs, "talk")
    assert [rank.code for rank in ended] == [2, 2], said(ended)
    for rank, reason in zip(ended, reasons):
        assert reason in rank.text and "Traceback" not in rank.text, said(ended)

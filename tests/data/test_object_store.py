"""Buckets and web servers by range: the right bytes or one clear reason, whatever the server does."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path

import numpy as np
import pytest
from faulty_server import FaultyServer
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises

from paceline._utils.errors import DataError, PacelineError
from paceline.data.index.records import RangeRecords, RecordLocations
from paceline.data.storage import credentials, object_store
from paceline.data.storage.cache import DiskCacheStore
from paceline.data.storage.credentials import explain_store_error
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import ByteRange, ByteStore, LocalFiles, RangeError, StoreError

pytest.importorskip("obstore", reason="the extra paceline[remote] is not installed")

DATA = np.random.default_rng(0).bytes(100_000)
SCHEMES = ("s3", "gs", "az", "http")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """Reached as s3://, gs://, az:// and http://, by clients that lose patience after a second."""
    with FaultyServer(files={"/bucket/a.tar": DATA}) as server:
        server.be_reached(monkeypatch)
        yield server


def place(server: FaultyServer, scheme: str = "s3", key: str = "a.tar") -> tuple[ByteStore, bytes]:
    name = f"{server.url}/bucket/{key}" if scheme == "http" else f"{scheme}://bucket/{key}"
    return open_store(name), name.encode()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_range_is_that_of_the_file(server: FaultyServer, scheme: str) -> None:
    store, name = place(server, scheme)

    @given(st.integers(0, len(DATA) + 10), st.integers(0, len(DATA) + 10))
    def check(offset: int, length: int) -> None:
        assert store.read(ByteRange(name, offset, length)) == DATA[offset : offset + length]

    check()
    assert store.status(name).size == len(DATA)
    assert store.status(name).mtime == 1_700_000_000 * 10**9


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_server_fails_at_for_a_while_is_asked_again_and_only_that(server: FaultyServer, scheme: str) -> None:
    store, name = place(server, scheme)
    for faults in ([500, 503], ["cut", "reset"], ["half", "half"], [429, "cut"]):
        server.requests.clear()
        server.faults = list(faults)
        assert store.read(ByteRange(name, 10, 5000)) == DATA[10:5010]
        assert len(server.requests) == len(faults) + 1, faults


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (403, r"no permission (403)"),
        (401, "401"),
        (404, "object"),
        (301, r"another region; set AWS_REGION"),
        (418, r"responded with 418"),
        ("whole", "ranges"),
    ],
)
def test_what_is_wrong_for_good_is_said_at_once(server: FaultyServer, scheme: str, fault: int | str, words: str) -> None:
    store, name = place(server, scheme)
    server.always = fault
    with raises(OSError, words) as caught:
        store.read(ByteRange(name, 0, 10))
    assert len(server.requests) == 1
    assert caught.value.filename == name
    assert "\n" not in caught.value.strerror
    assert isinstance(caught.value, FileNotFoundError if fault == 404 else StoreError)


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize(
    ("fault", "words"), [(503, "503"), ("cut", "connection was lost ... tries"), ("half", "connection was lost ... tried")]
)
def test_patience_ends(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, scheme: str, fault: int | str, words: str
) -> None:
    monkeypatch.setenv("PACELINE_STORE_PATIENCE", "0.3")
    store, name = place(server, scheme)
    server.always = fault
    with raises(StoreError, words):
        store.read(ByteRange(name, 0, 1000))
    assert len(server.requests) > 1


def test_a_server_that_is_late_or_gone_is_given_up(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_STORE_PATIENCE", "0.3")
    store, name = place(server)
    server.late_seconds = 5.0
    with raises(StoreError, "timed out"):
        store.read(ByteRange(name, 0, 10))
    with FaultyServer() as other:
        gone, name = place(other, "http")
    with pytest.raises(StoreError, match=r"\(connection refused\): \d+ tries"):
        gone.read(ByteRange(name, 0, 10))


def test_a_server_that_comes_back_is_waited_for(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.be_reached(monkeypatch, patience="30")
    with FaultyServer() as before:
        store, name = place(before, "http")
    asked = object_store.BackgroundThreads(1, "test").submit(store.read, ByteRange(name, 5, 50))
    with pytest.raises(StillWaiting):
        asked.result(0.3)
    with FaultyServer(files={"/bucket/a.tar": DATA}, port=before.port):
        assert asked.result(30) == DATA[5:55]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_that_changes_while_it_is_used_is_an_error(server: FaultyServer, scheme: str) -> None:
    store, name = place(server, scheme)
    store.read(ByteRange(name, 0, 10))
    server.files["/bucket/a.tar"] = DATA[:-1]
    with raises(OSError, "changed", "100,000 bytes", "99,999"):
        store.read(ByteRange(name, 0, 10))
    server.files["/bucket/a.tar"] = DATA[::-1]
    if scheme == "http":  # servers that share a load may each have its own ETag: the time counts, which is the same here
        assert store.read(ByteRange(name, 0, 10)) == DATA[::-1][:10]
    else:
        with pytest.raises(OSError, match="changed"):
            store.read(ByteRange(name, 0, 10))
    store.status(name)
    assert store.read(ByteRange(name, 0, 10)) == server.files["/bucket/a.tar"][:10]


def test_many_ranges_are_under_way_at_once_and_come_in_order(server: FaultyServer) -> None:
    server.files.update({f"/bucket/{number}.tar": DATA[number:] for number in range(3)})
    server.late_seconds = 0.05
    store, _ = place(server)
    wanted = [ByteRange(b"s3://bucket/%d.tar" % (number % 3), 7 * number, 100) for number in range(16)]
    found = store.read_many(wanted)
    assert found == [DATA[number % 3 + 7 * number :][:100] for number in range(16)]
    assert server.most > 4


def test_a_bucket_is_kept_on_disk_where_that_is_asked_for(server: FaultyServer) -> None:
    store, name = place(server)
    kept = DiskCacheStore(store, 1 << 20)
    assert [kept.read(ByteRange(name, 7, 70)) for _ in range(3)] == [DATA[7:77]] * 3
    assert len(server.requests) == 2, "the head, and the range once"


def records_of(names: list[bytes], number: int, length: int) -> RangeRecords:
    """Records of `length` bytes one after the other, the first half in the first file."""
    half = np.arange(number) * 2 // number
    return RangeRecords(
        RecordLocations(
            root=Path("/nowhere"),
            files=half.astype(np.int32),
            offsets=np.arange(number, dtype=np.int64) * length,
            lengths=np.full(number, length, np.int64),
            name_bytes=np.frombuffer(b"".join(names), np.uint8),
            name_starts=np.cumsum([0, *map(len, names)]),
            file_sizes=np.full(len(names), len(DATA), np.int64),
            remedy="Prepare it again.",
        )
    )


def test_the_record_that_cannot_be_read_is_named(server: FaultyServer) -> None:
    server.files["/bucket/b.tar"] = DATA
    records = records_of([b"s3://bucket/a.tar", b"s3://bucket/b.tar"], 10, 50)
    assert records.read_many(range(10)) == [DATA[i * 50 : i * 50 + 50] for i in range(10)]
    del server.files["/bucket/b.tar"]
    with raises(DataError, "s3://bucket/b.tar", "from byte 250"):
        records.read_many(range(10))
    server.always = 403
    with pytest.raises(DataError, match=r"permission .*yours\)"):  # preparing again would not help
        records.read_many(range(3))
    with pytest.raises(RangeError) as caught:
        store, name = place(server)
        store.read_many([ByteRange(name, 0, 0), ByteRange(name, 0, 0), ByteRange(name, 0, 1)])
    assert caught.value.at == 2


def test_a_stream_is_the_file_whatever_is_read_of_it(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "BLOCK_BYTES", 10_000)
    store, name = place(server)
    moves = st.lists(
        st.one_of(
            st.tuples(st.just("seek"), st.integers(0, len(DATA) + 10), st.just(0)),
            st.tuples(st.just("seek"), st.integers(-len(DATA), 0), st.just(2)),
            st.tuples(st.just("read"), st.integers(0, 50_000), st.just(0)),
        ),
        max_size=12,
    )

    @given(moves)
    def check(moves: list[tuple[str, int, int]]) -> None:
        with store.open(name) as found, io.BytesIO(DATA) as wanted:
            for move, number, whence in moves:
                if move == "seek":
                    assert found.seek(number, whence) == wanted.seek(number, whence)
                else:
                    assert found.read(number) == wanted.read(number)

    check()
    with store.open(name) as found:
        assert found.read() == DATA


def test_a_look_at_the_end_fetches_one_block_and_a_walk_fetches_ahead(server: FaultyServer) -> None:
    size = 5 * object_store.BLOCK_BYTES + 100
    server.files["/bucket/large.tar"] = bytes(size)
    store, name = place(server, key="large.tar")
    with store.open(name) as stream:
        stream.seek(-50, io.SEEK_END)
        stream.read(10)
    assert [line.partition(" bytes=")[2] for line in server.requests] == ["", f"{size - 100}-{size - 1}"]
    server.requests.clear()
    with store.open(name) as stream:
        while stream.read(1 << 20):
            pass
    assert len(server.requests) == 7, "the head, and each block once"


def test_a_stream_whose_file_goes_ends_in_its_reason(server: FaultyServer) -> None:
    server.files["/bucket/large.tar"] = bytes(2 * object_store.BLOCK_BYTES)
    store, name = place(server, key="large.tar")
    with store.open(name) as stream:
        stream.read(10)
        server.files["/bucket/large.tar"] = b"another"
        with raises(OSError, "changed"):
            stream.read()


def test_a_tar_in_a_bucket_is_walked_as_on_a_disk(s3_bucket, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = 1000 * number
            archive.addfile(member, io.BytesIO(bytes([number]) * member.size))
    (url,) = s3_bucket.upload(tmp_path)
    store = open_store(url)
    with store.open(url.encode()) as stream, tarfile.open(fileobj=stream) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == [f"{number}.jpg" for number in range(20)]
    wanted = [ByteRange(url.encode(), member.offset_data, member.size) for member in members]
    assert store.read_many(wanted) == [bytes([number]) * 1000 * number for number in range(20)]


PATTERNS = (
    "*.tar", "*", "shards/*", "shards/*.tar", "*/*", "*/*.tar", "s*/deep/?.tar", "shards/train-[0-9].tar", "*/*/*",
    "shards/.hidden.tar", "shards/.*", "shards", "shards/train-1.tar", "no/*.tar", "no.tar", "*/deep", "sh*rds/train-1.tar",
    "odd/a b.tar", "odd/*%*", "odd/[[]1].tar",
)  # fmt: skip


def test_patterns_find_what_they_find_on_a_disk(s3_bucket, tmp_path: Path) -> None:
    for name in (
        "top.tar", "shards/train-1.tar", "shards/train-2.tar", "shards/val.zip", "shards/.hidden.tar", "shards/deep/a.tar",
        "shards.tar/x.tar", "odd/a b.tar", "odd/a%20b.tar", "odd/\u00fc.tar", "odd/[1].tar", "odd/p+q&r=#s.tar",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(name.encode())
    s3_bucket.upload(tmp_path)
    store = open_store(s3_bucket.url())
    for pattern in PATTERNS:
        found = [name.decode().removeprefix(s3_bucket.url()) for name in store.find(s3_bucket.url(pattern))]
        wanted = [os.fsdecode(name) for name in LocalFiles().find(str(tmp_path / pattern))]
        assert found == [os.path.relpath(name, tmp_path) for name in wanted], pattern
    for name in store.find(s3_bucket.url("odd/*")):  # what was found can be read
        assert store.read(ByteRange(name, 0, 100)) == name.decode().removeprefix(s3_bucket.url()).encode()
    with raises(OSError, "bucket"):
        store.find("s3://no-such-bucket/*.tar")


def test_a_web_server_has_no_patterns(server: FaultyServer) -> None:
    server.files["/bucket/a b.tar"] = DATA
    store, name = place(server, "http", key="a%20b.tar")
    assert store.find(name.decode()) == [name]
    assert store.read(ByteRange(name, 0, 9)) == DATA[:9]
    assert store.find(f"{server.url}/bucket/none.tar") == []
    with raises(OSError, "list"):
        store.find(f"{server.url}/bucket/*.tar")
    for odd in (f"{server.url}/a.tar?signature=1", "http://me:word@host/a.tar", f"{server.url}/"):
        with pytest.raises(OSError, match=r"plain URLs|no file"):
            store.status(odd.encode())


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(DataError, match=r"pip install 'obstore>=0.11'"):
        open_store("s3://bucket/a.tar")


@pytest.mark.parametrize("given", ["-1", "281", "nan", "soon"])
def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PACELINE_STORE_PATIENCE", given)
    with pytest.raises(PacelineError, match="PACELINE_STORE_PATIENCE"):
        open_store("s3://bucket/a.tar")


def test_a_forked_process_says_so_where_it_would_hang(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store, name = place(server)
    store.read(ByteRange(name, 0, 1))
    monkeypatch.setattr(object_store, "_FIRST_PROCESS", os.getppid())
    with pytest.raises(StoreError, match="forked"):
        store.read(ByteRange(name, 0, 1))


def test_a_process_ends_while_its_requests_wait() -> None:
    program = (
        "import time; from paceline._utils.threads import BackgroundThreads\n"
        "BackgroundThreads(2, 'test').submit(time.sleep, 600); time.sleep(0.1)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_machine_without_a_role_is_said_to_have_no_credentials() -> None:
    """obstore's words where nothing answers for the credentials of a machine in a cloud; none is asked here."""
    told = "Generic S3 error: Error after 10 retries: http://169.254.169.254/latest/api/token: error sending request"
    said = explain_store_error(RuntimeError(told), b"s3://bucket/a.tar", 3.0)
    assert isinstance(said, StoreError) and said.errno == errno.EACCES
    assert check_text(str(said.strerror), "credentials", "role")


def test_threads_are_no_more_than_allowed_and_hand_on_what_was_raised() -> None:
    threads = object_store.BackgroundThreads(3, "test")
    import threading

    def fail() -> None:
        raise KeyError(threading.current_thread().name)

    raised = [threads.submit(fail) for _ in range(20)]
    names = {str(one.exception(20)) for one in raised}
    assert 1 <= len(names) <= 3
    assert all(re.fullmatch(r"'test-[012]'", name) for name in names)
    threads.close()


CONFIG = """
[default]
region = eu-west-3
[profile lab]
region = ap-south-1
endpoint_url = http://lab:9000
[profile login]
sso_session = corp
"""
CREDENTIALS = """
[default]
aws_access_key_id = usual
aws_secret_access_key = u
[lab]
aws_access_key_id = of-the-lab
aws_secret_access_key = l%s
aws_session_token = t
"""


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_aws_credentials_are_found_where_its_tools_find_them(profiles: dict[str, str]) -> None:
    found = credentials.aws_settings
    usual = {"access_key_id": "usual", "secret_access_key": "u"}
    assert found(profiles) == {"region": "eu-west-3", **usual}
    assert found({**profiles, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://here"}) == {
        "endpoint": "http://here",
        **usual,
    }
    assert found({**profiles, "AWS_PROFILE": "lab"}) == {
        "region": "ap-south-1",
        "endpoint": "http://lab:9000",
        "access_key_id": "of-the-lab",
        "secret_access_key": "l%s",
        "session_token": "t",
    }
    assert found({**profiles, "AWS_ACCESS_KEY_ID": "mine"}) == {"region": "eu-west-3"}
    assert found({**profiles, "AWS_NO_SIGN_REQUEST": "YES"}) == {"region": "eu-west-3", "skip_signature": True}


def test_missing_aws_credentials_are_said_at_once(profiles: dict[str, str], tmp_path: Path) -> None:
    nothing = {**profiles, "AWS_CONFIG_FILE": "/no", "AWS_SHARED_CREDENTIALS_FILE": "/no"}
    with pytest.raises(StoreError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        credentials.aws_settings(nothing)
    with raises(StoreError, "AWS_PROFILE=other", "profile"):
        credentials.aws_settings({**profiles, "AWS_PROFILE": "other"})
    (tmp_path / "credentials").write_text("no section")
    with raises(StoreError, "credentials"):
        credentials.aws_settings(profiles)


def test_requests_are_signed_with_the_key_of_the_environment(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store, name = place(server)
    store.read(ByteRange(name, 0, 1))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    store, name = place(server)
    store.read(ByteRange(name, 0, 1))
    first, second = server.authorizations
    assert "Credential=key-of-mine/" in first
    assert second == ""


def test_a_machines_role_is_asked_for_where_aws_and_google_say() -> None:
    """AWS, "Instance metadata and user data"; Google, "About VM metadata": the link-local address, by http."""
    assert credentials.METADATA_SERVICE == ("169.254.169.254", 80)

"""Whatever a server does, under the final name there is the file that was wanted, or nothing and a line that says why."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from loopback_site import Site, small_blocks
from messages import check_lines, check_text

from paceline._utils.errors import DataError
from paceline._utils.formatting import format_bytes
from paceline._utils.reporter import Lines
from paceline.data.download import fetch as fetching
from paceline.data.download import http, part
from paceline.data.download.fetch import ExpectedFile, fetch

CONTENT = random.Random(1).randbytes(50_123)
SHA = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


def bring(url: str | list[str], folder: Path, **known) -> tuple[Path, list[str]]:
    said: list[str] = []
    urls = [url] if isinstance(url, str) else url
    return fetch(urls, folder / "set.zip", ExpectedFile(**known), reporter=Lines(said.append)), said


def refusal(url: str | list[str], folder: Path, **known) -> str:
    with pytest.raises(DataError) as error:
        bring(url, folder, **known)
    assert not (folder / "set.zip").exists()
    return str(error.value)


def nothing_but(folder: Path, *names: str) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.fixture
def there(site: Site) -> Site:
    site.files["/set.zip"] = CONTENT
    return site


@pytest.mark.parametrize("known", [{}, {"size": len(CONTENT)}, {"sha256": SHA}, {"sha256_prefix": SHA[:8]}, {"md5": MD5}])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_arrives_whole(there: Site, tmp_path: Path, known: dict, ranges: bool) -> None:
    there.ranges = ranges
    path, _ = bring(f"{there.url}/set.zip", tmp_path, **known)
    assert path.read_bytes() == CONTENT
    nothing_but(tmp_path, "set.zip")


def test_several_connections_share_a_file(there: Site, tmp_path: Path) -> None:
    there.pause = 0.005
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT
    assert there.most_at_once > 2
    asked = [text for _, text in there.asked[1:]]
    assert len(asked) == len(set(asked))  # nothing is asked for twice


@pytest.mark.parametrize("cut_after", [1, 700, 3333])
@pytest.mark.parametrize("ranges", [True, False])
def test_cut_connections_are_taken_up_again(there: Site, tmp_path: Path, cut_after: int, ranges: bool) -> None:
    there.cut_after, there.cuts, there.ranges = cut_after, 3, ranges
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_falls_silent_is_taken_up_again(there: Site, tmp_path: Path, monkeypatch, ranges: bool) -> None:
    monkeypatch.setattr(http, "SILENCE", 0.1)
    there.stalls, there.stall, there.ranges = 2, 0.4, ranges
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT


def test_ranges_of_a_file_without_a_mark_are_not_mixed_unless_a_digest_tells(there: Site, tmp_path: Path) -> None:
    there.etag = ""
    assert "stream" in bring(f"{there.url}/set.zip", tmp_path / "one")[1][0]
    assert "stream" not in bring(f"{there.url}/set.zip", tmp_path / "two", md5=MD5)[1][0]


def test_a_server_that_always_cuts_ends_in_one_line_and_what_arrived_is_kept(there: Site, tmp_path: Path) -> None:
    there.files["/set.zip"] = CONTENT[:4_000]
    there.cut_after = 0
    text = refusal(f"{there.url}/set.zip", tmp_path, size=4_000)
    assert "was lost" in text and "Nothing is kept" in text
    nothing_but(tmp_path)


def test_what_arrived_before_the_network_went_is_kept_and_gone_on_from(there: Site, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(part, "CONNECTIONS", 1)
    asked: list[int] = []
    original = part.get

    def gone_after(*words):
        asked.append(1)
        if len(asked) == 3:
            there.cut_after = 5_500  # in the middle of a request, and of a block
        if len(asked) > 3:
            there.always = 503
        return original(*words)

    monkeypatch.setattr(part, "get", gone_after)
    text = refusal(f"{there.url}/set.zip", tmp_path)
    assert check_text(text, "503", "KiB", "kept", "same command")
    nothing_but(tmp_path, "set.zip.part", "set.zip.part.journal")
    there.always, there.cut_after, before = 0, -1, len(there.asked)
    monkeypatch.setattr(part, "get", original)
    path, said = bring(f"{there.url}/set.zip", tmp_path)
    assert path.read_bytes() == CONTENT and "already downloaded" in said[0]
    assert sum(_length(text) for _, text in there.asked[before:]) < len(CONTENT) - 5_000
    nothing_but(tmp_path, "set.zip")


def _length(text: str) -> int:
    first, last = text.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("known", [{"sha256": SHA}, {"sha256_prefix": SHA[:8]}, {"md5": MD5}])
def test_a_flipped_byte_is_refused_and_nothing_is_kept(there: Site, tmp_path: Path, ranges: bool, known: dict) -> None:
    there.flip, there.ranges = 31_000, ranges
    assert "; expected " in refusal(f"{there.url}/set.zip", tmp_path, **known)
    nothing_but(tmp_path)


def test_after_a_flipped_byte_the_next_address_is_asked(there: Site, tmp_path: Path) -> None:
    there.files["/wrong/set.zip"] = CONTENT[:-1] + b"?"
    path, _ = bring([f"{there.url}/wrong/set.zip", f"{there.url}/set.zip"], tmp_path, sha256=SHA)
    assert path.read_bytes() == CONTENT


def test_bytes_that_rotted_on_the_disk_are_found_and_brought_again(there: Site, tmp_path: Path) -> None:
    _begin(there, tmp_path)
    with open(tmp_path / "set.zip.part", "r+b") as file:
        file.seek(500)
        file.write(b"rot")
    path, said = bring(f"{there.url}/set.zip", tmp_path, sha256=SHA)
    assert path.read_bytes() == CONTENT and any("Restarting" in line for line in said)


def _begin(there: Site, folder: Path, first: int = 0, past: int = 20) -> None:
    """Leave some blocks of the file as an earlier attempt does."""
    from paceline.data.download.part import PartialFile, RemoteVersion

    with PartialFile(folder / "set.zip") as begun:
        begun.begin(RemoteVersion(f"{there.url}/set.zip", len(CONTENT), there.etag), same_content=False)
        descriptor = begun.writer()
        os.pwrite(descriptor, b"?" * len(CONTENT), 0)  # what the journal does not name is worth nothing
        os.pwrite(descriptor, CONTENT[first * 1000 : past * 1000], first * 1000)
        os.close(descriptor)
        begun.note(range(first, past))


@pytest.mark.parametrize(
    "code, word", [(401, "login"), (403, "access is denied"), (404, "file"), (410, "removed"), (418, "rejects")]
)
def test_a_refusal_is_not_repeated(there: Site, tmp_path: Path, code: int, word: str) -> None:
    there.always = code
    text = refusal(f"{there.url}/set.zip", tmp_path)
    assert check_text(text, word) and str(code) in text and len(there.asked) == 1
    nothing_but(tmp_path)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_passing_failure_is_waited_out(there: Site, tmp_path: Path, code: int) -> None:
    there.fail = [code, code]
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT


def test_a_failure_that_does_not_pass_is_one_line(there: Site, tmp_path: Path) -> None:
    there.always = 500
    check_text(refusal(f"{there.url}/set.zip", tmp_path), "set.zip", "500")


def test_a_host_that_failed_is_not_waited_for_again(there: Site, tmp_path: Path) -> None:
    there.always = 500
    refusal([f"{there.url}/a", f"{there.url}/b"], tmp_path)
    assert {path for path, _ in there.asked} == {"/a"}


def test_a_host_without_an_address_is_asked_twice_and_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    asked = []

    def nowhere(host, *_args, **_more):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr("paceline.data.download.http.PAUSES", (0.0,) * 5)
    urls = [f"http://{host}.invalid/{name}" for host in ("one", "two") for name in ("a", "b")]
    text = refusal(urls, tmp_path / "new" / "deeper")
    assert asked == ["one.invalid"] * 2 + ["two.invalid"] * 2
    assert [line.strip().split(": ")[0] for line in text.splitlines()[1:]] == urls
    assert text.count("network") == 2 and text.count("not tried") == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    refusal(urls, tmp_path / "there")
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]


def test_what_somebody_else_began_to_download_is_not_touched(there: Site, tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").write_bytes(b"half, by a browser")
    text = refusal(f"{there.url}/set.zip", tmp_path)
    check_text(text, "set.zip.part", "paceline")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("set.zip.part", b"half, by a browser")]


def test_nobody_listens_and_a_mirror_does(there: Site, tmp_path: Path) -> None:
    path, said = bring(["http://127.0.0.1:9/set.zip", f"{there.url}/set.zip"], tmp_path)
    assert path.read_bytes() == CONTENT and "retrying" in said[0]


def test_no_address_works_and_each_reason_is_said(there: Site, tmp_path: Path) -> None:
    text = refusal([f"{there.url}/a", str(tmp_path / "none" / "set.zip"), "ftp://host/set.zip"], tmp_path)
    assert check_text(text, "ftp://", "No such file or directory", "404")


def test_another_size_than_wanted_is_refused_before_its_bytes_come(there: Site, tmp_path: Path) -> None:
    assert "50,123 bytes; expected 50,124" in refusal(f"{there.url}/set.zip", tmp_path, size=50_124)
    assert len(there.asked) == 1


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("claimed", [-1000, 1000])
def test_a_server_that_lies_about_the_size(there: Site, tmp_path: Path, claimed: int, ranges: bool) -> None:
    there.claimed, there.ranges = claimed, ranges
    assert refusal(f"{there.url}/set.zip", tmp_path, sha256=SHA)
    nothing_but(tmp_path, *([] if not ranges or claimed < 0 else ["set.zip.part", "set.zip.part.journal"]))


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_range_that_was_not_asked_for_is_refused(there: Site, tmp_path: Path, shift: int) -> None:
    there.wrong_start = shift
    assert " instead of " in refusal(f"{there.url}/set.zip", tmp_path)


def test_a_body_that_the_server_changes_is_refused(there: Site, tmp_path: Path) -> None:
    there.encoding = "gzip"
    assert "Content-Encoding gzip" in refusal(f"{there.url}/set.zip", tmp_path)


def test_without_a_length_a_cut_could_not_be_told(there: Site, tmp_path: Path) -> None:
    there.length, there.ranges = False, False
    check_text(refusal(f"{there.url}/set.zip", tmp_path), "set.zip", "file size")
    assert bring(f"{there.url}/set.zip", tmp_path, size=len(CONTENT))[0].read_bytes() == CONTENT


@pytest.mark.parametrize("length", [True, False], ids=["said", "not said"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_of_unpublished_size_is_bounded_and_the_bound_is_named(
    there: Site, tmp_path: Path, monkeypatch, length: bool, ranges: bool
) -> None:
    there.length, there.ranges = length, ranges
    monkeypatch.setattr("paceline.data.download.fetch.MAX_UNPUBLISHED", len(CONTENT) - 1)
    check_text(refusal(f"{there.url}/set.zip", tmp_path, sha256=SHA), format_bytes(len(CONTENT) - 1))
    nothing_but(tmp_path)
    bring(f"{there.url}/set.zip", tmp_path, sha256=SHA, size=len(CONTENT))


def test_more_than_the_size_is_refused_as_it_comes(there: Site, tmp_path: Path) -> None:
    there.length, there.ranges = False, False
    check_text(refusal(f"{there.url}/set.zip", tmp_path, size=40_000), "40,000 bytes")


def test_a_new_version_is_brought_from_the_beginning(there: Site, tmp_path: Path) -> None:
    _begin(there, tmp_path)
    there.files["/set.zip"], there.etag = CONTENT[::-1], '"two"'
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT[::-1]


def test_a_version_that_changes_on_the_way_is_brought_from_the_beginning(there: Site, tmp_path: Path, monkeypatch) -> None:
    original, calls = part.get, []

    def changing(*words):
        calls.append(words)
        if len(calls) == 5:
            there.files["/set.zip"], there.etag = CONTENT[::-1], '"two"'
        return original(*words)

    monkeypatch.setattr(part, "get", changing)
    path, said = bring(f"{there.url}/set.zip", tmp_path)
    assert path.read_bytes() == CONTENT[::-1] and any("changed; restarting" in line for line in said)


def test_a_mirror_goes_on_with_what_another_began_only_where_a_digest_tells(
    there: Site, tmp_path: Path, monkeypatch
) -> None:
    for known, goes_on in (({"sha256": SHA}, True), ({}, False)):
        _begin(there, tmp_path)
        there.files["/mirror/set.zip"] = CONTENT
        path, said = bring(f"{there.url}/mirror/set.zip", tmp_path, **known)
        assert path.read_bytes() == CONTENT and ("already downloaded" in said[0]) == goes_on
        path.unlink()


def test_redirects_are_followed(there: Site, tmp_path: Path) -> None:
    there.files["/moved"], there.redirect = CONTENT, "/moved"
    assert bring(f"{there.url}/set.zip", tmp_path, md5=MD5)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x"])
def test_a_redirect_out_of_http_is_refused(there: Site, tmp_path: Path, target: str) -> None:
    there.redirect = target
    refusal(f"{there.url}/set.zip", tmp_path)


@pytest.mark.parametrize("form", ["path", "file"])
def test_local_files_are_copied_and_checked(tmp_path: Path, form: str) -> None:
    source = tmp_path / "with space" / "set.zip"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    url = str(source) if form == "path" else source.as_uri()
    assert bring(url, tmp_path / "out", sha256=SHA)[0].read_bytes() == CONTENT
    nothing_but(tmp_path / "out", "set.zip")
    assert source.read_bytes() == CONTENT
    assert "50,123 bytes; expected" in refusal(url, tmp_path / "two", size=3)


def test_a_named_pipe_as_source_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_text(refusal(str(tmp_path / "pipe"), tmp_path), "pipe")


def test_a_file_that_is_there_is_checked_and_kept(there: Site, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(CONTENT)
    _, said = bring(f"{there.url}/set.zip", tmp_path, size=len(CONTENT), sha256=SHA)
    assert check_lines(said, ("set.zip", "already", "SHA-256")) and not there.asked
    (tmp_path / "set.zip").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="Move "):
        bring(f"{there.url}/set.zip", tmp_path, size=len(CONTENT))
    assert (tmp_path / "set.zip").read_bytes() == CONTENT[:-1]


def test_the_disk_is_asked_before_the_first_byte(there: Site, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "free_bytes", lambda folder: 50_000)
    assert "requires 48.9 KiB, but only 48.8 KiB are free" in refusal(f"{there.url}/set.zip", tmp_path)
    assert [text for _, text in there.asked] == ["bytes=0-0"]
    nothing_but(tmp_path)


def test_a_disk_that_fills_up_is_a_line(there: Site, tmp_path: Path, monkeypatch) -> None:
    def full(descriptor: int, data: bytes, at: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part, "write_at", full)
    check_text(refusal(f"{there.url}/set.zip", tmp_path), "disk", "full")


def test_a_second_process_is_refused(there: Site, tmp_path: Path) -> None:
    from paceline.data.download.part import PartialFile

    with PartialFile(tmp_path / "set.zip"):
        assert "another process" in refusal(f"{there.url}/set.zip", tmp_path)


def test_a_link_under_the_parts_name_is_not_followed(there: Site, tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").symlink_to(tmp_path / "victim")
    check_text(refusal(f"{there.url}/set.zip", tmp_path), "written")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    "journal", [b"", b"{}", b"[]\n7\n", b'{"paceline_download": 1}\n1\n', b"\xff\n1\n", b"9" * 5000 + b"\n"]
)
def test_a_damaged_journal_counts_as_none(there: Site, tmp_path: Path, journal: bytes) -> None:
    (tmp_path / "set.zip.part").write_bytes(b"x" * len(CONTENT))
    (tmp_path / "set.zip.part.journal").write_bytes(journal)
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5, 29, 31, 60, 150])
def test_a_journal_torn_anywhere_loses_blocks_and_never_bytes(there: Site, tmp_path: Path, cut: int) -> None:
    _begin(there, tmp_path, first=10)
    journal = tmp_path / "set.zip.part.journal"
    journal.write_bytes(journal.read_bytes()[: -cut or None])
    assert bring(f"{there.url}/set.zip", tmp_path)[0].read_bytes() == CONTENT


PROGRAM = textwrap.dedent("""
    import sys
    from pathlib import Path
    from paceline._utils.reporter import Lines
    from paceline.data.download import fetch, part
    for module in (fetch, part):
        module.BLOCK = 1000
    part.NOTE_EVERY = 0.0
    try:
        fetch.fetch([sys.argv[1]], Path(sys.argv[2]), reporter=Lines(lambda line: print(line, flush=True)))
    except KeyboardInterrupt:
        sys.exit(75)
""")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_begun_again(there: Site, tmp_path: Path, number: signal.Signals) -> None:
    there.pause = 0.05
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{there.url}/set.zip", str(tmp_path / "set.zip")],
        stdout=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has told them all to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    journal = tmp_path / "set.zip.part.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, _ = process.communicate()
    assert not (tmp_path / "set.zip").exists()
    if number == signal.SIGINT:
        assert process.returncode == 75 and check_text(out, "same command")
    there.pause = 0.0
    path, said = bring(f"{there.url}/set.zip", tmp_path)
    assert path.read_bytes() == CONTENT and "already downloaded" in said[0]


def test_a_password_or_a_signature_in_an_address_is_not_printed(there: Site, tmp_path: Path) -> None:
    text = refusal(f"http://me:secret@127.0.0.1:{there.url.rpartition(':')[2]}/none?signature=abc", tmp_path)
    assert "secret" not in text and "abc" not in text


def test_names_are_harmless_for_a_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in refusal("nothing://\x1b[31m", tmp_path)


def test_blocks_are_where_the_modules_look_for_them(monkeypatch) -> None:
    small_blocks(monkeypatch, 10)
    assert part._spans([0, 1, 2, 5], 60) == [(0, 1), (1, 2), (2, 3), (5, 6)]
    monkeypatch.undo()
    block = fetching.BLOCK
    assert part._spans(range(100), 100 * block) == [(at, min(at + 3, 100)) for at in range(0, 100, 3)]

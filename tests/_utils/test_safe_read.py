"""Only plain files are opened, at once, and no more of them is read than was asked for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from messages import raises

from paceline._utils.safe_read import open_plain, read_plain, read_plain_text, require_plain
from paceline._utils.text import abbreviate, escape_line, escape_text, format_count, tidy_name


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with something of each kind."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(tmp_path)  # a socket's path is short
    listener.bind("socket")
    os.chdir(here)
    listener.close()
    os.symlink("/dev/zero", tmp_path / "zero")
    os.symlink("pipe", tmp_path / "link")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [("folder", "a folder"), ("pipe", "named pipe"), ("socket", "a socket"), ("zero", "a device"), ("link", "a named")],
)
def test_what_is_no_plain_file_is_refused_by_its_kind_at_once(odd: Path, name: str, kind: str) -> None:
    for read in (open_plain, require_plain, lambda path: read_plain(path, 10), lambda path: read_plain_text(path, 10)):
        with pytest.raises(OSError, match=f"{kind}.*regular file"):
            read(odd / name)


def test_a_plain_file_is_read_whole_through_links_and_under_any_spelling(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfabc")
    os.symlink("file", tmp_path / "link")
    for path in (tmp_path / "file", str(tmp_path / "link"), os.fsencode(tmp_path / "link")):
        assert read_plain(path, 6) == b"\xef\xbb\xbfabc" and read_plain_text(path, 6) == "abc" and require_plain(path) == 6
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "gone", 6)


def test_more_than_the_bound_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with raises(OSError, "1,099,511,627,776 bytes", "1,000"):
        read_plain(tmp_path / "sparse", 1000)
    # The kernel's own files are plain, and say that they are empty.
    assert b"PATH=" in read_plain("/proc/self/environ", 1 << 20)
    with raises(OSError, "more bytes"):
        read_plain("/proc/self/environ", 10)


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    text = "a\x1b[2J\x07\r\x9b1m\u202eb\u2028\ud800\udcff\ttab\nline \u00e9\u4e2d\U0001f600"
    assert escape_text(text) == r"a\x1b[2J\x07\x0d\x9b1m\u202eb\u2028\ud800\udcff" + "\ttab\nline \u00e9\u4e2d\U0001f600"
    assert escape_line("a\nb\r\n") == r"a\nb\x0d\n"


def test_what_is_shown_of_a_value_is_short_whatever_it_is() -> None:
    nested: list = []
    for _ in range(40):
        nested = [nested] * 9
    assert (
        len(abbreviate(nested)) == 60 and abbreviate("x" * 99, 5) == "xxxxx" and abbreviate(10**400, 60).startswith("1000")
    )


@pytest.mark.parametrize(("name", "says"), [(" \n", "empty"), ("a" * 1001, "more than 1,000"), ("a\ud800", "surrogate")])
def test_a_name_is_one_line_of_whole_characters(name: str, says: str) -> None:
    assert tidy_name(" polar\n bear\u2028x ") == "polar bear x"
    with raises(ValueError, says):
        tidy_name(name)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "micro-batch", "1 micro-batch"),
        (2, "micro-batch", "2 micro-batches"),
        (0, "image", "0 images"),
        (1200, "class", "1,200 classes"),
        (2, "box", "2 boxes"),
    ],
)
def test_a_number_has_the_plural_of_its_noun(number, noun, text):
    assert format_count(number, noun) == text

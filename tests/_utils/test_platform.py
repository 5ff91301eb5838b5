"""What stands in on Windows for locks of files and for reading by position, with msvcrt's locks built of Linux's."""

from __future__ import annotations

import errno
import os
import sys

import other_systems
import pytest
from messages import raises

from paceline._utils import platform as posix
from paceline._utils.atomic_write import atomic_write, locked_folder, new_folder_part, remove_stale_parts
from paceline._utils.journal import lock
from paceline._utils.safe_read import open_plain, read_entry


@pytest.fixture(params=["here", "windows"])
def system(request, monkeypatch):
    """Both must do the same."""
    if request.param == "windows":
        monkeypatch.setattr(posix, "fcntl", None)
        monkeypatch.setattr(posix, "resource", None)
        monkeypatch.setitem(sys.modules, "msvcrt", other_systems.windows_locks())
        monkeypatch.delattr(os, "pread")
        monkeypatch.delattr(os, "pwrite")
    return request.param


def test_one_process_holds_a_lock_until_it_closes_it(system, tmp_path):
    path, waited = tmp_path / "lock", []
    first = lock(path)
    with pytest.raises(BlockingIOError):
        lock(path)
    path.write_bytes(b"what is in the file can be read and written")
    assert read_entry(path, 99).startswith(b"what")
    os.close(first)
    second = lock(path, waits=lambda: waited.append(1))
    posix.unlock(second)
    third = lock(path)
    os.close(second)
    os.close(third)
    assert waited == []


def test_a_waiting_process_gets_the_lock_when_it_is_free(system, tmp_path):
    path = tmp_path / "lock"
    first = lock(path)
    os.close(lock(path, waits=lambda: os.close(first)))


def test_reading_and_writing_by_position_leave_nothing_between(system, tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert posix.pwrite(descriptor, b"\r\n\0abc", 3) == 6
    assert posix.pread(descriptor, 3, 3) == b"\r\n\0" and posix.pread(descriptor, 99, 6) == b"abc"
    assert posix.pread(descriptor, 9, 99) == b"" and posix.pread(descriptor, 3, 0) == b"\0\0\0"
    os.close(descriptor)


def test_windows_has_no_shared_locks_no_limits_and_one_user(system, monkeypatch, tmp_path):
    if system == "here":
        monkeypatch.delattr(os, "geteuid")
        assert posix.get_user_id() == 0
        return
    with pytest.raises(OSError) as refused:
        lock(tmp_path / "lock", shared=True)
    assert refused.value.errno == errno.ENOLCK
    assert posix.get_soft_limit("RLIMIT_AS") is None
    posix.allow_open_files(10**6)


def test_files_are_written_whole_where_no_file_can_be_held(monkeypatch, tmp_path):
    import paceline._utils.atomic_write as writing
    from paceline._utils import safe_read as plain_file

    monkeypatch.setattr(writing, "HOLDS", False)
    left = tmp_path / ".file.01234567.part"
    left.write_bytes(b"another process may be writing it: nobody can tell")
    with writing.atomic_writer(tmp_path / "file") as part:
        part.unlink()  # as Windows allows for no file that is open
        part.symlink_to("nowhere")
    assert os.readlink(tmp_path / "file") == "nowhere"
    with pytest.raises(ValueError), writing.atomic_writer(tmp_path / "file"):
        raise ValueError
    remove_stale_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [left.name, "file"]
    atomic_write(tmp_path / "file", "text", sync=True)
    with new_folder_part(tmp_path / "folder") as filled, locked_folder(filled) as alone:
        (filled / "one").touch()
        assert alone is False
    with pytest.raises(FileNotFoundError), locked_folder(tmp_path / "none"):
        pass
    monkeypatch.setattr(plain_file, "O_NOFOLLOW", 0)
    (tmp_path / "link").symlink_to("file")
    with raises(OSError, "link"):
        read_entry(tmp_path / "link", 9)
    os.close(open_plain(tmp_path / "link"))

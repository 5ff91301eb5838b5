"""An archive from a stranger unpacks whole and inside its folder, or leaves nothing."""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import check_text
from recording_reporter import Recording

from paceline._utils.atomic_write import new_folder_part
from paceline._utils.errors import DataError
from paceline.data.download import unpack as unpacking
from paceline.data.download.unpack import is_unfinished, unpack

PHOTO = random.Random(2).randbytes(3_000)
FILES = {"set/a.jpg": PHOTO, "set/deep/b.jpg": PHOTO[::-1], "notes.txt": b"words " * 500, "set/empty": b""}


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, **more) -> Path:
    with zipfile.ZipFile(path, "w", method, **more) as book:
        for name, content in files.items():
            book.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=form) as book:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            book.addfile(info, io.BytesIO(content))
    return path


MAKERS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "stored": lambda path, files: zipped(path, files, zipfile.ZIP_STORED),
    "deflated": zipped,
    "tar": tarred,
    "gnu": lambda path, files: tarred(path, files, form=tarfile.GNU_FORMAT),
    "gz": lambda path, files: tarred(path, files, "w:gz"),
}


def found(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(archive: Path, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    before = found(folder)
    with pytest.raises(DataError) as error:
        unpack(archive, folder)
    assert found(folder) == before and not is_unfinished(archive.name, folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_all_of_it_is_unpacked(tmp_path: Path, kind: str) -> None:
    long = {"set/" + "x" * 120 + "/" + "y" * 150: b"long name"}
    archive = MAKERS[kind](tmp_path / "set.archive", {**FILES, **long})
    reporter = Recording()
    assert unpack(archive, tmp_path / "out", reporter) == 5
    assert found(tmp_path / "out") == {**FILES, **long}
    assert reporter.steps[-1][1] == sum(map(len, FILES.values())) + 9
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["notes.txt", "set"]


def test_a_zip_with_64_bit_numbers(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as book, book.open("a.jpg", "w", force_zip64=True) as member:
        member.write(PHOTO)
    unpack(tmp_path / "set.zip", tmp_path / "out")
    assert found(tmp_path / "out") == {"a.jpg": PHOTO}


@pytest.mark.nightly("writes a zip of 65,536 members")
def test_a_zip_of_more_members_than_16_bits_count(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as book:
        for i in range(66_000):
            book.writestr(zipfile.ZipInfo(f"f/{i}/" if i else "a.jpg"), b"")
    archive = tmp_path / "set.zip"
    with open(archive, "rb") as file:
        total, all_of_them = unpacking._zip_members(file, archive)
        assert total == 0 and sum(1 for _ in all_of_them) == 66_000


HOSTILE = ["../out", "a/../../out", "/etc/passwd", "C:/x", "..\\out", "a/..", "bad\x1bname", "z" * 256]


@pytest.mark.parametrize("kind", ["stored", "tar"])
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    archive = MAKERS[kind](tmp_path / "bad", {"fine.jpg": PHOTO, name: b"evil"})
    assert "Nothing is unpacked" in refusal(archive, tmp_path / "deep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "deep"]


def test_a_name_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "bad.zip", {"fineX.jpg": PHOTO})
    archive.write_bytes(archive.read_bytes().replace(b"fineX.jpg", b"fine\0.jpg"))
    assert "control characters" in refusal(archive, tmp_path / "out")


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as book:
        book.writestr(info, "/etc")
        book.writestr("link/passwd", b"evil")
    check_text(refusal(tmp_path / "bad.zip", tmp_path / "out"), "link")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as book:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        book.addfile(info)
    check_text(refusal(tmp_path / "bad.tar", tmp_path / "out"), "link")


@pytest.mark.parametrize("kind", ["stored", "tar"])
@pytest.mark.parametrize("names", [("a", "./a"), ("a", "a/b"), ("a/b", "a")])
def test_one_name_for_two_members_is_refused(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    archive = MAKERS[kind](tmp_path / "bad", {name: name.encode() for name in names})
    assert "twice" in (text := refusal(archive, tmp_path / "out")) or check_text(text, "file", "folder")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(unpacking, "SMALL", 100_000)
    for kind in ("deflated", "gz"):
        archive = MAKERS[kind](tmp_path / kind, {"zeros": bytes(2_000_000)})
        check_text(refusal(archive, tmp_path / "out"), "unpack", "bytes")


def test_a_zip_whose_members_share_bytes_is_refused(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", {"b": PHOTO}, zipfile.ZIP_STORED).read_bytes()
    archive = zipped(tmp_path / "bad.zip", {"a": inner[: inner.index(b"PK\x01\x02")], "b": PHOTO}, zipfile.ZIP_STORED)
    data = bytearray(archive.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 42, 31)  # b is what lies inside a
    archive.write_bytes(data)
    check_text(refusal(archive, tmp_path / "out"), "bytes", "member")


def test_a_description_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
    with gzip.open(tmp_path / "bad.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
    assert refusal(tmp_path / "bad.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_negative_size_ends(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("a")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"  # -256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "bad.tar").write_bytes(bytes(header) + bytes(10240))
    assert refusal(tmp_path / "bad.tar", tmp_path / "out")


@pytest.mark.parametrize("flag, word", [(0x1, "encryption"), (0, "compression method 99")])
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, flag: int, word: str) -> None:
    archive = zipped(tmp_path / "bad.zip", {"secret.jpg": PHOTO})
    data = bytearray(archive.read_bytes())
    for mark, flags, method in ((b"PK\x03\x04", 6, 8), (b"PK\x01\x02", 8, 10)):
        at = data.index(mark)
        data[at + flags] |= flag
        if not flag:
            data[at + method] = 99
    archive.write_bytes(data)
    assert word in (text := refusal(archive, tmp_path / "out")) and "secret.jpg" in text


@pytest.mark.parametrize("kind", MAKERS)
def test_cut_off_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    whole = MAKERS[kind](tmp_path / "set", {"a.jpg": PHOTO, "b.jpg": PHOTO}).read_bytes()
    end = len(whole.rstrip(b"\0")) if kind in ("tar", "gnu") else len(whole) - 1
    for size in (0, 1, 100, 511, 512, 600, 2_000, 3_600, end - 100, end):
        (tmp_path / "cut").write_bytes(whole[: min(size, end)])
        refusal(tmp_path / "cut", tmp_path / "out")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["stored", "deflated", "gz"])
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path_factory, kind: str, data) -> None:
    folder = tmp_path_factory.mktemp("flip")
    archive = MAKERS[kind](folder / "set", FILES)
    content = bytearray(archive.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    archive.write_bytes(content)
    try:
        unpack(archive, folder / "out")
    except DataError as error:
        assert "\n" not in str(error) and not found(folder / "out")
    else:
        assert sorted(found(folder / "out").values()) == sorted(FILES.values())


def test_no_flipped_bit_of_a_directory_loses_a_member(tmp_path: Path) -> None:
    whole = zipped(tmp_path / "set", {name: b"x" * 40 for name in "abcd"}).read_bytes()
    for at in range(whole.index(b"PK\x01\x02"), len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            (tmp_path / "flipped").write_bytes(data)
            out = tmp_path / f"{at}-{bit}"
            try:
                unpack(tmp_path / "flipped", out)
            except DataError:
                assert not found(out)
            else:
                assert list(found(out).values()) == [b"x" * 40] * 4, (at, bit)


def test_a_size_that_is_not_the_members_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "bad.zip", {"a": PHOTO}, zipfile.ZIP_STORED)
    data = bytearray(archive.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, len(PHOTO) + 7)
    archive.write_bytes(data)
    check_text(refusal(archive, tmp_path / "out"), "3,007 bytes")


def test_neither_zip_nor_tar(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(b"<html>" * 1000)
    check_text(refusal(tmp_path / "page.html", tmp_path / "out"), "page.html", "zip", "tar")


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    assert "no file" in refusal(zipped(tmp_path / "none.zip", {}), tmp_path / "out")


def test_the_disk_is_asked_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("paceline.data.download.fetch.free_bytes", lambda folder: 5_000)
    assert "4.9 KiB are free" in refusal(zipped(tmp_path / "set.zip", FILES), tmp_path / "out")


def test_other_files_are_never_replaced_and_the_same_ones_stay(tmp_path: Path) -> None:
    archive, out = tarred(tmp_path / "set.tar", FILES), tmp_path / "out"
    (out / "set").mkdir(parents=True)
    (out / "set" / "mine.txt").write_text("mine")
    (out / "set" / "a.jpg").write_bytes(PHOTO)  # as an unpacking by hand that was broken off leaves it
    unpack(archive, out)
    assert found(out) == {**FILES, "set/mine.txt": b"mine"}
    (out / "set" / "a.jpg").write_bytes(b"edited")
    check_text(refusal(archive, out), "set.tar", "differs from")
    (out / "set" / "a.jpg").unlink()
    (out / "set" / "a.jpg").symlink_to(tmp_path / "victim")
    with pytest.raises(DataError):
        unpack(archive, out)
    assert not (tmp_path / "victim").exists()


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "set").symlink_to(tmp_path / "elsewhere")
    assert "a folder" in refusal(tarred(tmp_path / "set.tar", FILES), tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_a_kill_left_is_dropped(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "set.zip", FILES)
    out = tmp_path / "out"
    left = out / ".set.zip.0123abcd.part" / "set" / "deep" / "half.jpg"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert is_unfinished("set.zip", out)
    unpack(archive, out)
    assert found(out) == FILES and not is_unfinished("set.zip", out)


def test_what_another_process_is_at_and_folders_of_other_names_stay(tmp_path: Path) -> None:
    archive, out = zipped(tmp_path / "set.zip", FILES), tmp_path / "out"
    (out / ".set.zip.unpacking").mkdir(parents=True)
    (out / ".set.zip.0123abcd.part").symlink_to(tmp_path)
    with new_folder_part(out / "set.zip") as others:
        (others / "theirs.jpg").write_bytes(b"half")
        unpack(archive, out)
        assert (others / "theirs.jpg").read_bytes() == b"half"
    assert {path.name for path in out.iterdir()} >= {".set.zip.unpacking", ".set.zip.0123abcd.part"}
    assert archive.is_file()


def test_a_kill_while_it_unpacks_leaves_no_final_name(tmp_path: Path, monkeypatch) -> None:
    def killed() -> None:
        os._exit(9)

    archive = zipped(tmp_path / "set.zip", FILES)
    if not (child := os.fork()):
        unpacking.os.sync = killed  # type: ignore[assignment]
        unpack(archive, tmp_path / "out")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"\.set\.zip\.[0-9a-f]{8}\.part", left.name)

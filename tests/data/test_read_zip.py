"""Zip: the same bytes as Python's zipfile reads, zip64, cut, damaged and hostile archives."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import warnings
import zipfile
import zlib

import pytest
from holed_file import HoledFile
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.containers.reading import AS_IT_IS, Member, Truncated
from paceline.data.containers.zip import inflate, zip_members

PHOTO = bytes(range(256)) * 4


class Pipe(io.RawIOBase):
    """A file that cannot go back: what is written to it says sizes behind the bytes."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[override]
        self.bytes += bytes(data)
        return len(data)


def end_of(member: Member) -> int:
    return member.offset + (member.length if member.stored == AS_IT_IS else member.stored)


def read_all(data: bytes, name: str = "a.zip") -> list[Member]:
    return list(zip_members(io.BytesIO(data), len(data), name))


def photo(data: bytes, member: Member) -> bytes:
    stored = data[member.offset : end_of(member)]
    content = stored if member.stored == AS_IT_IS else inflate(stored, member.length)
    if zlib.crc32(content) != member.crc:  # as preparing compares it
        raise ValueError("another checksum")
    return content


def packed(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def central(data: bytes, number: int = 0) -> int:
    """Where the directory's entry of that number begins."""
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\1\2", at + 1)
    return at


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    new = struct.pack("<" + form, *values)
    return data[:at] + new + data[at + len(new) :]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text("abü/.\u65e5", min_size=1, max_size=12).filter(
            lambda name: (
                not name.startswith("/") and all(part not in ("", ".", "..") for part in name.removesuffix("/").split("/"))
            )
        ),
        st.tuples(st.sampled_from([b"", b"abc", PHOTO, bytes(5000)]), st.sampled_from([0, 8]), st.booleans()),
        max_size=6,
    ),
    st.booleans(),
    st.sampled_from([b"", b"#!/bin/sh\n"]),
    st.sampled_from([b"", b"made by hand"]),
)
def test_the_same_files_as_zipfile_reads(files, piped, before, comment):
    out = Pipe() if piped else io.BytesIO()
    out.write(before)
    with zipfile.ZipFile(out, "w") as archive:  # type: ignore[arg-type]
        for name, (content, method, large) in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=large) as file:
                file.write(b"" if name.endswith("/") else content)
        archive.comment = comment
    data = bytes(out.bytes) if isinstance(out, Pipe) else out.getvalue()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        wanted = [(info.filename, archive.read(info)) for info in archive.infolist() if not info.is_dir()]
    assert [(member.name.decode(), photo(data, member)) for member in read_all(data)] == wanted


def test_infozips_own_archives(tmp_path, need_program):
    program = need_program("zip", "zip")
    for number in range(5):
        path = tmp_path / "val2017" / f"{number:012d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PHOTO * number)
    for options in ("-0", "-9", "-fz"):
        target = tmp_path / f"a{options}.zip"
        subprocess.run([program, "-q", "-r", options, target, "val2017"], cwd=tmp_path, check=True)
        data = target.read_bytes()
        assert {member.name.decode(): photo(data, member) for member in read_all(data)} == {
            f"val2017/{number:012d}.jpg": PHOTO * number for number in range(5)
        }


def test_offsets_beyond_32_bits():
    # A second member behind 5 GiB that are only said to be there.
    hole = 5 << 30
    data = packed(("a.jpg", PHOTO), ("b.jpg", b"photo"))
    second, directory = data.index(b"PK\3\4", 4), central(data)
    entry = data[central(data, 1) : data.index(b"PK\5\6")]
    large = struct.pack("<HHQ", 1, 8, second + hole)
    entry = patched(patched(entry, 30, "H", len(large)), 42, "I", 0xFFFFFFFF) + large
    entries = data[directory : central(data, 1)] + entry
    at = directory + hole
    end = (
        struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(entries), at)
        + struct.pack("<4sIQI", b"PK\6\7", 0, at + len(entries), 1)
        + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    )
    tail = data[second:directory] + entries + end

    size = second + hole + len(tail)
    members = list(zip_members(HoledFile({0: data[:second], second + hole: tail}, size), size, "a.zip"))  # type: ignore[arg-type]
    assert [(member.name, member.offset) for member in members] == [(b"a.jpg", 35), (b"b.jpg", second + hole + 35)]


def test_a_large_directory_behind_a_program_that_unpacks_itself():
    # The locator counts without what was put before the archive.
    data, before = packed(("a.jpg", PHOTO)), b"#!/bin/sh\n" * 100
    at = central(data)
    entries = data[at : data.index(b"PK\5\6")]
    end = (
        struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entries), at)
        + struct.pack("<4sIQI", b"PK\6\7", 0, at + len(entries), 1)
        + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    )
    (member,) = read_all(before + data[:at] + entries + end)
    assert (member.name, member.offset) == (b"a.jpg", len(before) + 35)


def test_a_comment_that_holds_the_end_mark():
    data = packed(("a.jpg", PHOTO))
    comment = b"PK\5\6 is the end" + bytes(30)
    assert len(read_all(patched(data, len(data) - 2, "H", len(comment)) + comment)) == 1
    assert read_all(packed()) == []


def test_cut_off_at_any_byte_all_whole_members_survive():
    data = packed(("a.jpg", b"first"), ("b.jpg", bytes(100)), ("c.jpg", b"third"), method=zipfile.ZIP_DEFLATED)
    whole = read_all(data)
    for cut in range(4, len(data)):
        survive = sum(end_of(member) <= cut for member in whole)
        found = zip_members(io.BytesIO(data[:cut]), cut, "a.zip")
        assert [next(found) for _ in range(survive)] == whole[:survive]
        with raises(Truncated, "a.zip", f"byte {cut}", f"after {survive} complete") as error:
            next(found)
        assert (error.value.offset, error.value.records) == (cut, survive)


def test_cut_off_with_sizes_in_an_extra_field_or_behind_the_bytes():
    for out, survive in ((io.BytesIO(), 2), (Pipe(), 0)):
        with zipfile.ZipFile(out, "w") as archive:  # type: ignore[arg-type]
            for name in ("a.jpg", "b.jpg"):
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
                    file.write(PHOTO)
        data = bytes(out.bytes) if isinstance(out, Pipe) else out.getvalue()
        with pytest.raises(Truncated, match=f"after {survive} complete records"):
            read_all(data[: central(data) + 7])


def test_a_directory_that_counts_otherwise():
    data = packed(("a.jpg", PHOTO), ("b.jpg", PHOTO))
    with raises(DataError, "3 members", "2"):
        read_all(patched(data, len(data) - 14, "HH", 3, 3))


def test_cut_off_behind_a_zip_that_is_a_member():
    data = packed(("inner.zip", packed(("a.jpg", PHOTO))), ("b.jpg", PHOTO))
    end = data.index(b"PK\3\4", 1100)
    found = zip_members(io.BytesIO(data[:end]), end, "a.zip")
    assert next(found).name == b"inner.zip"
    with pytest.raises(Truncated, match="after 1 complete records"):
        next(found)


def test_a_local_header_that_says_otherwise_than_the_directory():
    data = packed(("a.jpg", PHOTO))
    for at, value in ((14, 7), (18, 5), (22, 5)):
        with raises(DataError, "a.zip", "byte 0", "a.jpg"):
            read_all(patched(data, at, "I", value))
    with raises(DataError, "a.zip", "byte 0", "a.jpg"):
        read_all(data.replace(b"a.jpg", b"b.jpg", 1))


def test_any_flipped_byte_is_an_error_or_the_same_photos():
    data = packed(("a.jpg", b"first"), ("b.jpg", bytes(100)), method=zipfile.ZIP_DEFLATED)
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0x11]) + data[place + 1 :]
        try:
            photos = [photo(damaged, member) for member in read_all(damaged)]
        except DataError as error:
            assert str(error).startswith("a.zip: ")
            assert "\n" not in str(error)
        except ValueError:
            pass  # listed, and refused when it is read
        else:
            assert photos == [b"first", bytes(100)]


@pytest.mark.parametrize("name", ["../a.jpg", "n01/../../a.jpg", "/etc/a.jpg", "a\nb.jpg", "../"])
def test_names_that_leave_the_folder_or_forge_lines_are_refused(name):
    with raises(DataError, "a.zip", "name", "archive"):
        read_all(packed(("ok.jpg", PHOTO), (name, b"")))


def test_backslashes_of_old_windows_programs_are_slashes():
    data = packed(("n01_a.jpg", PHOTO), ("x_y_z.jpg", PHOTO)).replace(b"n01_a", b"n01\\a").replace(b"x_y_z", b"..\\yz")
    at = central(data)
    with pytest.raises(DataError, match="path with"):
        read_all(patched(patched(data, at + 5, "B", 0), central(data, 1) + 5, "B", 0))
    assert read_all(patched(data, at + 5, "B", 0))[0].name == b"n01/a.jpg"
    assert read_all(data)[0].name == b"n01\\a.jpg"  # Unix: part of a name


def test_links_under_a_photos_name_are_refused_others_passed_over():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("latest", "a.jpg"):
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, b"/etc/passwd")
    with raises(DataError, "a.jpg", "symbolic link"):
        read_all(out.getvalue())
    assert read_all(out.getvalue().replace(b"a.jpg", b"a.txt")) == []


@pytest.mark.parametrize(("method", "said"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")])
def test_other_methods_are_refused_by_name(method, said):
    with pytest.raises(DataError, match=rf"^a\.zip: x\.jpg .*{said}.*deflated"):
        read_all(packed(("x.jpg", PHOTO), method=method))


def test_an_encrypted_member_is_refused():
    data = packed(("x.jpg", PHOTO))
    with pytest.raises(DataError, match=r"x\.jpg is encrypted"):
        read_all(patched(patched(data, 6, "H", 1), central(data) + 8, "H", 1))


class TestBombs:
    def test_members_that_share_bytes(self):
        data = packed(("a.jpg", PHOTO), ("b.jpg", PHOTO))
        # The second entry becomes a copy of the first.
        first, second = central(data), central(data, 1)
        shared = data[:second] + data[first:second] + data[second + (second - first) :]
        with raises(DataError, "a.zip", "a.jpg", "bomb"):
            read_all(shared)

    def test_a_member_that_reaches_into_the_directory(self):
        data = packed(("a.jpg", PHOTO))
        at = central(data)
        data = patched(patched(data, 18, "II", 1100, 1100), at + 20, "II", 1100, 1100)
        with pytest.raises(DataError, match="zip bomb"):
            read_all(data)

    def test_a_length_that_no_photo_has(self):
        data = packed(("a.jpg", bytes(100_000)), method=zipfile.ZIP_DEFLATED)
        for length in (4 << 20, 100 << 20):
            with pytest.raises(DataError, match=r"a\.jpg .* bytes, .* zip bomb"):
                read_all(patched(patched(data, 22, "I", length), central(data) + 24, "I", length))

    def test_a_large_photo_packed_as_no_photo_is(self):
        data = packed(("a.jpg", random.Random(0).randbytes(300_000)), method=zipfile.ZIP_DEFLATED)
        lying = patched(patched(data, 22, "I", 100 << 20), central(data) + 24, "I", 100 << 20)
        with pytest.raises(DataError, match=r"a\.jpg .* from 300,\d+ to 104,857,600 bytes, .* zip bomb"):
            read_all(lying)
        assert len(read_all(lying.replace(b"a.jpg", b"a.csv"))) == 1

    def test_a_stored_member_of_two_sizes(self):
        data = packed(("a.jpg", PHOTO))
        with raises(DataError, "a.jpg", "two sizes"):
            read_all(patched(patched(data, 22, "I", 5), central(data) + 24, "I", 5))

    def test_a_length_that_is_not_true(self):
        data = packed(("a.jpg", bytes(100_000)), method=zipfile.ZIP_DEFLATED)
        for length, said in (
            (99_999, "unpacks to more than 99,999 bytes"),
            (100_001, "its compressed data ends before 100,001 bytes"),
        ):
            lying = patched(patched(data, 22, "I", length), central(data) + 24, "I", length)
            (member,) = read_all(lying)
            with pytest.raises(ValueError, match=said):
                photo(lying, member)

    def test_packed_bytes_that_end_early_or_are_none(self):
        data = packed(("a.jpg", PHOTO), method=zipfile.ZIP_DEFLATED)
        (member,) = read_all(data)
        stored = data[member.offset : end_of(member)]
        for bad, said in ((stored[:-1], "compressed data ends before"), (b"\xff" * 20, "cannot be unpacked")):
            with pytest.raises(ValueError, match=said):
                inflate(bad, member.length)


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0" * 300, b"", b"PK"])
def test_another_file_is_no_zip(data):
    with pytest.raises(DataError):
        read_all(data)


def test_one_of_several_files_is_named():
    data = packed(("a.jpg", PHOTO))
    with raises(DataError, "split zip"):
        read_all(patched(data, len(data) - 18, "HH", 1, 1))


def test_an_archive_with_the_same_name_twice_gives_both():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(read_all(packed(("a.jpg", PHOTO), ("a.jpg", PHOTO)))) == 2


def names_of(name: bytes, flags: int) -> list[bytes]:
    """The names that are read of a zip with one member of this stored name."""
    info = zipfile.ZipInfo("x" * len(name))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, PHOTO)
    data = bytearray(out.getvalue().replace(b"x" * len(name), name))
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        struct.pack_into("<H", data, data.index(mark) + place, flags)
    whole = [member.name for member in read_all(bytes(data))]
    with pytest.raises(Truncated):  # without its directory, by the local headers
        for member in zip_members(io.BytesIO(bytes(data[: data.index(b"PK\1\2")])), data.index(b"PK\1\2"), "a.zip"):
            assert [member.name] == whole
    return whole


def test_a_name_without_bit_11_is_utf8_if_it_can_be_and_else_cp437():
    name = "\u00c4pfel/1.jpg"
    utf8, cp437 = name.encode(), name.encode("cp437")
    assert names_of(utf8, 0x800) == names_of(utf8, 0) == names_of(cp437, 0) == [utf8]
    assert names_of(b"a/1.jpg", 0) == [b"a/1.jpg"]
    assert names_of(cp437, 0x800) == [cp437]  # it says that it is UTF-8, and is not: kept as it is

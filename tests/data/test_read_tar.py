"""Tar: the same files at the same places as Python's tarfile has them, cut, damaged and hostile archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import tarfile

import pytest
from holed_file import HoledFile
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.containers.reading import Member, Truncated
from paceline.data.containers.tar import inner_tars, tar_members, write_tar

# Parts of names, many of them too long for one field or another.
PARTS = st.builds(
    lambda text, times: text * times,
    st.text("abü \u65e5.", min_size=1, max_size=4).filter(lambda text: text.strip(".")),
    st.sampled_from([1, 1, 20, 90]),
)
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def read_all(data: bytes, name: str = "a.tar") -> list[Member]:
    return list(tar_members(io.BytesIO(data), len(data), name))


def by_tarfile(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [Member(os.fsencode(m.name), m.offset_data, m.size) for m in archive if m.isreg() and not m.issparse()]


def packed(*members: tuple[str, bytes | tarfile.TarInfo], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(info)
    return out.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(PARTS, min_size=1, max_size=3),
            st.sampled_from([0, 1, 511, 512, 513]),
            st.sampled_from(["plain", "plain", "plain", "folder", "link", "timed"]),
        ),
        max_size=6,
    ),
    st.sampled_from(FORMATS),
)
def test_the_same_files_as_tarfile_finds(files, form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for parts, length, kind in files:
            info = tarfile.TarInfo("/".join(parts))
            if kind == "timed":  # gives a pax header of its own
                info.mtime = 1.25
            if kind in ("folder", "link"):
                info.type = tarfile.DIRTYPE if kind == "folder" else tarfile.SYMTYPE
                info.linkname = "x" * length if kind == "link" and form != tarfile.USTAR_FORMAT else ""
            else:
                info.size = length
            try:
                archive.addfile(info, io.BytesIO(bytes(info.size)))
            except ValueError:  # ustar has no room for the name
                assert form == tarfile.USTAR_FORMAT
    data = out.getvalue()
    assert read_all(data) == by_tarfile(data)


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_gnu_tars_own_archives(tmp_path, form, need_program):
    tar = need_program("tar", "tar")
    # v7 has room for 99 bytes; ustar for 155 more, before a slash; the others for any.
    long = {"v7": "l" * 80, "ustar": "l" * 80 + "/" + "m" * 60}.get(form, "l" * 200)
    for number, name in enumerate(["n01/a.JPEG", "n01/b.JPEG", f"n02/{long}/c.JPEG", "n02/d.JPEG"]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(700 * number))
    (tmp_path / "photos" / "n03").mkdir()
    if form != "v7":
        (tmp_path / "photos" / "n02" / "e").symlink_to("x" * 99 if form == "ustar" else "x" * 200)
    subprocess.run(
        [tar, f"--format={form}", "--sort=name", "-C", tmp_path / "photos", "-cf", tmp_path / "a.tar", "."], check=True
    )
    data = (tmp_path / "a.tar").read_bytes()
    members = read_all(data)
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert len(members) == 4
    for name, offset, length, *_ in members:
        assert data[offset : offset + length] == (tmp_path / "photos" / os.fsdecode(name)).read_bytes()


def test_our_own_archives_are_those_that_tarfile_reads():
    files = [
        (b"a/0.jpg", b"x" * 513),
        ("ü".encode() * 90 + b".cls", b"3"),
        (b"b/\xff.jpg", b""),
        (b"d/" * 90 + b"e", b"12"),
    ]
    out = io.BytesIO()
    placed = write_tar(out, files)
    data = out.getvalue()
    assert len(data) % 10240 == 0
    assert [data[offset : offset + length] for offset, length in placed] == [content for _, content in files]
    assert read_all(data) == by_tarfile(data) == [Member(name, *place) for (name, _), place in zip(files, placed)]


def test_a_folder_of_one_letter_before_a_name_that_fills_its_field_is_kept():
    names = ["a/" + "b" * 96 + ".jpg", "c" * 60 + "/" + "d" * 60 + ".jpg"]
    data = packed(*((name, b"x") for name in names), form=tarfile.USTAR_FORMAT)
    assert [member.name.decode() for member in read_all(data)] == names


def test_sizes_beyond_octal_digits():
    # 8 GiB and more stand as a binary number (GNU) or in pax' records; the archive is made as holes around two headers.
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("large.bin")
        info.size = (1 << 33) + 5
        head = info.tobuf(form)
        after = packed(("b.jpg", b"photo"))
        size = len(head) + (1 << 33) + 512 + len(after)

        parts = {0: head, size - len(after): after}
        members = list(tar_members(HoledFile(parts, size), size, "a.tar"))  # type: ignore[arg-type]
        assert [(m.name, m.length) for m in members] == [(b"large.bin", (1 << 33) + 5), (b"b.jpg", 5)]


def test_cut_off_at_any_byte_all_whole_files_survive():
    data = packed(("a.jpg", b"first"), ("b" * 150 + ".jpg", bytes(600)), ("c.cls", b"3"))
    whole = read_all(data)
    end = whole[-1].offset + 512
    for cut in [*range(0, end + 512, 37), *(m.offset + m.length for m in whole), end, end + 511]:
        survive = sum(member.offset + member.length <= cut for member in whole)
        with raises(Truncated, "a.tar", f"byte {cut:,}", f"after {survive} complete") as error:
            read_all(data[:cut])
        assert (error.value.offset, error.value.records) == (cut, survive)
    assert read_all(data[: end + 512]) == whole  # one block of zeros is enough


def test_flipped_bits_of_a_header_are_noticed():
    data = packed(("a.jpg", b"first"), ("b.jpg", b"second"))
    for place in set(range(1024, 1024 + 512)) - {1024 + 155}:  # the blank behind the sum means nothing
        damaged = data[:place] + bytes([data[place] ^ 0x05]) + data[place + 1 :]
        with raises(DataError, "a.tar", "byte 1,024", "checksum"):
            read_all(damaged)


@pytest.mark.parametrize("name", ["../a.jpg", "n01/../../a.jpg", "/etc/a.jpg", "..", "a/..", "a\nb.jpg", "x" * 5000])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_names_that_leave_the_folder_or_forge_lines_are_refused(name, kind):
    with raises(DataError, "a.tar", "name", "archive") as error:
        read_all(packed(("ok.jpg", b"photo"), (name, special(kind)), form=tarfile.PAX_FORMAT))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_under_a_photos_name_are_refused_others_passed_over(kind):
    with raises(DataError, "a.tar", "n01/b.JPEG", "tar", "--hard-dereference"):
        read_all(packed(("n01/b.JPEG", special(kind, "/etc/passwd"))))
    data = packed(("latest", special(kind, "/etc/passwd")), ("n01/a.JPEG", b"photo"))
    assert [member.name for member in read_all(data)] == [b"n01/a.JPEG"]


def test_a_links_long_target_is_not_its_name():
    with raises(DataError, "a.tar", "n01/b.JPEG", "symbolic link"):
        read_all(packed(("n01/b.JPEG", special(tarfile.SYMTYPE, "x" * 200)), form=tarfile.GNU_FORMAT))


def test_a_length_that_pax_says_of_a_link_is_not_passed_over():
    link = special(tarfile.SYMTYPE, "a.jpg")
    link.pax_headers = {"size": "512"}
    data = packed(("latest", link), ("n01/a.jpg", b"photo"), form=tarfile.PAX_FORMAT)
    assert read_all(data) == by_tarfile(data) == [Member(b"n01/a.jpg", 2048, 5)]


def test_sparse_files(tmp_path, need_program):
    tar = need_program("tar", "tar")
    with (tmp_path / "holes.bin").open("wb") as file:
        for place in range(0, 40):  # more holes than one header maps
            file.seek(place << 16)
            file.write(b"x" * 4096)
    (tmp_path / "z.jpg").write_bytes(b"photo")
    for form in ("gnu", "posix"):
        subprocess.run(
            [tar, f"--format={form}", "-S", "-C", tmp_path, "-cf", tmp_path / "a.tar", "holes.bin", "z.jpg"], check=True
        )
        data = (tmp_path / "a.tar").read_bytes()
        (member,) = read_all(data)
        assert data[member.offset : member.offset + member.length] == b"photo"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: b"\x28\xb5\x2f\xfd" + data])
def test_a_compressed_tar_is_refused_with_the_next_step(pack):
    with pytest.raises(DataError, match=r"^a\.tar: .*compressed .*:  \w+ "):
        read_all(pack(random.Random(0).randbytes(2000)))


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0" * 300, b"PK\3\4" + bytes(600)])
def test_another_file_is_no_tar(data):
    with raises(DataError, "start", "tar", "header"):
        read_all(data)


def test_a_second_tar_behind_the_first_is_said():
    one = packed(("a.jpg", b"photo"))
    with raises(DataError, "byte 10,240", "second"):
        read_all(one + one)
    assert len(read_all(one + b"garbage" * 200)) == 1


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (b"99 path=x\n", "pax records"),
        (b"3 path=x\n", "pax records"),
        (b"11 size=-5\n", "length.*number"),
        (b"11 size=\xc2\xb2\n", "length.*number"),
    ],
)
def test_damaged_pax_records_are_named(records, said):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    data = packed(("a.jpg", b"photo"))[:1024] + info.tobuf() + records.ljust(512, b"\0") + packed(("b.jpg", b"photo"))
    with pytest.raises(DataError, match=f"byte 1,024 .*{said}"):
        read_all(data)


@pytest.mark.parametrize("record", [b"14 path=a.jpg\n", b"9 size=5\n"])
def test_a_name_or_length_for_all_files_is_refused(record):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XGLTYPE, len(record)
    with raises(DataError, "length"):
        read_all(packed(("a.jpg", b"photo"))[:1024] + info.tobuf() + record.ljust(512, b"\0") + packed(("b.jpg", b"photo")))


def test_folders_as_they_were_marked_before_ustar():
    folder = tarfile.TarInfo("n01/")
    folder.type, folder.size = tarfile.AREGTYPE, 512  # a folder's length says nothing about what follows
    data = folder.tobuf(tarfile.USTAR_FORMAT) + packed(("n01/a.jpg", b"photo"))
    assert read_all(data) == by_tarfile(data) == [Member(b"n01/a.jpg", 1024, 5)]


def test_notes_without_end_are_not_read():
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    with raises(DataError, "4,294,967,296 bytes"):
        read_all(packed(("a.jpg", b"photo"))[:1024] + info.tobuf() + bytes(4096))


class TestTarInTar:
    INNER = packed(("n01_1.JPEG", b"first"), ("n01_2.JPEG", bytes(700)))
    OTHER = packed(("n02_1.JPEG", b"third"))

    def found(self, data: bytes) -> list[tuple[bytes, Member]]:
        return list(inner_tars(io.BytesIO(data), len(data), "all.tar"))

    def test_photos_have_their_places_in_the_outer_file(self):
        data = packed(("n01.tar", self.INNER), ("notes.txt", b"x"), ("n02.tar", self.OTHER))
        found = self.found(data)
        assert [(tar, member.name) for tar, member in found] == [
            (b"n01.tar", b"n01_1.JPEG"),
            (b"n01.tar", b"n01_2.JPEG"),
            (b"n02.tar", b"n02_1.JPEG"),
        ]
        assert [data[m.offset : m.offset + m.length] for _, m in found] == [b"first", bytes(700), b"third"]

    def test_cut_off_inside_an_inner_tar_what_is_whole_there_survives(self):
        data = packed(("n01.tar", self.INNER), ("n02.tar", self.OTHER))
        places = [member for _, member in self.found(data)]
        for cut in (100, 512, 1100, *(m.offset + m.length for m in places), len(self.INNER) + 512, len(self.INNER) + 1200):
            survive = sum(member.offset + member.length <= cut for member in places)
            with raises(Truncated, "all.tar", f"byte {cut:,}", f"after {survive} complete"):
                self.found(data[:cut])

    def test_an_inner_tar_that_was_cut_before_it_was_packed(self):
        data = packed(("n01.tar", self.INNER[:1500]), ("n02.tar", self.OTHER))
        with raises(Truncated, "byte 2,012", "after 1 complete"):
            self.found(data)

    def test_what_is_wrong_inside_is_named_with_both_names(self):
        with raises(DataError, "all.tar", "n01.tar", "../x.JPEG"):
            self.found(packed(("n01.tar", packed(("../x.JPEG", b"")))))
        with raises(DataError, "all.tar", "x.JPEG", "inner tars"):
            self.found(packed(("n01.tar", self.INNER), ("x.JPEG", b"photo")))
        with raises(DataError, "all.tar", "n01.tar", "compressed"):
            self.found(packed(("n01.tar", gzip.compress(self.INNER))))

"""RecordIO: MXNet's own files to the last byte and label, files of any shape, files that are damaged."""

from __future__ import annotations

import hashlib
import io
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.containers.reading import Truncated
from paceline.data.containers.recordio import (
    MAGIC,
    Record,
    RecordIOContent,
    check_idx,
    format_idx,
    format_lst_line,
    parse_detection_label,
    read_idx,
    read_lst,
    read_payload,
    read_recordio,
    record_bytes,
    write_recordio,
)

# Runs of bytes in which the magic word stands often, at all remainders.
PAYLOADS = st.lists(st.sampled_from([MAGIC, MAGIC[:2], b"\xff\xd8", b"abcd", b"x"]), max_size=8).map(b"".join)
LABELS = st.one_of(
    st.floats(width=32, allow_nan=False), st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=30)
)


def read_all(data: bytes, name: str = "a.rec") -> list[Record]:
    return list(read_recordio(io.BytesIO(data), len(data), name))


def photo(data: bytes, record: Record) -> bytes:
    if record.parts == 1:
        return data[record.offset : record.offset + record.length]
    return read_payload(lambda offset, length: data[offset : offset + length], record.start, record.extent, "a.rec")


def packed(*photos: bytes, labels: float | list[float] = 1.0) -> bytes:
    out = io.BytesIO()
    write_recordio(out, [RecordIOContent(number, labels, data) for number, data in enumerate(photos)])
    return out.getvalue()


def test_what_im2rec_packed_comes_back_as_the_photos_were(shared_data):
    folder = shared_data / "formats" / "recordio"
    data = (folder / "imagenet_style.rec").read_bytes()
    records = read_all(data)
    listed = list(read_lst((folder / "imagenet_style.lst").read_bytes(), "imagenet_style.lst"))
    assert len(records) == len(listed) == 60
    for record, line in zip(records, listed):
        assert (record.id, tuple(record.labels)) == (line.id, line.labels)
        paths = [shared_data / "imagenette224" / split / line.path.decode() for split in ("train", "val")]
        assert photo(data, record) == next(path for path in paths if path.exists()).read_bytes()


def test_records_that_mxnet_split_are_joined_again(shared_data):
    folder = shared_data / "formats" / "recordio"
    data = (folder / "split_records.rec").read_bytes()
    said = json.loads((folder / "split_records.json").read_text())
    for record, wanted in zip(read_all(data), said, strict=True):
        assert record.id == wanted["id"]
        np.testing.assert_array_equal(record.labels, np.array(wanted["label"], np.float32, ndmin=1))
        assert record.length == wanted["bytes"]
        assert hashlib.sha256(photo(data, record)).hexdigest() == wanted["sha256"]


@pytest.mark.parametrize("stem", ["imagenet_style", "split_records"])
def test_the_writer_writes_mxnets_bytes(shared_data, stem):
    folder = shared_data / "formats" / "recordio"
    data = (folder / f"{stem}.rec").read_bytes()
    out = io.BytesIO()
    again = [
        RecordIOContent(
            record.id, record.labels if len(record.labels) > 1 else float(record.labels[0]), photo(data, record)
        )
        for record in read_all(data)
    ]
    placed = write_recordio(out, again)
    assert out.getvalue() == data
    assert format_idx(placed) == (folder / f"{stem}.idx").read_bytes()
    if stem == "imagenet_style":
        listed = list(read_lst((folder / f"{stem}.lst").read_bytes(), "a.lst"))
        assert b"".join(format_lst_line(*line) for line in listed) == (folder / f"{stem}.lst").read_bytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), LABELS, PAYLOADS), max_size=5))
def test_any_records_come_back(records):
    out = io.BytesIO()
    write_recordio(out, [RecordIOContent(*record) for record in records])
    data = out.getvalue()
    found = read_all(data)
    assert len(found) == len(records)
    for record, (number, labels, payload) in zip(found, records):
        assert (record.id, record.length, photo(data, record)) == (number, len(payload), payload)
        np.testing.assert_array_equal(record.labels, np.array(labels, np.float32, ndmin=1))


def test_a_label_that_is_the_magic_word_is_read_where_it_was_cut():
    word = struct.unpack("<f", MAGIC)[0]
    data = record_bytes(RecordIOContent(0xCED7230A, [1.0, word, 2.0], b"photo"))
    (record,) = read_all(data)
    assert record.parts == 3
    assert record.id == 0xCED7230A
    np.testing.assert_array_equal(record.labels, np.array([1.0, word, 2.0], np.float32))
    assert photo(data, record) == b"photo"


def test_cut_off_at_any_byte_all_whole_records_survive():
    data = packed(b"first", MAGIC + b"second" + bytes(2) + MAGIC, b"third!", labels=[1.0, 2.0, 3.0])
    whole = read_all(data)
    for cut in range(len(data)):
        found = []
        survive = sum(record.start + record.extent <= cut for record in whole)
        if cut in {record.start for record in whole}:  # a shorter file, whole
            assert len(read_all(data[:cut])) == survive
            continue
        with raises(Truncated, "a.rec", f"byte {cut}", f"after {survive} complete") as error:
            found.extend(read_recordio(io.BytesIO(data[:cut]), cut, "a.rec"))
        assert (error.value.offset, error.value.records) == (cut, survive)
    assert read_all(b"") == []


def test_a_record_that_survives_the_cut_was_given_out():
    data = packed(b"first", b"second")[:-6]
    found = read_recordio(io.BytesIO(data), len(data), "a.rec")
    assert next(found).length == 5
    with pytest.raises(Truncated):
        next(found)


def test_any_flipped_byte_is_an_error_or_another_record():
    data = packed(b"first", MAGIC + b"second", labels=[1.0, 2.0])
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            records = read_all(damaged)
        except DataError as error:
            assert str(error).startswith("a.rec: ")
            assert "\n" not in str(error)
        else:
            assert all(record.offset + record.length <= len(data) for record in records)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"\xff\xd8\xff\xe0" * 20, "not a RecordIO file", id="a photo"),
        pytest.param(packed(b"first") + b"garbage!" * 8, "magic number ... after 1 complete", id="garbage behind"),
        pytest.param(MAGIC + struct.pack("<I", 8) + bytes(8), "image header", id="no header"),
        pytest.param(
            MAGIC + struct.pack("<I", 24) + struct.pack("<IfQQ", 9, 0, 0, 0),
            "the 9 labels of its header",
            id="too many labels",
        ),
        pytest.param(
            MAGIC + struct.pack("<I", 3 << 29 | 24) + bytes(24), "first part of this record", id="last piece first"
        ),
        pytest.param((MAGIC + struct.pack("<I", 1 << 29 | 24) + bytes(24)) * 2, "last", id="two first pieces"),
    ],
)
def test_what_is_no_record_is_named(data, said):
    with raises(DataError, said):
        read_all(data)


def test_a_split_record_that_was_overwritten_is_noticed():
    data = packed(MAGIC + b"photo")
    (record,) = read_all(data)
    with raises(DataError, "a.rec", "record"):
        read_payload(lambda offset, length: bytes(length), record.start, record.extent, "a.rec")


class TestIdx:
    def checked(self, idx: bytes, data: bytes) -> None:
        records = read_all(data)
        keys, offsets = read_idx(idx, "a.idx")
        starts, ids = (np.array(values, np.int64) for values in zip(*((r.start, r.id) for r in records)))
        check_idx(keys, offsets, starts, ids, len(data), "a.idx", "a.rec")

    def test_its_own_in_any_order_is_taken(self):
        self.checked(b"1\t40\n0\t0\n", packed(b"12345", b"abc"))

    def test_a_file_cut_between_two_records_is_noticed(self):
        data = packed(b"12345", b"abc")
        with raises(Truncated, "a.rec", "byte 40", "a.idx", "1 complete"):
            self.checked(b"0\t0\n1\t40\n", data[:40])

    def test_keys_of_ones_own_are_taken(self):
        self.checked(b"100\t0\n200\t40\n", packed(b"12345", b"abc"))

    @pytest.mark.parametrize(
        ("idx", "said"),
        [
            pytest.param(b"0\t0\n", "lists 1 records, but a.rec has 2", id="shorter"),
            pytest.param(b"0\t0\n1\t36\n", "record 1 ... byte 36", id="other places"),
            pytest.param(b"1\t0\n0\t40\n", "byte 0 ... record 1 ... a.rec", id="other order"),
            pytest.param(b"0\t0\n0\t40\n", "key 0 ... once", id="a key twice"),
            pytest.param(b"0\t0\n1\t0\n", "offset 0 ... once", id="an offset twice"),
            pytest.param(b"0\t0\n1 40\n", "line 2 is", id="no tab"),
            pytest.param(b"0\t0\n1\t-40\n", "line 2 is", id="below zero"),
            pytest.param(b"0\t0\n1\t" + b"9" * 30 + b"\n", "line 2 is", id="too large"),
        ],
    )
    def test_that_of_other_data_is_refused(self, idx, said):
        with raises(DataError, said) as error:
            self.checked(idx, packed(b"12345", b"abc"))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", [b"1\tphoto.jpg", b"x\t1.0\tphoto.jpg", b"1\tcat\tphoto.jpg", b"1\tnan\tphoto.jpg"])
def test_a_line_that_is_none_of_a_list_is_named(line):
    with pytest.raises(DataError, match=r"a\.lst: line 2, "):
        list(read_lst(b"0\t1.0\tok.jpg\n" + line, "a.lst"))


class TestDetectionLabel:
    def test_boxes_classes_and_what_else_stands_there(self):
        objects = parse_detection_label(
            np.array([4, 6, 640, 480, 3, 0.1, 0.2, 0.3, 0.4, 1, 0, 0, 0, 1, 1, 0], np.float32), "a.rec"
        )
        np.testing.assert_array_equal(objects.boxes, np.array([[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]], np.float32))
        assert objects.classes.tolist() == [3, 0]
        assert objects.extra.tolist() == [[1], [0]]

    def test_no_objects_and_padding(self):
        assert parse_detection_label(np.array([2, 5], np.float32), "a.rec").boxes.shape == (0, 4)
        padded = np.array([2, 5, *[-1] * 5, 7, 0, 0, 1, 1], np.float32)
        assert parse_detection_label(padded, "a.rec").classes.tolist() == [7]

    @pytest.mark.parametrize(
        ("numbers", "said"),
        [
            ([3], "detection label"),
            ([2, 4, 1, 0, 0, 1], "label ... 2, 4"),
            ([2, 5, 1, 0, 0, 1], "has 6 values"),
            ([9, 5, 1], "has 3 values"),
            ([2, 5, 0.5, 0, 0, 1, 1], "has class 0.5"),
            ([2, 5, 1e30, 0, 0, 1, 1], "has class 1e"),
            ([2, 5, 1, 0, float("nan"), 1, 1], "detection label"),
        ],
    )
    def test_another_label_is_refused(self, numbers, said):
        with raises(DataError, said):
            parse_detection_label(np.array(numbers, np.float32), "a.rec")

"""TFRecord: TensorFlow's own files to the last byte and label, any Example, files that are damaged."""

from __future__ import annotations

import gzip
import io
import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.containers.reading import Truncated
from paceline.data.containers.tfrecord import (
    RecordSpan,
    coco_example,
    example_bytes,
    imagenet_example,
    masked_crc32c,
    parse_example,
    tfrecord_spans,
    write_tfrecord,
)


def read_all(data: bytes, name: str = "a.tfrecord") -> list[RecordSpan]:
    return list(tfrecord_spans(io.BytesIO(data), len(data), name))


def written(*records: bytes) -> bytes:
    out = io.BytesIO()
    assert write_tfrecord(out, records) == len(records)
    return out.getvalue()


def test_the_checksum_is_the_one_that_the_standard_gives():
    # RFC 3720, B.4: 32 bytes of zeros give 0x8a9136aa; masked as TensorFlow's crc32c.h has it.
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_imagenets_layout_gives_photos_and_labels(shared_data):
    wnids = sorted(path.name for path in (shared_data / "imagenette224" / "val").iterdir())
    seen = 0
    for shard in range(2):
        path = shared_data / "formats" / "tfrecord" / f"imagenet_train-{shard:05d}-of-00002"
        data = path.read_bytes()
        for span in read_all(data):
            example = imagenet_example(parse_example(span.data, "a"), span.data, "a")
            assert wnids[example.label - 1] == example.synset
            photos = [
                shared_data / "imagenette224" / split / example.synset / example.filename for split in ("train", "val")
            ]
            begin = span.offset + example.photo.start
            assert data[begin : begin + example.photo.length] == next(p for p in photos if p.exists()).read_bytes()
            seen += 1
    assert seen == 40


def test_cocos_layout_gives_photos_and_objects(shared_data):
    coco = json.loads((shared_data / "coco_mini" / "annotations" / "instances_val2017.json").read_text())
    images = {image["id"]: image for image in coco["images"]}
    seen = []
    for shard in range(2):
        data = (shared_data / "formats" / "tfrecord" / f"coco_val-{shard:05d}-of-00002.tfrecord").read_bytes()
        for span in read_all(data):
            example = coco_example(parse_example(span.data, "a"), span.data, "a")
            image, objects = images[int(example.source_id)], example.boxes
            assert objects is not None
            begin = span.offset + example.photo.start
            photo = (shared_data / "coco_mini" / "val2017" / image["file_name"]).read_bytes()
            assert data[begin : begin + example.photo.length] == photo
            assert (objects.height, objects.width) == (image["height"], image["width"])
            wanted = [found for found in coco["annotations"] if found["image_id"] == image["id"]]
            assert objects.classes.tolist() == [found["category_id"] for found in wanted]
            assert objects.crowd.tolist() == [bool(found["iscrowd"]) for found in wanted]
            np.testing.assert_allclose(objects.areas, [found["area"] for found in wanted], rtol=1e-6)
            boxes = objects.boxes * ([image["width"], image["height"]] * 2)
            boxes[:, 2:] -= boxes[:, :2]
            np.testing.assert_allclose(boxes, [found["bbox"] for found in wanted], atol=1e-3)
            seen.append(image["id"])
    assert sorted(seen) == sorted(images)[:16]


VALUES = st.one_of(
    st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=10), VALUES, max_size=5))
def test_any_example_comes_back(features):
    data = example_bytes(features)
    found = parse_example(data, "a")
    assert found.keys() == features.keys()
    for name, values in features.items():
        if isinstance(values[0], bytes):
            assert found[name].texts(data) == values
        else:
            kept = found[name].ints if isinstance(values[0], int) else found[name].floats
            np.testing.assert_array_equal(kept, values)


def test_numbers_that_are_not_packed_and_unknown_fields():
    # field 1 (Features) { field 1 (entry) { key "a", value Feature { Int64List { value 5; value -1 } } } }, field 9: 300
    values = b"\x08\x05" + b"\x08" + b"\xff" * 9 + b"\x01"
    ints = b"\x1a" + bytes([len(values)]) + values
    entry = b"\x0a\x01a\x12" + bytes([len(ints)]) + ints
    features = b"\x0a" + bytes([len(entry)]) + entry
    data = b"\x48\xac\x02" + b"\x0a" + bytes([len(features)]) + features
    assert parse_example(data, "a")["a"].ints.tolist() == [5, -1]
    floats = b"\x12\x0a" + b"\x0d\x00\x00\x80\x3f" + b"\x0d\x00\x00\x00\x40"
    entry = b"\x0a\x01b\x12" + bytes([len(floats)]) + floats
    assert parse_example(b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry, "a")[
        "b"
    ].floats.tolist() == [1, 2]


def test_cut_off_at_any_byte_all_whole_records_survive():
    data = written(b"first", b"", b"third!")
    whole = read_all(data)
    ends = [span.offset + span.length + 4 for span in whole]
    for cut in range(len(data)):
        survive = sum(end <= cut for end in ends)
        if cut in (0, *ends):  # a shorter file, whole
            assert len(read_all(data[:cut])) == survive
            continue
        with raises(Truncated, "a.tfrecord", f"byte {cut}", f"after {survive} complete") as error:
            read_all(data[:cut])
        assert (error.value.offset, error.value.records) == (cut, survive)


def test_any_flipped_byte_is_noticed():
    data = written(b"first record", b"second")
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        with pytest.raises(DataError, match=r"^a\.tfrecord: ") as error:
            read_all(damaged)
        assert not isinstance(error.value, Truncated)
    late = data[:-5] + b"X" + data[-4:]
    with raises(DataError, "CRC-32C", "6 bytes", "record 1", "byte 28"):
        read_all(late)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_file_compressed_as_a_whole_is_refused_with_its_reason(pack):
    with raises(DataError, "compressed"):
        read_all(pack(written(bytes(1000))))


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0" * 20, b"PK\3\4" + bytes(30)])
def test_another_file_is_no_tfrecord(data):
    with raises(DataError, "TFRecord"):
        read_all(data)


def test_any_damaged_example_is_said_in_a_line_or_read_in_its_bounds():
    data = example_bytes({"image/encoded": [b"photo"], "image/class/label": [3], "f": [1.5]})
    for place in range(len(data)):
        for value in (0, 0x7F, 0xFF, data[place] ^ 1):
            damaged = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                found = parse_example(damaged, "a")
            except DataError as error:
                assert str(error).startswith("a: not a ")
            else:
                assert all(start + length <= len(damaged) for f in found.values() for start, length in f.ranges)
    for cut in range(1, len(data)):
        with pytest.raises(DataError, match=r"a tf\.train\.Example"):
            parse_example(data[:cut], "a")


PHOTO = {"image/encoded": [b"photo"]}


class TestLayouts:
    def test_no_objects(self):
        data = example_bytes({**PHOTO, "image/source_id": [b"7"], "image/object/mask": [], "image/object/is_crowd": []})
        example = coco_example(parse_example(data, "a"), data, "a")
        assert example.boxes is not None and example.boxes.boxes.shape == (0, 4)
        assert (example.source_id, example.boxes.crowd.tolist(), example.boxes.classes.tolist()) == ("7", [], [])

    def test_masks_are_those_of_the_record(self):
        corners = {f"image/object/bbox/{corner}": [0.5, 0.25] for corner in ("xmin", "ymin", "xmax", "ymax")}
        data = example_bytes(
            {**PHOTO, **corners, "image/object/class/label": [1, 90], "image/object/mask": [b"png1", b"png22"]}
        )
        objects = coco_example(parse_example(data, "a"), data, "a").boxes
        assert objects is not None and objects.masks == [b"png1", b"png22"]
        assert (objects.areas, objects.crowd.tolist()) == (None, [False, False])

    @pytest.mark.parametrize(
        ("layout", "features", "said"),
        [
            (imagenet_example, {"image/encoded": [b"x"]}, "image/class/label ... integer"),
            (imagenet_example, {"image/class/label": [1]}, "image/encoded"),
            (imagenet_example, {"image/class/label": [1, 2]}, "it has 2"),
            (coco_example, {"image/object/class/label": [1]}, "image/object/bbox/xmin must have 1 values"),
            (coco_example, {"image/object/mask": [b"1"]}, "image/object/mask must have 0 values"),
            (coco_example, {}, "image/encoded must have"),
        ],
    )
    def test_what_is_missing_is_named(self, layout, features, said):
        data = example_bytes(features)
        with raises(DataError, said):
            layout(parse_example(data, "a"), data, "a")


def test_classes_that_are_text_alone_are_named_and_an_image_without_objects_is_read():
    corners = {f"image/object/bbox/{corner}": [0.1, 0.2] for corner in ("xmin", "ymin", "xmax", "ymax")}
    data = example_bytes({"image/encoded": [b"photo"], "image/object/class/text": [b"cat", b"dog"], **corners})
    with raises(DataError, "image/object/class/label", "image/object/class/text"):
        coco_example(parse_example(data, "a"), data, "a")
    data = example_bytes({"image/encoded": [b"photo"], "image/object/class/text": [], **{corner: [] for corner in corners}})
    objects = coco_example(parse_example(data, "a"), data, "a").boxes
    assert objects is not None and not len(objects.classes)

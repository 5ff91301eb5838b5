"""WebDataset: files grouped into samples as the webdataset package groups them, labels of every kind, cut tars."""

from __future__ import annotations

import io

import pytest
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.containers.archives import WebDatasetSample, group_samples, read_label
from paceline.data.containers.reading import Member, Truncated
from paceline.data.containers.tar import tar_members, write_tar


def grouped(*names: str) -> list[WebDatasetSample]:
    return list(group_samples([Member(name.encode(), 512 * i, 3) for i, name in enumerate(names)], "a.tar"))


def test_the_key_is_the_path_up_to_the_first_dot():
    found = grouped(
        "a.b/0.jpg", "a.b/0.cls", "a.b/1.left.JPG", "a.b/1.cls", "README", ".DS_Store", "__meta__", "2.seg.png", "2.jpg"
    )
    assert [(sample.key, list(sample.fields)) for sample in found] == [
        (b"a.b/0", [b"jpg", b"cls"]),
        (b"a.b/1", [b"left.jpg", b"cls"]),
        (b"2", [b"seg.png", b"jpg"]),
    ]
    assert [sample.photo("a.tar").name for sample in found] == [b"a.b/0.jpg", b"a.b/1.left.JPG", b"2.jpg"]


def test_the_label_is_cls_before_json_before_text():
    (sample,) = grouped("0.jpg", "0.txt", "0.json", "0.cls")
    assert sample.label("a.tar")[0] == "cls"
    (sample,) = grouped("0.jpg", "0.txt", "0.json")
    assert sample.label("a.tar") == ("json", sample.fields[b"json"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("0.cls",), "sample 0 ... image ... cls"),
        (("0.jpg", "0.png"), "sample 0: expected one image, got 2"),
        (("0.left.jpg", "0.right.jpg"), "sample 0: expected one image, got 2"),
    ],
)
def test_a_sample_has_one_photo(names, said):
    with raises(DataError, said):
        grouped(*names)[0].photo("a.tar")


def test_a_sample_without_a_label_is_named():
    with raises(DataError, "a.tar", "sample 0", "label"):
        grouped("0.jpg")[0].label("a.tar")
    with raises(DataError, "label"):
        WebDatasetSample(b"0", {b"txt": Member(b"0.txt", 0, 1 << 30)}).label("a.tar")


def test_files_that_do_not_stand_together_and_fields_twice_are_refused():
    with raises(DataError, "sample 0", "not adjacent"):
        grouped("0.jpg", "1.jpg", "0.cls", "1.cls")
    with raises(DataError, "sample 0", "two", ".jpg"):
        grouped("0.jpg", "0.JPG")


@pytest.mark.parametrize(
    ("field", "data", "label"),
    [
        ("cls", b"7\n", 7),
        ("txt", b" tabby cat \n", "tabby cat"),
        ("txt", b"12", 12),
        ("json", b"3", 3),
        ("json", b'{"caption": "x", "label": 4}', 4),
        ("json", b'{"cls": "cat"}', "cat"),
    ],
)
def test_labels_of_every_kind(field, data, label):
    assert read_label(field, data, "a.tar: 0") == label


@pytest.mark.parametrize(
    ("field", "data", "said"),
    [
        ("cls", b"cat", "cat.*class index"),
        ("cls", b"\xff", "read"),
        ("cls", b"", "class index"),
        ("cls", "\u00b2".encode(), "class index"),
        ("txt", b" \n", "class index or a class name"),
        ("json", b"{", "read"),
        pytest.param("json", b"[" * 100_000, "read", id="deep json"),
        ("json", b"true", "class index"),
        ("json", b"1.5", "class index"),
        ("json", b'{"caption": "x"}', "label, cls"),
    ],
)
def test_what_is_no_label_is_said(field, data, said):
    with pytest.raises(DataError, match=f"^a.tar: 0: the .{field} .*{said}") as error:
        read_label(field, data, "a.tar: 0")
    assert "\n" not in str(error.value)


def test_a_tar_that_is_cut_off_counts_whole_samples():
    out = io.BytesIO()
    write_tar(out, [(b"%d.%s" % (i, field), b"x" * 600) for i in range(3) for field in (b"cls", b"jpg")])
    data = out.getvalue()
    ends = [
        sample.fields[b"jpg"].offset + 600
        for sample in group_samples(tar_members(io.BytesIO(data), len(data), "a.tar"), "a.tar")
    ]
    for cut in (ends[0], ends[0] + 1000, ends[1] - 1, ends[1], ends[1] + 1000, ends[2], ends[2] + 400):
        survive = sum(end <= cut for end in ends)
        found = group_samples(tar_members(io.BytesIO(data[:cut]), cut, "a.tar"), "a.tar")
        assert [next(found).key for _ in range(survive)] == [b"%d" % i for i in range(survive)]
        with raises(Truncated, f"byte {cut:,}", f"after {survive} complete"):
            next(found)


def test_names_with_dots_are_named_as_the_cause():
    names = [f"img.{number}.{field}" for number in range(3) for field in ("jpg", "cls")]
    with raises(DataError, "sample img", "got 3", "dot"):
        grouped(*names)[0].photo("a.tar")

"""ImageNet's validation labels from the official kit's own files, and MATLAB files read as values."""

from __future__ import annotations

import base64
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from devkit_files import FOLDER, kit_files, mat_file, write_devkit
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.formats import published_sets
from paceline.data.formats.devkit import sort_val, struct_array, validation_labels
from paceline.data.formats.published_sets import official_wnids

# Python 3.11 has the argument from 3.11.4 on.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


LABELS = random.Random(7).choices(official_wnids(), k=300)
FIELDS = ("ILSVRC2012_ID", "WNID")
ROWS = [
    {"ILSVRC2012_ID": 2.0, "WNID": "n01443537", "words": "goldfish", "children": None},
    {"ILSVRC2012_ID": 1001.0, "WNID": "n00001740", "words": "", "children": None},
]
# Written by scipy.io.savemat (1.17, compressed): three synsets with the fields and kinds of values of the official file.
GENUINE = base64.b85decode(
    "O+i#lK|&xkE-)ZXK~ybfX>4U6P;6mzW^ZzBIv{Xwb7^=iAVYFxVRU6=Aa8CuAX9a2AWm;~ATlx_F*7<eFgh?fATlsAHUIzs0000000000000000000000"
    "0000000000000000000000000000000000000000Bu&4*&oFI{^Ryc%0*7U|{&c!N9-<q=6Iz69WXWLix-<%m~HoKwMmzSDac>43uYK5QK_%0I{b}a9EJDk"
    "%6I6yr&DufN(zu4F~1<MJdI|0_i#V#V7)KrMdCR8JRgLMX7mU0Td3*jJ(v6_>9!d^o$aymXe~x%)I!_+{E<MVg^2-palcMKWu3JVMM|pzzG$H0tb+O2PFM"
    "0SoCuu=@)?V^9&44OpHy9&7tDNn8Sl+4j(L(6by6}4zDaZyb>bzf`B<&(9GEa3tWYvMZ&_3g7^dLHz1&&0Zl*U_HsB-q(5Ma1G>Ap3Fv15=2S)o;?fz;^lD"
    "&kW`g8@LgwI3uZE-Pm7I8I7~1KTZ2cbn6qK_-U}$b)fD{gd%)y;*jYiWgIq`?3p2Vh~2~EEMT>A%mWOD{G9RmPKUm^V"
)


@pytest.fixture
def kit(tmp_path: Path, monkeypatch) -> Path:
    path = tmp_path / "devkit.tar.gz"
    monkeypatch.setattr(published_sets, "VAL_LABELS_SHA256", write_devkit(path, LABELS))
    return path


@pytest.mark.parametrize("form", ["w:gz", "w", "folder", "folder inside"])
def test_the_kits_numbers_become_class_folders(tmp_path: Path, kit: Path, form: str) -> None:
    if form.startswith("folder"):
        kit = tmp_path / "kit"
        for name, content in kit_files(LABELS).items():
            path = (kit / FOLDER if form == "folder inside" else kit) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    else:
        write_devkit(kit, LABELS, form)
    assert validation_labels(kit) == LABELS


def test_other_labels_than_the_official_ones_are_refused(kit: Path) -> None:
    write_devkit(kit, [LABELS[1], LABELS[0], *LABELS[2:]])
    with raises(DataError, "devkit.tar.gz", "300", "paceline download imagenet DIR"):
        validation_labels(kit)


@pytest.mark.parametrize("missing", ["data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"])
def test_a_kit_without_one_of_its_files_is_refused(tmp_path: Path, kit: Path, missing: str) -> None:
    with tarfile.open(kit) as book:
        book.extractall(tmp_path, **SAFELY)
    (tmp_path / FOLDER / missing).unlink()
    with tarfile.open(kit, "w:gz") as book:
        book.add(tmp_path / FOLDER, FOLDER)
    with pytest.raises(DataError, match=f"has no {missing}"):
        validation_labels(kit)


def test_what_is_no_kit_is_one_line(tmp_path: Path, kit: Path) -> None:
    whole = kit.read_bytes()
    for name, content in (("empty", b""), ("page", b"<html>" * 500), ("cut", whole[:2000]), ("gzip", whole[:20])):
        path = tmp_path / name
        path.write_bytes(content)
        with raises(DataError, "damaged", "paceline download imagenet DIR") as error:
            validation_labels(path)
        assert "\n" not in str(error.value)
    with raises(DataError, "none.tar.gz", "ILSVRC2012_devkit_t12.tar.gz"):
        validation_labels(tmp_path / "none.tar.gz")
    with raises(DataError, "data/ILSVRC2012_validation_ground_truth.txt", "paceline download imagenet DIR"):
        validation_labels(tmp_path)


def test_a_class_that_the_kit_does_not_have(tmp_path: Path, kit: Path) -> None:
    with tarfile.open(kit) as book:
        book.extractall(tmp_path, **SAFELY)
    for text in (b"1001\n", b"0\n", b"one\n", b"9" * 5000):
        (tmp_path / FOLDER / "data" / "ILSVRC2012_validation_ground_truth.txt").write_bytes(text)
        with raises(
            DataError, "ILSVRC2012_validation_ground_truth.txt", text.decode().strip() if len(text) < 99 else "4300"
        ):
            validation_labels(tmp_path / FOLDER)


def test_flat_photos_are_sorted_once_and_go_on(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(b"%d" % number)
    (tmp_path / "notes.txt").write_text("mine")
    assert sort_val(tmp_path, LABELS) == 5 and sort_val(tmp_path, LABELS) == 0
    for number in range(1, 6):
        assert (tmp_path / LABELS[number - 1] / f"ILSVRC2012_val_{number:08d}.JPEG").read_bytes() == b"%d" % number
    assert (tmp_path / "notes.txt").is_file()
    again = tmp_path / "ILSVRC2012_val_00000002.JPEG"
    again.write_bytes(b"another")
    with pytest.raises(DataError, match="already exists"):
        sort_val(tmp_path, LABELS)
    assert again.read_bytes() == b"another"
    again.rename(tmp_path / "ILSVRC2012_val_00000301.JPEG")
    with raises(DataError, "ILSVRC2012_val_00000301.JPEG", "number"):
        sort_val(tmp_path, LABELS)


def test_a_file_that_scipy_wrote() -> None:
    rows = struct_array(GENUINE, "synsets", (*FIELDS, "num_children", "children"))
    assert [(row["ILSVRC2012_ID"], row["WNID"], row["num_children"]) for row in rows] == [
        (2.0, "n01443537", 0.0),
        (1.0, "n01440764", 0.0),
        (1001.0, "n00001740", 2.0),
    ]
    assert rows[2]["children"] is None


@pytest.mark.nightly("imports scipy")
@pytest.mark.parametrize("compressed", [True, False])
def test_scipy_agrees(tmp_path: Path, compressed: bool) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    kinds = [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64, np.int64]
    rows = np.zeros((40, 1), dtype=[(name, object) for name in (*FIELDS, "gloss", "children")])
    for i in range(len(rows)):
        text = f"n{i:08d}" if i % 3 else "\u00e9t\u00e9 \u65e5\u672c"
        rows[i, 0] = (np.array([[i]], kinds[i % 7]), text, "long " * i, np.arange(i % 4, dtype=float))
    scipy_io.savemat(tmp_path / "a.mat", {"before": np.arange(5), "synsets": rows}, do_compression=compressed)
    ours = struct_array((tmp_path / "a.mat").read_bytes(), "synsets", (*FIELDS, "gloss"))
    theirs = scipy_io.loadmat(tmp_path / "a.mat", squeeze_me=True)["synsets"]
    assert [tuple(row.values()) for row in ours] == [
        (float(r[0]), str(r[1]), str(r[2]) if len(r[2]) else "") for r in theirs
    ]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_matlab_file_gives_its_values(compressed: bool) -> None:
    data = mat_file(ROWS, compressed=compressed)
    assert struct_array(data, "synsets", FIELDS) == [{name: row[name] for name in FIELDS} for row in ROWS]
    with pytest.raises(ValueError, match="no variable 'other'"):
        struct_array(data, "other", FIELDS)
    with pytest.raises(ValueError, match="no field 'gloss'"):
        struct_array(data, "synsets", ("gloss",))


def test_a_bomb_in_a_matlab_file_is_refused(monkeypatch) -> None:
    from paceline.data.formats import devkit

    monkeypatch.setattr(devkit, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        struct_array(mat_file([{**ROWS[0], "words": "x" * 100_000}]), "synsets", FIELDS)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), compressed=st.booleans())
def test_damage_is_a_value_error_or_harmless(data, compressed: bool) -> None:
    content = bytearray(mat_file(ROWS, compressed=compressed))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    try:
        rows = struct_array(bytes(content), "synsets", FIELDS)
    except ValueError as error:
        assert str(error)
    else:
        assert len(rows) <= len(content) * 1100 and all(isinstance(row["WNID"], str | float | None) for row in rows)

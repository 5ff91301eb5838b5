"""MXNet's .params, TensorFlow's checkpoints and others' pickles as data: what was written is read, and what lies is refused."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from weight_bytes import V1, V2, V3, block, field, masked, params, tf_checkpoint, varint
from weight_bytes import masked as by_bits

from paceline._utils.errors import CheckpointError
from paceline.data.containers.tfrecord import masked_crc32c
from paceline.models.weights.formats.array_pickle import read_pickled_arrays
from paceline.models.weights.formats.mxnet import read_params
from paceline.models.weights.formats.tensorflow import find_index, read_tf_checkpoint
from paceline.models.weights.weight_file import open_weights

MAX = 2**20
TYPES = ("f4", "f8", "f2", "u1", "i4", "i1", "i8")


def arrays(kinds=TYPES) -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    return {f"part/{kind}": (random.standard_normal((3, 2, 4)) * 50).astype(kind) for kind in kinds} | {
        "part/none": np.zeros((0, 3), "f4"),
        "part/one": np.ones(1, "f4"),
    }


def equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
    return True


@pytest.mark.parametrize("magic", [0, V1, V2, V3], ids=["legacy", "V1", "V2", "V3"])
def test_params_of_every_age_and_type_are_read(magic, tmp_path):
    (tmp_path / "w.params").write_bytes(params(arrays(), magic))
    assert equal(read_params(tmp_path / "w.params", MAX), arrays())


def test_params_of_a_module_lose_their_prefix_and_scalars_need_numpys_shapes(tmp_path):
    scalar = {"arg:a": np.float32(2).reshape(()), "aux:b": np.ones(2, "f4")}
    (tmp_path / "w.params").write_bytes(params(scalar, V3))
    found = read_params(tmp_path / "w.params", MAX)
    assert found.keys() == {"a", "b"} and found["a"].shape == () and found["a"] == 2


def changed(at: int, form: str, *values: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        made = bytearray(content)
        struct.pack_into(form, made, at, *values)
        return bytes(made)

    return change


# The first array begins at 24: magic, storage, sides at 32, then three sides of 8 bytes at 36, device at 60, type at 68.
LIES = {
    "another magic": changed(0, "<Q", 0x113),
    "more arrays than bytes": changed(16, "<Q", 2**60),
    "an unknown array": changed(24, "<I", 0xF993FAC7),
    "sparse": changed(28, "<i", 1),
    "sides without end": changed(32, "<i", 2**30),
    "a negative side": changed(36, "<q", -3),
    "a shape beyond the bytes": changed(36, "<q", 2**40),
    "sides whose product overflows": changed(36, "<3q", 2**62, 2**62, 2**62),
    "an unknown type": changed(68, "<i", 99),
    "more behind the end": lambda content: content + b"x",
    "torn": lambda content: content[:-3],
    "nothing": lambda _: b"",
    "a pickle that runs code": lambda _: b"cos\nsystem\n(S'touch PWNED'\ntR.",
}


@pytest.mark.parametrize("lie", LIES)
def test_params_that_lie_are_refused_in_one_line(lie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.params").write_bytes(LIES[lie](params(arrays())))
    with raises(CheckpointError, "w.params", "MXNet") as refused:
        open_weights(tmp_path / "w.params")
    assert "\n" not in str(refused.value) and not (tmp_path / "PWNED").exists()


@given(st.binary(max_size=400))
def test_no_bytes_make_the_params_reader_raise_anything_else(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.params"
    file.write_bytes(struct.pack("<QQQ", 0x112, 0, 1) + content)
    try:
        read_params(file, MAX)
    except CheckpointError:
        return


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1031])
def test_checksums_are_those_of_the_definition(size):
    content = np.random.RandomState(size).bytes(size)
    assert masked_crc32c(content) == by_bits(content)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_tensorflow_checkpoint_is_read_by_any_of_its_names(blocks, checksums, tmp_path):
    index = tf_checkpoint(tmp_path / "model.ckpt-7", arrays(), checksums=checksums, blocks=blocks)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    for name in ("", "model.ckpt-7", "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.meta"):
        assert find_index(tmp_path / name) == index
    assert equal(read_tf_checkpoint(index, MAX), arrays())


DAMAGE = {
    "a flipped bit of a variable": (
        "data-00000-of-00001",
        lambda data: data[:5] + bytes([data[5] ^ 4]) + data[6:],
        "checksum",
    ),
    "data cut short": ("data-00000-of-00001", lambda data: data[:-1], "has .* bytes at"),
    "data gone": ("data-00000-of-00001", None, "files are required"),
    "a flipped bit of the index": ("index", lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "checksum"),
    "the index cut short": ("index", lambda data: data[:-1], "does not end like"),
    "no index": ("index", lambda _: b"hello", "does not end like"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tensorflow_checkpoint_is_refused_in_one_line(damage, tmp_path):
    end, change, says = DAMAGE[damage]
    tf_checkpoint(tmp_path / "m", arrays())
    file = tmp_path / f"m.{end}"
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CheckpointError, match=says) as refused:
        open_weights(tmp_path / "m.index")
    assert "\n" not in str(refused.value)


def test_variables_that_stand_for_the_same_bytes_are_refused_before_they_are_read(tmp_path):
    index = tf_checkpoint(tmp_path / "m", arrays())
    size = (tmp_path / "m.data-00000-of-00001").stat().st_size
    assert equal(read_tf_checkpoint(index, size), arrays())
    with pytest.raises(CheckpointError, match="more than"):
        read_tf_checkpoint(index, size - 1)
    rows = [(b"", field(1, 1)), (b"a", field(1, 1))]
    first = varint(0) + varint(len(block(rows)))
    body = block(rows) + b"\0" + struct.pack("<I", masked(block(rows) + b"\0"))
    places = []
    for part in (block([]), block([(b"a", first), (b"b", first)], 1)):
        places.append(varint(len(body)) + varint(len(part)))
        body += part + b"\0" + struct.pack("<I", masked(part + b"\0"))
    index.write_bytes(body + b"".join(places).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    with raises(CheckpointError, "block", "twice"):
        read_tf_checkpoint(index, size)


def test_a_key_longer_than_its_block_is_refused(tmp_path):
    index = tf_checkpoint(tmp_path / "m", arrays())
    for own, says in ((3, "has no header"), (4, "outside of its block"), (900, "outside of its block")):
        part = varint(0) + varint(own) + varint(0) + b"key" + struct.pack("<II", 0, 1)
        body, places = b"", []
        for content in (part, block([]), block([(b"key", varint(0) + varint(len(part)))], 1)):
            places.append(varint(len(body)) + varint(len(content)))
            body += content + b"\0" + struct.pack("<I", masked(content + b"\0"))
        index.write_bytes(body + b"".join(places[1:]).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
        with pytest.raises(CheckpointError, match=says):
            read_tf_checkpoint(index, MAX)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_index_makes_the_reader_raise_anything_else(tmp_path_factory, content, keep):
    folder = tmp_path_factory.getbasetemp()
    index = tf_checkpoint(folder / "any", {"a": np.ones(2, "f4")}, blocks=1)
    index.write_bytes(content + index.read_bytes()[keep:])
    try:
        read_tf_checkpoint(index, MAX)
    except CheckpointError:
        return


@pytest.mark.parametrize("inner", ["model", "blobs"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_inside_another_dict_are_read_with_the_words_beside_them(inner, protocol, tmp_path):
    content = {
        inner: {"a": np.ones((2, 3), "f4")},
        "__author__": "torchvision",
        "matching_heuristics": True,
        "cfg": "x" * 999,
    }
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(content, protocol))
    found, texts = read_pickled_arrays(tmp_path / "w.pkl")
    assert texts == {"__author__": "torchvision"}
    np.testing.assert_array_equal(found["a"], np.ones((2, 3)))


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_code_beside_the_arrays_is_refused_too(place, tmp_path, capsys):
    good = {"a": np.ones(2, "f4")}
    content = {"model": good, "x": Evil()} if place == "beside" else {"model": {**good, "b": Evil()}}
    for name in ("w.pkl", "w.pickle"):
        (tmp_path / name).write_bytes(pickle.dumps(content))
        with raises(CheckpointError, name, "not loaded", "builtins.print"):
            open_weights(tmp_path / name, pickles=True)
    assert "executed" not in capsys.readouterr().out

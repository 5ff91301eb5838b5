"""Weight files of strangers. Each case makes the file `w.*` of a folder, or a folder of arrays.

Pickled arrays are played by `weights convert`, the one verb that reads them, and all others by training.
"""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile import ESCAPE, Case, Family, fifo, sparse, unix_socket, zeros
from safetensors.torch import save_file
from tiny_runs import TINY, make_photos

from paceline.models.backbones.base import init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.weights.load import load_weights
from paceline.models.weights.weight_file import open_weights

GIB = 1 << 30


class Dangerous:
    """Would leave a file behind if it were ever called."""

    def __reduce__(self):
        return os.system, ("touch PWNED",)


def model() -> ResNet:
    made = ResNet(18, 5, width=4)
    init_weights(made, "torchvision", torch.Generator().manual_seed(0))
    return made


def state(**changes: Any) -> dict[Any, Any]:
    return {**model().state_dict(), **changes}


def good(folder: Path) -> None:
    make_photos(folder / "photos", train=2, val=1)


def the_file(folder: Path) -> Path:
    return next(iter(sorted(path for path in folder.iterdir() if path.name.startswith("w"))), folder / "w.pth")


def read(folder: Path) -> None:
    load_weights(model(), open_weights(the_file(folder), pickles=True))


def words(folder: Path) -> list[object]:
    file = the_file(folder)
    if file.suffix == ".pkl":
        return ["weights", "convert", file, "--format", "paceline", "--output", folder / "converted.safetensors"]
    net = ["--model.depth", 18, "--model.width", 4, "--max-steps", 1]
    return [
        "train",
        "classify-demo",
        "--data",
        folder / "photos",
        "--output-dir",
        folder / "run",
        *TINY,
        *net,
        "--weights",
        file,
    ]


def saved(content: Any, **options: Any) -> Callable[[Path], None]:
    return lambda folder: torch.save(content() if callable(content) else content, folder / "w.pth", **options)


def raw(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content() if callable(content) else content)


def made(name: str, how: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: how(folder / name)


def torn(name: str, keep: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        torch.save(state(), folder / "w.pth")
        content = (folder / "w.pth").read_bytes()[:keep]
        (folder / "w.pth").unlink()
        (folder / name).write_bytes(content)

    return change


def archive(size: int, says: int = 0) -> Callable[[Path], None]:
    """A torch archive whose one record has `size` zeros, or `says` that it has more."""

    def change(folder: Path) -> None:
        torch.save({"a": torch.zeros(4)}, folder / "small.pth")
        with (
            zipfile.ZipFile(folder / "small.pth") as small,
            zipfile.ZipFile(folder / "w.pth", "w", zipfile.ZIP_DEFLATED) as large,
        ):
            for name in small.namelist():
                if not name.endswith("data/0"):
                    large.writestr(name, small.read(name), zipfile.ZIP_STORED)
            with large.open("small/data/0", "w", force_zip64=True) as record:
                for _ in range(size >> 20):
                    record.write(bytes(1 << 20))
            large.infolist()[-1].file_size = says or size
        (folder / "small.pth").unlink()

    return change


def tensors(header: dict[str, Any] | bytes, content: bytes = bytes(16), length: int | None = None) -> bytes:
    """A .safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def arrays(**files: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "w").mkdir()
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / "w" / f"{name}.npy").write_bytes(content)
            elif callable(content):
                content(folder / "w" / f"{name}.npy")
            else:
                np.save(folder / "w" / f"{name}.npy", content, allow_pickle=True)

    return change


def header_of(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive_of_arrays() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    return buffer.getvalue()


def shared_bytes() -> bytes:
    """A thousand names for the same four million bytes."""
    array = np.zeros(1 << 20, np.float32)
    return pickle.dumps({f"a{number}": array for number in range(1000)})


def shared_text() -> bytes:
    """One text that is encoded three thousand times."""
    text = pickle.dumps("a" * (1 << 20), 2)[2:-1]
    call = b"c_codecs\nencode\nq\x01h\x00" + b"U\x06latin1\x86R0"
    first = text.split(b"q\x00")[0] + b"q\x000"
    return b"\x80\x02" + first + call + b"h\x01h\x00U\x06latin1\x86R0" * 3000 + b"}."


def pickle_of(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def doubled(times: int) -> bytes:
    """A tuple that holds itself twice, `times` deep: written out it has 2^times ends."""
    return b"K\x01" + b"2\x86" * times


def scripted(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "w.pth"))  # type: ignore[attr-defined]


NO_PTH = "damaged, truncated, or not a weight file|TorchScript program|other than tensors|only tensors are loaded"
NO_TENSORS = "damaged, truncated, or not a weight file"
NO_PICKLE = "not a readable pickle"
NOT_FINITE = "are not finite|neither the MLPerf"
NO_ARRAY = "not a plain numpy array"

CASES: dict[str, Case] = {
    "absent": (lambda folder: None, "weight file not found"),
    "dangling link": (made("w.pth", lambda path: os.symlink("nowhere", path)), "weight file not found"),
    "link to itself": (made("w.pth", lambda path: os.symlink("w.pth", path)), "cannot be read|no such"),
    "named pipe": (made("w.pth", fifo), "a named pipe"),
    "named pipe as safetensors": (made("w.safetensors", fifo), "a named pipe"),
    "named pipe as pickle": (made("w.pkl", fifo), "a named pipe"),
    "socket": (made("w.pth", unix_socket), "a socket"),
    "endless zeros": (made("w.pth", zeros), "a device"),
    "nine tebibytes": (made("w.pth", lambda path: sparse(path, 9 << 40)), "GiB is too large"),
    "three gibibytes of safetensors": (made("w.safetensors", lambda path: sparse(path, 3 * GIB)), "GiB is too large"),
    "two gibibytes of pickle": (made("w.pkl", lambda path: sparse(path, 2 * GIB)), "the limit is"),
    "empty": (raw("w.pth", b""), NO_PTH),
    "text": (raw("w.pth", b"hello"), NO_PTH),
    "torn": (torn("w.pth", 5000), NO_PTH),
    "torn in its directory": (torn("w.pth", -30), NO_PTH),
    "code": (saved({"a": Dangerous()}), "only tensors are loaded"),
    "code by attributes": (raw("w.pth", pickle_of(b"cbuiltins\ngetattr\ncos\nerrno\nU\x04open\x86R")), NO_PTH),
    "code by attributes in a pickle": (raw("w.pkl", pickle_of(b"cbuiltins\ngetattr\n")), "would run builtins.getattr"),
    "code in an old file": (saved({"a": Dangerous()}, _use_new_zipfile_serialization=False), "only tensors are loaded"),
    "code in a bare pickle": (raw("w.pth", lambda: pickle.dumps(Dangerous())), NO_PTH),
    "TorchScript": (scripted, NO_PTH),
    "tar": (raw("w.pth", tar), NO_PTH),
    "list": (saved([1, 2]), "expected a dict of tensors"),
    "nothing": (saved({}), "expected a dict of tensors"),
    "nested a hundred thousand deep": (raw("w.pth", pickle_of(b"]" * 100_000)), NO_PTH),
    "4 GiB in an archive of kilobytes": (archive(16 << 20, says=4 * GIB), "would unpack to 4,096"),
    "64 MiB of zeros in 64 KiB": (archive(64 << 20), "would unpack to 64"),
    "archive of something else": (lambda folder: zipfile.ZipFile(folder / "w.pth", "w").writestr("a", "b"), NO_PTH),
    "not a number": (saved(lambda: state(**{"bn1.bias": torch.full((4,), torch.nan)})), NOT_FINITE),
    "infinite": (saved(lambda: state(**{"bn1.bias": torch.full((4,), torch.inf)})), NOT_FINITE),
    "sparse tensor": (saved(lambda: state(a=torch.ones(3).to_sparse())), "not a plain tensor|UserWarning"),
    "complex tensor": (saved(lambda: state(a=torch.ones(3, dtype=torch.complex64))), "not a plain tensor"),
    "four bytes that say they are a tebibyte": (saved(lambda: {"a": torch.zeros(1).expand(1 << 38)}), "more than 2 GiB"),
    "name with escape sequences": (saved(lambda: {f"a{ESCAPE}\nforged": torch.ones(3)}), r"invalid name"),
    "name that is a number": (saved(lambda: {5: torch.ones(3)}), "invalid name"),
    "another model": (saved(lambda: {"a": torch.ones(3)}), "weights of another model|neither the MLPerf"),
    "header beyond the file": (raw("w.safetensors", tensors({}, length=10**12)), NO_TENSORS),
    "header that is no JSON": (raw("w.safetensors", tensors(b"{]")), NO_TENSORS),
    "header nested deep": (raw("w.safetensors", tensors(b"[" * 100_000)), NO_TENSORS),
    "tensor beyond the file": (
        raw("w.safetensors", tensors({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}})),
        NO_TENSORS,
    ),
    "tensors on each other": (
        raw(
            "w.safetensors",
            tensors({name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for name in ("a", "b")}),
        ),
        NO_TENSORS,
    ),
    "safetensors name with escape sequences": (
        lambda folder: save_file({f"a{ESCAPE}": torch.ones(3)}, folder / "w.safetensors"), "invalid name",
    ),
    "empty folder": (arrays(), "no .npy files"),
    "array of objects": (arrays(conv0_weight=np.array([Dangerous()])), NO_ARRAY),
    "array of words": (arrays(conv0_weight=np.array(["x"])), "without numbers"),
    "array of records": (arrays(a=np.zeros(3, [("x", "f4"), ("y", "i4")])), "without numbers|cannot be used"),
    "archive as an array": (arrays(a=archive_of_arrays()), NO_ARRAY),
    "array beyond the file": (
        arrays(a=header_of(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n")), NO_ARRAY
    ),
    "array with a deep header": (arrays(a=header_of(b"(" * 9000)), NO_ARRAY),
    "named pipe among arrays": (arrays(a=fifo), "a named pipe"),
    "endless zeros among arrays": (arrays(a=zeros), "a device"),
    "stem of no shape": (arrays(conv0_weight=np.zeros(()), stage1_conv0_weight=np.zeros(())), "invalid array|cannot be|another model"),
    "pickle with code": (raw("w.pkl", lambda: pickle.dumps({"a": Dangerous()})), "would run (posix|nt).system"),
    "pickle of a list": (raw("w.pkl", pickle.dumps([1])), "expected a pickled dict"),
    "pickle of a number": (raw("w.pkl", pickle.dumps({"a": 3})), "not the name of an array"),
    "pickle of objects": (raw("w.pkl", lambda: pickle.dumps({"a": np.array([None])})), NO_PICKLE),
    "torn pickle": (raw("w.pkl", lambda: pickle.dumps({"a": np.zeros(1000)})[:500]), NO_PICKLE),
    "memo beyond the memory": (raw("w.pkl", pickle_of(b"}r", struct.pack("<I", 2**31 - 1))), "memo index"),
    "frame beyond the file": (raw("w.pkl", b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}."), NO_PICKLE),
    "a thousand names for the same bytes": (raw("w.pkl", shared_bytes), "more than 2 GiB"),
    "one text encoded without end": (raw("w.pkl", shared_text), NO_PICKLE),
    "name that doubles itself": (raw("w.pkl", pickle_of(b"}(", doubled(16), b"K\x01u")), "not the name of an array"),
    "pickle nested deep": (raw("w.pkl", pickle_of(b"]" * 100_000, b"a" * 99_999)), "expected a pickled dict|" + NO_PICKLE),
    "name with a line break": (
        raw("w.pkl", lambda: pickle.dumps(collections.OrderedDict({"a\nforged": np.ones(3)}))), "not the name of an array"
    ),
}  # fmt: skip

WEIGHTS = Family("weight files", good, read, words, CASES)

"""Read a pickled dict of numpy arrays as data: nothing in the file is executed.

The dict may lie in another one with a few words beside it, as detectron2 ({"model": ..., "__author__": ...}) and Detectron
({"blobs": ..., "cfg": ...}) write it.

A pickle is a program. The reader here runs one that can only build arrays, dicts, lists, tuples, strings, bytes and
numbers: every other global is refused by name, arrays are made from plain bytes of the right length, stand-ins take the
place of numpy's own classes, and the file's size is bounded.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import CheckpointError
from paceline._utils.safe_read import read_plain
from paceline._utils.text import abbreviate

# Ten times the largest backbone here; a larger pickle is not one of these files.
MAX_BYTES = 2**30

# Keys under which others keep the arrays.
INNER = ("model", "blobs")
# Longer texts beside the arrays (a whole configuration) say nothing that is needed here.
MAX_TEXT = 200
# numpy's names of the number types that weights come in.
PLAIN_TYPES = ("f2", "f4", "f8", "i1", "i4", "i8", "u1")


def read_pickled_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The name -> array dict pickled in `path`, and the short texts beside it.

    Raises CheckpointError for a file that is too large or damaged, that needs any global but numpy's arrays, or that
    holds something else than a dict of arrays.
    """
    try:
        data = read_plain(path, MAX_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as weights ({error.strerror})") from None
    try:
        _check_memo(data, path)
        loaded = _ArrayUnpickler(io.BytesIO(data), path).load()
    except CheckpointError:
        raise
    except Exception as error:  # whatever a stranger's bytes make the unpickler raise
        raise CheckpointError(
            f"{path}: not a readable pickle of arrays: {type(error).__name__}: {abbreviate(str(error), 200)}"
        ) from None
    texts = {}
    inner = next((key for key in INNER if isinstance(loaded, dict) and isinstance(loaded.get(key), dict)), None)
    if inner is not None:
        texts = {
            key: value
            for key, value in loaded.items()
            if isinstance(key, str) and isinstance(value, str) and len(value) <= MAX_TEXT
        }
        loaded = loaded[inner]
    if not isinstance(loaded, dict) or not loaded:
        raise CheckpointError(f"{path}: expected a pickled dict of arrays, got {type(loaded).__name__}")
    arrays: dict[str, np.ndarray] = {}
    for name, value in loaded.items():
        if not isinstance(name, str) or not name.isprintable() or not isinstance(value, _Array) or value.array is None:
            called = repr(name[:60]) if isinstance(name, str) else abbreviate(name)
            raise CheckpointError(f"{path}: {called} is not the name of an array")
        arrays[name] = value.array
    return arrays, texts


def _check_memo(data: bytes, path: Path) -> None:
    """A memo index far beyond the file's length makes the unpickler allocate that much: refuse it beforehand."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise CheckpointError(f"{path}: not a readable pickle of arrays: memo index {argument}")


class _Array:
    """Stands for numpy.ndarray while unpickling."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.array = _array(content, kind, shape, "F" if fortran else "C")


class _Type:
    """Stands for numpy.dtype while unpickling: a plain number type and its byte order."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if text.lstrip("<>|=") not in PLAIN_TYPES:
            raise pickle.UnpicklingError(f"arrays of type {abbreviate(text)} are not supported")
        self.text = text

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {abbreviate(order)}")
        self.text = order + self.text.lstrip("<>|=")


def _array(content: Any, kind: _Type, shape: Any, order: Any) -> np.ndarray:
    if isinstance(content, str):  # bytes of a pickle written by Python 2
        content = content.encode("latin1")
    if not isinstance(content, (bytes, bytearray)) or not isinstance(kind, _Type) or order not in ("C", "F"):
        raise pickle.UnpicklingError("an array's content is not bytes")
    dtype = np.dtype(kind.text)
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise pickle.UnpicklingError(f"an array of shape {abbreviate(shape)}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise pickle.UnpicklingError(f"an array of shape {abbreviate(shape)} with {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order=order)


class _Call:
    """A function that a pickle may call, and that it cannot change."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "function", function)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError(f"setting {name}")

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any, *_: Any) -> _Array:
    made = _Array()
    made.array = _array(content, kind, shape, order)
    return made


def _ndarray(*arguments: Any) -> _Array:
    """numpy.ndarray(shape, type, bytes) is whole at once, as `paceline weights convert` writes it; else its state follows."""
    made = _Array()
    if len(arguments) == 3 and isinstance(arguments[1], str):
        shape, kind, content = arguments
        made.array = _array(content, _Type(kind), shape, "C")
    return made


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("__builtin__", "bytes"): _Call(lambda: b""),  # how old protocols spell the content of an empty array
    ("numpy", "dtype"): _Call(lambda text, *_: _Type(text)),
    ("numpy", "ndarray"): _Call(_ndarray),
}
for _numpy in ("numpy.core", "numpy._core"):  # numpy 1 and 2
    ALLOWED[f"{_numpy}.multiarray", "_reconstruct"] = _Call(lambda *_: _Array())
    ALLOWED[f"{_numpy}.numeric", "_frombuffer"] = _Call(_from_buffer)


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that knows the names of ALLOWED and no other."""

    def __init__(self, stream: io.BytesIO, path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self.path = path
        self.encoded = 0

    def _encode(self, text: Any, encoding: Any) -> bytes:
        # A text that is written once may be asked for any number of times.
        self.encoded += len(text)
        if self.encoded > MAX_BYTES:
            raise pickle.UnpicklingError("its arrays are larger than the file can be")
        if encoding != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(f"encoding {abbreviate(encoding)}")
        return text.encode("latin1")

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) == ("_codecs", "encode"):
            return _Call(self._encode)
        if (module_name, global_name) not in ALLOWED:
            raise CheckpointError(
                f"{self.path}: not loaded, because it would run {module_name}.{global_name}. A pickle of weights must have "
                "only NumPy arrays. If you trust it, convert it to safetensors."
            )
        return ALLOWED[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointError(f"{self.path}: not loaded, because it refers to objects outside the file")

"""The kinds of files that weights come in: a row each says how a kind is recognized and how its bytes become arrays.

Nothing in any of them is executed, sizes are bounded, and what is no dict of named arrays is refused with the file's name. Pickled
arrays are read for `paceline weights` alone, which asks for them: everywhere else such a file is refused unread.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import struct
import types
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline._utils.commands import format_command
from paceline._utils.errors import CheckpointError
from paceline._utils.safe_read import open_plain, require_plain
from paceline._utils.text import abbreviate, join_names, suggest_name
from paceline.config.model_card import MAX_HEADER, header_bytes
from paceline.models.weights.download import PUBLISHED
from paceline.models.weights.formats.mxnet import read_npy_folder, read_params
from paceline.models.weights.formats.tensorflow import find_index, find_indexes, read_tf_checkpoint

PATHS = ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
# A ResNet-269 in float32 is 0.4 GB, with an optimizer's state 1.2 GB; a file beyond this, packed or not, is something else.
MAX_BYTES = 2 * 2**30
# Longer texts beside the tensors (a whole configuration) say nothing that is needed here.
MAX_TEXT = 200

# Of several files in a folder.
MAX_NAMED = 5

WRAPPERS = ("state_dict", "model", "model_state_dict", "module")
# Averages of the weights: of torchvision, timm, and others.
AVERAGES = ("model_ema", "state_dict_ema", "ema_state_dict", "ema")
# The key of `Contents` that has the names of weights that were not read.
NOT_READ = "weights that were not read"
# Of torch.compile; inside names too, if it compiled a part.
COMPILED = "_orig_mod."
# Of DistributedDataParallel and averages, a run of ours, PyTorch Lightning.
PREFIXES = ("module.", "network.", "model.")
# What averages count.
COUNTER = "n_averaged"
# What training programs save next to tensors, which holds values and runs nothing.
VALUES = (
    argparse.Namespace,
    types.SimpleNamespace,
    *((PurePosixPath, f"{place}.{name}") for place in ("pathlib", "pathlib._local") for name in PATHS),
)
# What is brought instead of weights, by how it begins (in lower case): what it is, and what to do.
OTHERS = {
    b"<!doctype html": "a web page. Download the file that it links to",
    b"<html": "a web page. Download the file that it links to",
    b"version https://git-lfs": "a Git LFS pointer. Download its file with `git lfs pull`",
    b"\x89hdf": "an HDF5 file (Keras). Save the weights as a TensorFlow checkpoint or as .safetensors",
}
ONNX = "an ONNX graph, which does not keep the names of the weights. Use the state dict that it was exported from"
OPENING_BYTES = 64

PICKLED = "pickled arrays"
DAMAGED = "damaged, truncated, or not a weight file. Download it again"

Contents = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and what stands beside them


@dataclass(frozen=True)
class WeightFileType:
    """One kind of file."""

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Contents]


def read_contents(path: Path, *, pickles: bool = False, key: str = "") -> tuple[str, Contents]:
    """-> the kind of file in words, and what is in it, on the CPU.

    key  of a torch.save file with several dicts of tensors, the name of one; "": the usual one
    Raises CheckpointError as `detect_format`, and for a file that is damaged or holds anything but named arrays.
    """
    kind = detect_format(path, pickles=pickles)
    if key and kind is not KINDS[-1]:
        raise CheckpointError(f"{path}: --key {key}: only a file of torch.save can have multiple dicts of tensors.")
    return kind.name, _torch(path, key) if key else kind.read(path)


def detect_format(path: Path, *, pickles: bool = False) -> WeightFileType:
    """Which kind of file this is, before its content is looked at.

    pickles   whether pickled arrays are taken too: a pickle is a program, and one verb that writes them anew is enough
    Raises CheckpointError for a file that is absent, no plain one, too large, or of pickled arrays where those are not taken.
    """
    if len(several := find_indexes(path)) > 1:
        names = join_names((index.name for index in several), MAX_NAMED)
        raise CheckpointError(f"{path}: has {len(several)} TensorFlow checkpoints. Choose one of them ({names})")
    if not path.is_dir() and find_index(path) is None:  # a named pipe would keep whoever looks into it waiting
        try:
            size = require_plain(path)
        except FileNotFoundError:
            hint = suggest_name(str(path), PUBLISHED)
            raise CheckpointError(f"{path}: weight file not found{f'. {hint}' if hint else ''}") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read as weights ({error.strerror})") from None
        if size > MAX_BYTES:
            raise CheckpointError(f"{path}: {size / 2**30:.1f} GiB is too large for the weights of these models")
    kind = next(kind for kind in KINDS if kind.matches(path))
    if kind.name == PICKLED and not pickles:
        raise CheckpointError(f"{path}: pickled arrays must be converted. Pass the output of  {conversion_command(path)}")
    return kind


def conversion_command(path: Path, colors: str = "", key: str = "") -> str:
    """The command that writes a file of pickled arrays, of several dicts, or of pixels in an unknown order, as one read everywhere."""
    flags = [word for name, value in (("--color-order", colors), ("--key", key)) if value for word in (name, value)]
    out = path.with_suffix(".".join(["", *flags[1::2], "safetensors"]))
    return format_command("weights", "convert", path, "--format", "paceline", "--output", out, *flags)


def _safetensors(path: Path) -> Contents:
    tensors, metadata = read_safetensors(path)
    return _named(tensors, path), metadata


def read_safetensors(path: Path) -> Contents:
    """The tensors of a safetensors file under their own names, and its metadata. Raises CheckpointError."""
    _refuse_others(path)
    try:
        if MAX_HEADER < (length := header_bytes(path)) < path.stat().st_size:
            raise CheckpointError(f"{path}: its header has {length:,} bytes; at most {MAX_HEADER:,} are supported.")
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError):  # the library's own words name parts of the format
        raise CheckpointError(f"{path}: {DAMAGED}") from None


def _torch(path: Path, key: str = "") -> Contents:
    _refuse_others(path)
    check_archive_size(path, MAX_BYTES, DAMAGED)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(VALUES)):
            warnings.simplefilter("ignore")  # the message of a rejected file is one line, below
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL ([\w.]{1,200})", str(error)):
            raise CheckpointError(
                f"{path}: has objects of {named[1]} (probably a whole network saved by torch.save(model)), but only "
                "tensors are loaded. If you trust it, load it yourself, and save its state_dict() as .safetensors."
            ) from None
        raise CheckpointError(
            f"{path}: damaged, or has objects other than tensors, which are never loaded. If you trust it, load it "
            "yourself, and save its state dict as .safetensors. If it is a pickled dict of NumPy arrays, rename it to "
            ".pickle or .pkl, and run `paceline weights convert`."
        ) from None
    except Exception as error:  # whatever a stranger's bytes make torch raise
        if "TorchScript" in str(error):
            raise CheckpointError(f"{path}: a TorchScript program. Save its state_dict() as .safetensors") from None
        raise CheckpointError(f"{path}: {DAMAGED}") from None
    dicts = [name for name in loaded if isinstance(loaded[name], Mapping)] if isinstance(loaded, Mapping) else []
    if key and key not in dicts:
        raise CheckpointError(f"{path}: --key {key}: not found; the file has {abbreviate(join_names(map(str, dicts)))}.")
    averages = [name for name in AVERAGES if name in dicts]
    usual = [] if {*WRAPPERS} & {*dicts} else averages[:1]
    facts: dict[str, Any] = {NOT_READ: averages[0]} if averages and not (key or usual) else {}
    for wrapper in ([key] if key else usual) + [*WRAPPERS]:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            facts |= {
                name: value for name, value in loaded.items()
                if isinstance(name, str) and isinstance(value, str) and len(value) <= MAX_TEXT
            }  # fmt: skip
            loaded = loaded[wrapper]
    return _named(loaded, path), facts


def _refuse_others(path: Path) -> None:
    with os.fdopen(open_plain(path), "rb") as file:
        opening = file.read(OPENING_BYTES)
    known = (what for begins, what in OTHERS.items() if opening.lstrip().lower().startswith(begins))
    # A graph begins with its version and its maker.
    graph = path.suffix.lower() == ".onnx" or (opening[:1] == b"\x08" and opening[2:3] == b"\x12")
    if what := next(known, ONNX if graph else ""):
        raise CheckpointError(f"{path}: not a weight file, but {what}.")


def _pickle(path: Path) -> Contents:
    from paceline.models.weights.formats.array_pickle import read_pickled_arrays  # for those alone who bring such a file

    arrays, texts = read_pickled_arrays(path)
    return _tensors(arrays, path), dict(texts)


def _tensorflow(path: Path) -> Contents:
    index = find_index(path)
    assert index is not None
    return _tensors(read_tf_checkpoint(index, MAX_BYTES), index), {}


def _is_pickle(path: Path) -> bool:
    # torch.save's archives are called .pkl too.
    return path.suffix in (".pickle", ".pkl") and not zipfile.is_zipfile(path)


# Tried in order; the last one takes everything.
KINDS = (
    WeightFileType("TensorFlow checkpoint", lambda path: find_index(path) is not None, _tensorflow),
    WeightFileType("folder of .npy files", Path.is_dir, lambda path: (_tensors(read_npy_folder(path), path), {})),
    WeightFileType("safetensors", lambda path: path.suffix == ".safetensors", _safetensors),
    WeightFileType(
        "MXNet .params",
        lambda path: path.suffix == ".params",
        lambda path: (_tensors(read_params(path, MAX_BYTES), path), {}),
    ),
    WeightFileType(PICKLED, _is_pickle, _pickle),
    WeightFileType("torch.save", lambda _: True, _torch),
)


def _tensors(arrays: Mapping[str, np.ndarray], path: Path) -> dict[str, Tensor]:
    # Before they are copied: many names may stand for the same bytes.
    if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
        raise CheckpointError(f"{path}: its arrays have more than {MAX_BYTES / 2**30:.0f} GiB, too large for these models")
    try:
        # A copy in the machine's byte order: arrays read from a file can be read-only, transposed or of another order.
        return _named(
            {name: torch.tensor(array.astype(array.dtype.newbyteorder("="))) for name, array in arrays.items()}, path
        )
    except TypeError as error:
        raise CheckpointError(f"{path}: has an array without numbers: {error}") from None
    except (ValueError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"{path}: has an array that cannot be used as weights: {abbreviate(str(error))}") from None


def _named(loaded: Any, path: Path) -> dict[str, Tensor]:
    """A dict of plain tensors, by their names without what wrappers put before all of them."""
    loaded = {name: loaded[name] for name in loaded if name != COUNTER} if isinstance(loaded, Mapping) else loaded
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        keys = f" with {abbreviate(join_names(map(str, loaded)), 200)}" if isinstance(loaded, Mapping) and loaded else ""
        named = [name for name in loaded if isinstance(loaded[name], Mapping)] if keys else []
        hint = f". To read {abbreviate(named[0])}:  {conversion_command(path, key=str(named[0]))}" if named else ""
        raise CheckpointError(f"{path}: expected a dict of tensors (a state dict), got {type(loaded).__name__}{keys}{hint}")
    for name, value in loaded.items():
        if not isinstance(name, str) or not name.isprintable():
            raise CheckpointError(f"{path}: invalid name {abbreviate(repr(name) if isinstance(name, str) else name)}")
        if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.device.type != "cpu":
            raise CheckpointError(f"{path}: {name} is not a plain tensor of numbers ({value.layout}, {value.dtype})")
    # A tensor may say that it repeats the same few bytes without end.
    if sum(value.numel() * value.element_size() for value in loaded.values()) > MAX_BYTES:
        raise CheckpointError(f"{path}: its tensors have more than {MAX_BYTES / 2**30:.0f} GiB, too large for these models")
    plain = {name.replace(COMPILED, ""): value for name, value in loaded.items()}
    loaded = plain if len(plain) == len(loaded) else loaded
    prefixes = [*PREFIXES]
    while prefix := next((prefix for prefix in prefixes if all(name.startswith(prefix) for name in loaded)), ""):
        loaded = {name.removeprefix(prefix): value for name, value in loaded.items()}
        if prefix != PREFIXES[0]:  # a network's own names may begin with the others
            prefixes.remove(prefix)
    return dict(loaded)


# torch.load takes for an archive what begins so, and nothing else.
BEGINNING = b"PK\3\4"
# torch.save does not compress, and weights hardly can be; zeros can, a thousandfold.
MAX_UNPACKED = 20
END, END64, LOCATOR64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
END_BYTES, END64_BYTES, LOCATOR64_BYTES = 22, 56, 20
ZIP64_FIELD = 1  # number of the extra field that holds a member's large sizes


def check_archive_size(path: Path, most: int, damaged: str) -> None:
    """Raises CheckpointError where an archive unpacks to more than `most` bytes or 20 times its own, or is not laid out plainly.

    damaged   what to say then
    """
    with os.fdopen(open_plain(path), "rb") as file:
        if file.read(len(BEGINNING)) != BEGINNING:
            return
        size = os.fstat(file.fileno()).st_size
        try:
            _check_end(file, size)
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            for member in members:
                _check_extra(member.extra)
            if len({member.filename for member in members}) != len(members):
                raise ValueError("a duplicate name")
        except Exception:  # whatever a stranger's bytes make zipfile raise
            raise CheckpointError(f"{path}: {damaged}") from None
    unpacked = sum(max(member.file_size, member.compress_size) for member in members)
    if unpacked > min(most, MAX_UNPACKED * size):
        raise CheckpointError(
            f"{path}: its {size / 2**20:,.1f} MiB would unpack to {unpacked / 2**20:,.1f} MiB, which is not plausible "
            "for weights. The file is not loaded"
        )


def _check_end(file: BinaryIO, size: int) -> None:
    """The file ends with the end of its directory, which lies right before it. Raises ValueError, struct.error, OSError."""
    begins = size - END_BYTES
    end = _at(file, begins, END_BYTES)
    *_, length, offset, comment = struct.unpack("<4s4H2LH", end)
    if end[:4] != END or comment:
        raise ValueError("it does not end with a directory")
    locator = _at(file, max(0, begins - LOCATOR64_BYTES), LOCATOR64_BYTES)
    if locator[:4] == LOCATOR64:
        begins -= LOCATOR64_BYTES + END64_BYTES
        end64 = _at(file, begins, END64_BYTES)
        if end64[:4] != END64 or struct.unpack("<4sLQL", locator)[2] != begins:
            raise ValueError("two ends")
        length, offset = struct.unpack("<2Q", end64[40:])
    if offset + length != begins:
        raise ValueError("extra bytes between the directory and its end")


def _at(file: BinaryIO, index: int, count: int) -> bytes:
    file.seek(index)  # below 0 for a file that is too short: ValueError or OSError
    return file.read(count)


def _check_extra(extra: bytes) -> None:
    """A member says its large sizes once."""
    seen = 0
    while len(extra) >= 4:
        number, length = struct.unpack_from("<2H", extra)
        seen += number == ZIP64_FIELD
        extra = extra[4 + length :]
    if seen > 1:
        raise ValueError("duplicate sizes")

"""Write one checkpoint so that it appears whole or not at all.

Everything goes into a hidden folder beside the final one; each file is synced to the disk and read back against its
checksum; then the folder is renamed. A kill at any moment leaves the old state, or the new one, and never half of it.
The safetensors files are written here rather than by the library because its writer copies every file in memory while
it holds the interpreter's lock, which would stall the training loop; reading is the library's (read.py).

Source of the file format: github.com/huggingface/safetensors, "Format" (8 bytes of header length, JSON, data).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint.layout import FORMAT, INDEX, STATE, step_name
from paceline.checkpoint.read import read_facts, read_index
from paceline.checkpoint.snapshot import Snapshot, unusual_strides
from paceline.config.sealed import SEAL, sealed

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
CHUNK = 1 << 22
OLD = ".old"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def save_checkpoint(folder: Path, step: int, snapshot: Snapshot) -> Path:
    """Write `snapshot` as folder/step-N and return that path. An older checkpoint of the same step is replaced.

    The snapshot's tensors must lie on the CPU and hold still.
    raise OSError   what the file system says (full, read-only, ...); nothing is left behind then
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / step_name(step)
    part = folder / f".{final.name}.{os.getpid()}.part"
    if part.exists():
        shutil.rmtree(part)
    try:
        part.mkdir()
        files: dict[str, dict[str, Any]] = {}
        strides: dict[str, dict[str, tuple[int, ...]]] = {}
        for group, tensors in sorted(snapshot.tensors.items()):
            files[f"{group}.safetensors"] = _write(part / f"{group}.safetensors", safetensors_chunks(tensors))
            unusual = {name: found for name in sorted(tensors) if (found := unusual_strides(tensors[name])) is not None}
            if unusual:
                strides[group] = unusual
        files[STATE] = _write(part / STATE, iter([_json(snapshot.facts)]))
        index = {"format": FORMAT, "step": step, "files": files, "strides": strides}
        _write(part / INDEX, iter([_json(sealed(index))]))
        sync_folder(part)
        _put_in_place(part, final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def revise_facts(folder: Path, step: int, facts: Mapping[str, Any]) -> Path:
    """Replace some facts of the checkpoint step-N, all at once or not at all; its tensors stay the files they are.

    raise CheckpointError   the checkpoint is not there, or damaged
    raise OSError           it cannot be written; it stays as it was then
    """
    final = folder / step_name(step)
    part = folder / f".{final.name}.{os.getpid()}.part"
    index = {name: value for name, value in read_index(final).items() if name != SEAL}
    saved = read_facts(final, index)
    try:
        part.mkdir()
        for name in index["files"].keys() - {STATE}:
            _link(final / name, part / name)
        index["files"][STATE] = _write(part / STATE, iter([_json({**saved, **facts})]))
        _write(part / INDEX, iter([_json(sealed(index))]))
        sync_folder(part)
        _put_in_place(part, final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def _link(source: Path, copy: Path) -> None:
    """The same file under a second name; a copy on the disk where the file system has no hard links."""
    try:
        os.link(source, copy)
    except OSError:
        with open(source, "rb") as file:
            _write(copy, iter(lambda: file.read(CHUNK), b""))


def _put_in_place(part: Path, final: Path) -> None:
    """Rename `part` to `final`. A folder cannot be renamed over a filled one: the two are exchanged, in one step.

    On a file system that cannot exchange (NFS) the old one steps aside first; a kill in that moment leaves it under its
    hidden name, from where the next writer takes it back (restore_replaced).
    """
    old = part
    if not final.exists():
        os.rename(part, final)
    elif not _exchange(part, final):
        old = part.with_suffix(OLD)
        os.rename(final, old)
        os.rename(part, final)
    sync_folder(final.parent)
    if old.exists():
        shutil.rmtree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; False where the system or the file system cannot. Source: rename(2), renameat2."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0


def restore_replaced(path: Path) -> bool:
    """Give a stepped-aside checkpoint (see _put_in_place) its name back if its successor never came."""
    final = path.with_name(path.name.split(".")[1])
    if path.suffix != OLD or final.exists():
        return False
    os.rename(path, final)
    return True


def safetensors_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file: widest types first, then by name, so equal tensors give equal bytes."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {}, 0
    for name in names:
        begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if tensors[name].numel():
            yield tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _write(path: Path, chunks: Iterator[bytes | memoryview]) -> dict[str, Any]:
    """Write, sync, and read back. -> {"bytes", "sha256"}."""
    digest, total = hashlib.sha256(), 0
    with open(path, "wb", buffering=0) as file:
        for chunk in chunks:
            view = memoryview(chunk)
            digest.update(view)
            total += len(view)
            while view:
                view = view[file.write(view[:CHUNK]) :]
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            # Drop the cached pages, so that reading back asks the disk.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file_sha256(path) != digest.hexdigest():
        raise OSError(f"{path} reads back other than it was written")
    return {"bytes": total, "sha256": digest.hexdigest()}


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

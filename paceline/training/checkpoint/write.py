"""Snapshots, which checkpoints hold, and writing one so that it appears whole or not at all.

Everything goes into a hidden folder beside the final one; each file is synced to the disk and read back against its
checksum; then the folder is renamed. A kill at any moment leaves no checkpoint of that step, or the whole one. What is
written is never changed again. Equal tensors give equal file bytes: clocks and all else that differs between two equal states
belong in a snapshot's `facts`.
The safetensors files are written here rather than by the library because its writer copies every file in memory while
it holds the interpreter's lock, which would stall the training loop; reading is the library's (read.py).

Source of the file format: github.com/huggingface/safetensors, "Format" (8 bytes of header length, JSON, data).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline._utils.atomic_write import sync_folder
from paceline._utils.hashing import file_sha256
from paceline._utils.safe_read import with_checksum
from paceline.config.model_card import METADATA
from paceline.training.checkpoint.layout import FORMAT, INDEX, STATE, step_name

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


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run.

    tensors  {group: {name: tensor}}; each group becomes the file GROUP.safetensors
    facts    JSON: position, clocks, recipe, ... (tuples come back as lists)
    cards    {group: what its file says of the run} (config/model_card.py); it is not read back
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    facts: Mapping[str, Any]
    cards: Mapping[str, str] = field(default_factory=dict)


def count_tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that `tensors` take on disk, headers aside."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def unusual_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a dense tensor that is not laid out row by row (channels_last, a transpose); None otherwise.

    Of a 1x1 convolution's weight both layouts hold the same bytes but have different strides; those count as well,
    because kernels and norms go by the strides.
    """
    rows = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == rows or tensor.numel() == 0:
        return None
    return tuple(tensor.stride()) if are_dense(tensor.shape, tensor.stride()) else None


def are_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's numbers fill its memory without a gap or an overlap: the strides are those of a permutation.

    A dimension of size 1 is never stepped over, so its stride may be any.
    """
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != reach:
            return False
        reach *= size
    return all(stride >= 0 for stride in strides)


def with_strides(tensor: Tensor, strides: Iterable[int] | None) -> Tensor:
    """`tensor` in memory of the given strides; itself where there are none.

    raise ValueError   the strides are none of a dense tensor of this shape: some numbers would share their memory
    """
    if strides is None:
        return tensor
    strides = tuple(strides)
    if not are_dense(tensor.shape, strides):
        raise ValueError(f"strides {strides} do not fit the shape {tuple(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def save_checkpoint(folder: Path, step: int, snapshot: Snapshot) -> Path:
    """Write `snapshot` as folder/step-N and return that path. Whatever has this name goes.

    The snapshot's tensors must lie on the CPU and hold still.
    raise OSError   what the file system says (full, read-only, ...); nothing is left behind then
    """
    folder.mkdir(exist_ok=True)  # what is above it is the run's: where that was deleted, nothing brings it back
    final = folder / step_name(step)
    part = folder / f".{final.name}.{os.getpid()}.part"
    if part.exists():
        shutil.rmtree(part)
    try:
        part.mkdir()
        files: dict[str, dict[str, Any]] = {}
        strides: dict[str, dict[str, tuple[int, ...]]] = {}
        for group, tensors in sorted(snapshot.tensors.items()):
            files[f"{group}.safetensors"] = _write(
                part / f"{group}.safetensors", safetensors_chunks(tensors, snapshot.cards.get(group, ""))
            )
            unusual = {name: results for name in sorted(tensors) if (results := unusual_strides(tensors[name])) is not None}
            if unusual:
                strides[group] = unusual
        files[STATE] = _write(part / STATE, iter([_json(snapshot.facts)]))
        index = {"format": FORMAT, "step": step, "files": files, "strides": strides}
        _write(part / INDEX, iter([_json(with_checksum(index))]))
        sync_folder(part)
        if os.path.lexists(final):
            # A run goes on from its newest whole checkpoint: one of a step that it comes to again is damaged, and worth nothing.
            delete_checkpoint(final)
        os.rename(part, final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return final


def delete_checkpoint(path: Path) -> None:
    """Delete what has a checkpoint's name. It loses the name first: half of one must not look like a damaged one."""
    trash = path.with_name(f".{path.name}.{os.getpid()}.trash")
    os.rename(path, trash)
    delete_path(trash)


def delete_path(path: Path) -> None:
    """Delete a folder with all that is in it, a file or a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def safetensors_chunks(tensors: Mapping[str, Tensor], card: str = "") -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file: widest types first, then by name, so equal tensors and cards give equal bytes."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {METADATA: card, "format": "pt"}} if card else {}
    end = 0
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
        raise OSError(f"{path}: checksum mismatch when the file was read back")
    return {"bytes": total, "sha256": digest.hexdigest()}

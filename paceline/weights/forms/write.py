"""Write tensors in a form, into a file that appears whole or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from paceline.config.errors import UserError
from paceline.config.whole import sweep, whole
from paceline.weights.forms.ours import FormError, Ours, to_metadata
from paceline.weights.forms.table import FORMS, Form
from paceline.weights.weight_file import WeightFile

# Forms whose own readers look for the tensors under "model".
WRAPPED = ("reference", "detectron2")


def writable() -> list[Form]:
    """The forms that may be written."""
    return [form for form in FORMS if form.write is not None]


def write_form(file: WeightFile, ours: Ours, form: Form, out: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """-> the tensors as they were written, and what their user must know.

    Raises UserError where the other side has no such network, or the file cannot be written.
    """
    assert form.write is not None
    try:
        tensors, beside, notes = form.write(ours)
    except FormError as problem:
        raise UserError(f"{file.path}: {problem}. It cannot be written as --to {form.name}.") from None
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep(out.parent, {out.name})
        with whole(out, sync=True) as part:
            _write(part, out.suffix, tensors, beside, form, ours)
    except (OSError, RuntimeError, safetensors.SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or (str(problem).splitlines() or [""])[0]
        raise UserError(f"--out {out}: cannot be written ({reason}). Name another file.") from None
    return tensors, notes


def _write(
    part: Path, suffix: str, tensors: Mapping[str, Tensor], beside: Mapping[str, Any], form: Form, ours: Ours
) -> None:
    if suffix == ".safetensors":
        metadata = to_metadata(ours) if form.name == "ours" else {"format": "pt"}
        # save_file would write to a name of its own, which a kill leaves behind, and for the file's owner alone.
        part.write_bytes(safetensors.torch.save(dict(tensors), metadata=metadata))
        return
    with part.open("wb") as file:
        if suffix == ".pkl":
            _Pickler(file, protocol=4).dump(
                {"model": {name: tensor.numpy() for name, tensor in tensors.items()}, **beside}
            )
        else:
            torch.save({"model": dict(tensors), **beside} if form.name in WRAPPED else dict(tensors), file)


class _Pickler(pickle.Pickler):
    """numpy 1 and 2 name the function that usually makes an array again differently, and neither knows the other's name."""

    def reducer_override(self, obj: Any) -> Any:
        """An array is numpy.ndarray(shape, type, bytes), which both know."""
        if isinstance(obj, np.ndarray):
            return np.ndarray, (obj.shape, obj.dtype.str, obj.tobytes())
        return NotImplemented

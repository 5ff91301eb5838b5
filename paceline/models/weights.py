"""Start from somebody's weights: read a file as data, fit it to a model by name, and report every key.

Read are torchvision's .pth (tensors only), .safetensors, the MXNet systems' pickled arrays and folders of .npy, and
tensors wrapped as {"state_dict": ...} or with a "module." prefix. The head may be new, and the stem may gain or
lose the zero-padded fourth input channel; anything else that does not fit is an error, because a net with half its
weights trains without complaint to a worse result.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.config.errors import CheckpointError
from paceline.config.plain_file import require_plain
from paceline.config.printable import short
from paceline.models.array_pickle import read_pickled_arrays
from paceline.models.trunk import Trunk
from paceline.models.weights_mxnet import is_mxnet, mxnet_to_torchvision, read_npy_folder

# A ResNet-269 in float32 is 0.4 GB, with an optimiser's state 1.2 GB; a file beyond this, packed or not, is something else.
MAX_BYTES = 2 * 2**30
# torch.save does not compress, and weights hardly can be; zeros can, a thousandfold.
MOST_UNPACKED = 20

HEAD = ("fc.weight", "fc.bias")
STEM = "conv1.weight"
WRAPPERS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.", "network.")


@dataclass(frozen=True)
class WeightReport:
    """What became of every key of a weight file and of the model. Names are the model's."""

    path: Path
    used: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reinitialised: tuple[str, ...]
    converted: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people: the counts, then every key that was not simply used."""
        count = len(self.used)
        lines = [f"weights {self.path}: {count} tensors used, {len(self.converted)} of them converted"]
        for what, names in (
            ("new in this model, first weights kept", self.reinitialised),
            ("missing in the file, first values kept", [name for name in self.missing if not is_counter(name)]),
            ("in the file only, skipped", self.unexpected),
            ("converted to this model's shape", self.converted),
        ):
            if names:
                lines.append(f"  {what} ({len(names)}): {', '.join(names)}")
        return lines


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weight file or folder, under torchvision's names, on the CPU; nothing in it is executed.

    Raises CheckpointError for a file that is absent, too large, damaged, or holds anything but tensors.
    """
    if path.is_dir():
        return _from_mxnet(path, read_npy_folder(path))
    try:
        size = require_plain(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such weight file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as weights ({error.strerror})") from None
    if size > MAX_BYTES:
        raise CheckpointError(f"{path}: {size / 2**30:.1f} GiB is too large for these models' weights")
    if path.suffix == ".safetensors":
        try:
            return _unwrap(load_file(path), path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from None
    if path.suffix in (".pickle", ".pkl"):
        return _from_mxnet(path, read_pickled_arrays(path))
    _refuse_bomb(path, size)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: damaged, or it holds more than tensors, and nothing else is ever unpickled. "
            "Where you trust it, load it yourself and save its state dict as .safetensors; "
            "a pickled dict of numpy arrays must be named .pickle or .pkl."
        ) from None
    except Exception as error:  # whatever a stranger's bytes make torch raise
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path}: not a readable weight file: {type(error).__name__}: {reason}") from None
    return _unwrap(loaded, path)


def load_weights(
    model: Trunk,
    path: Path | str,
    *,
    allow_new_head: bool = True,
    allow_missing: tuple[str, ...] = (),
    allow_unexpected: tuple[str, ...] = (),
) -> WeightReport:
    """Copy a weight file into an already initialised classifier, in place, and report every key.

    allow_new_head    keep the model's own first `fc` where the file has another number of classes, or none
    allow_missing     prefixes of model keys that the file need not have
    allow_unexpected  prefixes of file keys that the model need not have, e.g. ("layer4.", "fc.") for a shorter trunk
    Raises CheckpointError naming the file and the keys when anything else does not fit; the model is then unchanged.
    """
    path = Path(path)
    saved = read_weights(path)
    found, beyond = model.of_file(saved)
    saved = found or saved
    own = model.state_dict()
    converted = []
    if STEM in saved and STEM in own and saved[STEM].shape != own[STEM].shape:
        stem = _fit_stem(saved[STEM], own[STEM].shape)
        if stem is not None:
            saved[STEM] = stem
            converted.append(STEM)
    fresh = [name for name in HEAD if name in own and (name not in saved or saved[name].shape != own[name].shape)]
    fresh = [name for name in HEAD if name in own] if fresh and allow_new_head else []
    return copy_named(
        model,
        saved,
        path,
        fresh=fresh,
        converted=converted,
        allow_missing=allow_missing,
        allow_unexpected=(*allow_unexpected, *beyond),
    )


def load_own(model: nn.Module, path: Path, _: Sequence[int]) -> WeightReport:
    """Copy a file of the very same network, such as one of its checkpoints, into it, in place: the usual rule of a network of
    one's own (`Workload.load_weights`).

    Raises CheckpointError naming the file and the keys where anything does not fit; the model is then unchanged.
    """
    saved = read_weights(path)
    if not saved.keys() & model.state_dict().keys():  # where all names begin with it, it was taken for a wrapper's
        saved = {f"network.{name}": tensor for name, tensor in saved.items()}
    return copy_named(model, saved, path, fresh=(), converted=())


def copy_named(
    model: nn.Module,
    saved: Mapping[str, Tensor],
    path: Path,
    *,
    fresh: Collection[str],
    converted: Sequence[str],
    allow_missing: tuple[str, ...] = (),
    allow_unexpected: tuple[str, ...] = (),
) -> WeightReport:
    """Copy tensors that already have the model's names; see `load_weights`.

    fresh      names of the model that keep their first weights
    converted  names whose tensors in `saved` were changed to fit
    """
    own = model.state_dict()
    used = [name for name in own if name in saved and name not in fresh and saved[name].shape == own[name].shape]
    wrong = [name for name in own if name in saved and name not in fresh and saved[name].shape != own[name].shape]
    missing = [name for name in own if name not in saved and name not in fresh]
    unexpected = [name for name in saved if name not in own]
    vital = [name for name in missing if not is_counter(name) and not name.startswith(allow_missing)]
    strange = [name for name in unexpected if not name.startswith(allow_unexpected)]
    problems = [
        *(_problem("missing in the file", vital) if vital else ()),
        *(_problem("unknown to this model", strange) if strange else ()),
        *(f"{name} is {tuple(saved[name].shape)}, this model's is {tuple(own[name].shape)}" for name in wrong[:3]),
    ]
    # Of a file for a trunk alone, what stands on it is no sign of another model.
    wanted = [name for name in own if name not in fresh and not name.startswith(allow_missing)]
    if problems or not used or 2 * len(used) < len(wanted):
        raise CheckpointError(
            f"{path}: weights of another model: {len(used)} of this model's {len(own)} tensors fit; "
            + "; ".join(problems)
            + ". Choose the model (depth, width, stem) that the file was made for."
        )
    broken = [name for name in used if not torch.isfinite(saved[name]).all()]
    if broken:
        raise CheckpointError(
            f"{path}: {broken[0]} holds values that are no finite numbers (so do {len(broken) - 1:,} others): damaged, or "
            "saved from a training that had failed."
        )
    with torch.no_grad():
        for name in used:
            own[name].copy_(saved[name])
    return WeightReport(path, tuple(used), tuple(missing), tuple(unexpected), tuple(fresh), tuple(converted))


def is_counter(name: str) -> bool:
    """Whether a tensor only counts batches: older files, MXNet's and averages of weights lack it, and nothing depends on it."""
    return name.endswith("num_batches_tracked")


def convert_stem(weight: Tensor, channels: Literal[3, 4]) -> Tensor:
    """A stem's convolution (O, 3 or 4, kh, kw) for inputs of `channels` channels, the fourth being zeros.

    The output of the net is the same either way: the fourth channel's weights only ever meet zeros.
    """
    if channels == weight.shape[1]:
        return weight
    if channels == 3:
        return weight[:, :3].contiguous()
    return torch.cat((weight, torch.zeros_like(weight[:, :1])), dim=1)


def export_torchvision_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that torchvision's ResNet loads strictly: float32, contiguous, on the CPU, stem of 3 channels."""
    state = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu()
        if name == STEM:
            tensor = convert_stem(tensor, 3)
        state[name] = (tensor.float() if tensor.is_floating_point() else tensor).clone(
            memory_format=torch.contiguous_format
        )
    return state


def _refuse_bomb(path: Path, size: int) -> None:
    """Raises CheckpointError where the directory of an archive names more than a file of weights can hold.

    size  of the file, bytes
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception:  # whatever a stranger's bytes make zipfile raise
        return  # no archive that can be opened: the loader says what it is
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > min(MAX_BYTES, MOST_UNPACKED * size):
        raise CheckpointError(
            f"{path}: its {size / 2**20:,.1f} MiB would unpack to {unpacked / 2**20:,.1f} MiB, which weights do not; "
            "it is not opened"
        )


def _fit_stem(weight: Tensor, shape: torch.Size) -> Tensor | None:
    """The stem converted between 3 and 4 input channels if that makes it `shape`, else None."""
    if weight.dim() != 4 or weight.shape[1] not in (3, 4) or shape[1] not in (3, 4):
        return None
    fitted = convert_stem(weight, 3 if shape[1] == 3 else 4)
    return fitted if fitted.shape == shape else None


def _from_mxnet(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    # Before they are copied: many names may stand for the same bytes.
    if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
        raise CheckpointError(
            f"{path}: its arrays have more than {MAX_BYTES / 2**30:.0f} GiB, too large for these models"
        )
    try:
        if is_mxnet(arrays):
            arrays = mxnet_to_torchvision(arrays)
        # A copy in the machine's byte order: arrays read from a file can be read-only, transposed or of another order.
        return {name: torch.tensor(array.astype(array.dtype.newbyteorder("="))) for name, array in arrays.items()}
    except TypeError as error:
        raise CheckpointError(f"{path}: holds an array that is not of numbers: {error}") from None
    except (ValueError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"{path}: holds an array of no use as weights: {short(str(error))}") from None


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path}: expected a dict of tensors (a state dict), found {type(loaded).__name__}")
    for name, value in loaded.items():
        if not isinstance(name, str) or not name.isprintable():
            raise CheckpointError(
                f"{path}: {short(repr(name) if isinstance(name, str) else name)} is no name of a tensor"
            )
        if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.device.type != "cpu":
            raise CheckpointError(f"{path}: {name} is no plain tensor of numbers ({value.layout}, {value.dtype})")
    # A tensor may say that it repeats the same few bytes without end.
    if sum(value.numel() * value.element_size() for value in loaded.values()) > MAX_BYTES:
        raise CheckpointError(
            f"{path}: its tensors have more than {MAX_BYTES / 2**30:.0f} GiB, too large for these models"
        )
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in loaded):
            loaded = {name.removeprefix(prefix): value for name, value in loaded.items()}
    return dict(loaded)


def _problem(what: str, names: list[str]) -> list[str]:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [f"{len(names)} {what} ({shown})"]

"""Start from somebody's weights: fit a file's tensors to a model by name, and report every key.

weights/forms/ lists which files are read. The head may be new, or keep the rows of the classes that both sides have; the stem may gain
or lose the zero-padded fourth input channel. Anything else that does not fit is an error, because a net with half its weights trains
without complaint to a worse result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from paceline._utils.errors import CheckpointError
from paceline.models.backbones.base import Backbone
from paceline.models.weights.classes import ClassRows, Labels, match_rows, select_rows
from paceline.models.weights.formats.detect import read_contents
from paceline.models.weights.weight_file import WeightFile, find_non_finite, open_weights

HEAD = ("fc.weight", "fc.bias")
STEM = "conv1.weight"
# More names of one kind than that are said by their layers.
MAX_NAMES = 12


@dataclass(frozen=True)
class WeightReport:
    """What became of every key of a weight file and of the model. Names are the model's."""

    path: Path
    used: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reinitialised: tuple[str, ...]
    converted: tuple[str, ...]
    said: tuple[str, ...] = ()  # of class rows, and of what a user should know

    def lines(self, *, every: bool = False) -> list[str]:
        """For people: the counts, then every key that was not simply used; of many of them the layers, unless `every` is asked."""
        count = len(self.used)
        lines = [f"weights {self.path}: {count} tensors used, {len(self.converted)} of them converted"]
        for what, names in (
            ("new in this model, initial weights kept", self.reinitialised),
            ("missing in the file, initial values kept", [name for name in self.missing if not is_counter(name)]),
            ("only in the file, skipped", self.unexpected),
            ("converted to this model's shape", self.converted),
        ):
            if names:
                lines.append(f"  {what} ({len(names)}): {', '.join(names) if every else _short(names)}")
        return [*lines, *(f"  {line}" for line in self.said)]


def load_weights(
    model: Backbone,
    source: Path | str | WeightFile,
    labels: Labels | None = None,
    *,
    allow_new_head: bool = True,
    allow_missing: tuple[str, ...] = (),
    allow_unexpected: tuple[str, ...] = (),
) -> WeightReport:
    """Copy a weight file into an already initialized classifier, in place, and report every key.

    labels            classes of the model's rows: those that the file has too, by name, keep its rows
    allow_new_head    keep the model's own first `fc` where the file has another number of classes, or none
    allow_missing     prefixes of model keys that the file need not have
    allow_unexpected  prefixes of file keys that the model need not have, e.g. ("layer4.", "fc.") for a shorter trunk
    Raises CheckpointError naming the file and the keys when anything else does not fit; the model is then unchanged.
    """
    file = ensure_open(source)
    file.require(model)
    saved = dict(file.ours.tensors)
    result, beyond = model.of_file(saved)
    saved = result or saved
    own = model.state_dict()
    converted = [name for name in file.ours.converted if name in own]
    said = file.notes_for(model)
    converted += fit_stem(saved, own, STEM)
    rows = map_class_rows(file, labels, len(saved[HEAD[1]]) if HEAD[1] in saved else 0) if HEAD[1] in own else None
    if rows is not None and rows.any and allow_new_head and all(name in saved for name in HEAD):
        if saved[HEAD[0]].shape[1:] == own[HEAD[0]].shape[1:]:
            saved |= {name: select_rows(own[name], saved[name], rows.places) for name in HEAD}
            converted += HEAD
            said += rows.lines()
    elif rows is not None:
        saved = {name: tensor for name, tensor in saved.items() if name not in HEAD}
    fresh = [name for name in HEAD if name in own and (name not in saved or saved[name].shape != own[name].shape)]
    fresh = [name for name in HEAD if name in own] if fresh and allow_new_head else []
    return copy_tensors(
        model,
        saved,
        file.path,
        fresh=fresh,
        converted=converted,
        said=said,
        allow_missing=allow_missing,
        allow_unexpected=(*allow_unexpected, *beyond),
    )


def ensure_open(source: Path | str | WeightFile) -> WeightFile:
    """The file, opened where it is not yet. Raises CheckpointError as `open_weights`."""
    return source if isinstance(source, WeightFile) else open_weights(Path(source))


def map_class_rows(file: WeightFile, labels: Labels | None, rows: int) -> ClassRows | None:
    """How the classes of a file with so many class rows (without a background) become those of a data set.

    None: nothing is known of either, or all rows stay where they are, or what was published with so many rows has none of the names.
    """
    if labels is None or not labels.names or not rows or len(file.classes) != rows:
        return None
    result = match_rows(file.classes, labels)
    return None if result.same or not (result.any or file.certain) else result


def load_same_network(model: nn.Module, path: Path, __: Labels) -> WeightReport:
    """Copy a file of the very same network, such as one of its checkpoints, into it, in place: the usual rule of a network of
    one's own (`NetworkFactory.load_weights`).

    Raises CheckpointError naming the file and the keys where anything does not fit; the model is then unchanged.
    """
    _, (saved, _) = read_contents(path)
    if not saved.keys() & model.state_dict().keys():  # where all names begin with it, it was taken for a wrapper's
        saved = {f"network.{name}": tensor for name, tensor in saved.items()}
    return copy_tensors(model, saved, path, fresh=(), converted=())


def copy_tensors(
    model: nn.Module,
    saved: Mapping[str, Tensor],
    path: Path,
    *,
    fresh: Collection[str],
    converted: Sequence[str],
    said: Sequence[str] = (),
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
    # A counter of a BatchNorm that is frozen in the model counts nothing.
    counters = {name for name in saved if is_counter(name) and f"{name.rpartition('.')[0]}.running_mean" in own}
    unexpected = [name for name in saved if name not in own and name not in counters]
    vital = [name for name in missing if not is_counter(name) and not name.startswith(allow_missing)]
    strange = [name for name in unexpected if not name.startswith(allow_unexpected)]
    problems = [
        *(
            f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for what, names in (("missing in the file", vital), ("unknown to this model", strange))
            if names
        ),
        *(f"{name} has shape {tuple(saved[name].shape)}, but {tuple(own[name].shape)} in this model" for name in wrong[:3]),
    ]
    # Head tensors in a backbone file are ignored.
    wanted = [name for name in own if name not in fresh and not name.startswith(allow_missing)]
    if problems or not used or 2 * len(used) < len(wanted):
        raise CheckpointError(
            f"{path}: weights of another model: only {len(used)} of the {len(own)} tensors of this model match; "
            + "; ".join(problems)
            + ". Choose the network of the file with --model.backbone, --model.depth, --model.width, and --model.stem. "
            "To see its settings, run `paceline weights inspect FILE`."
        )
    if wild := find_non_finite({name: saved[name] for name in used}):
        raise CheckpointError(
            f"{path}: {wild[0]} has values that are not finite{f' (and {len(wild) - 1:,} others)' if wild[1:] else ''}. "
            "The file is damaged, or from a failed training run."
        )
    with torch.no_grad():
        for name in used:
            own[name].copy_(saved[name])
    return WeightReport(path, tuple(used), tuple(missing), tuple(unexpected), tuple(fresh), tuple(converted), tuple(said))


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


def fit_stem(saved: dict[str, Tensor], own: Mapping[str, Tensor], name: str) -> list[str]:
    """Give the stem called `name` in `saved` the model's number of input channels, 3 or 4, in place; -> its name where that was due.

    One that does not fit then either stays as it is, and is refused with the rest.
    """
    if name not in saved or name not in own or saved[name].dim() != 4:
        return []
    weight, shape = saved[name], own[name].shape
    if weight.shape == shape or weight.shape[1] not in (3, 4) or shape[1] not in (3, 4):
        return []
    fitted = convert_stem(weight, 3 if shape[1] == 3 else 4)
    if fitted.shape != shape:
        return []
    saved[name] = fitted
    return [name]


def _short(names: Sequence[str]) -> str:
    """Names, or of many of them their layers, with the number of tensors in each."""
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    for depth in (2, 1):
        layers = Counter(".".join(name.split(".")[:depth]) for name in names)
        if len(layers) <= MAX_NAMES:
            break
    return ", ".join(f"{layer}.* ({count})" for layer, count in layers.items())

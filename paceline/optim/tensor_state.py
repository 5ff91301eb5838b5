"""Copy saved tensors into existing ones by name, refusing what does not fit.

Copying (never replacing) keeps memory formats, graph captures and every other holder of the tensors intact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.config.errors import CheckpointError


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy saved[name] into targets[name] for every name.

    what  what the tensors are, for the message
    Raises CheckpointError when names or shapes differ; then nothing was copied.
    """
    missing = [name for name in targets if name not in saved]
    unknown = [name for name in saved if name not in targets]
    if missing or unknown:
        raise CheckpointError(
            f"the saved {what} belongs to something else: {len(missing)} tensors missing ({_some(missing)}), "
            f"{len(unknown)} unknown ({_some(unknown)})"
        )
    for name, target in targets.items():
        if saved[name].shape != target.shape:
            raise CheckpointError(
                f"the saved {what} belongs to something else: {name} has shape {tuple(saved[name].shape)}, "
                f"needed is {tuple(target.shape)}"
            )
    for name, target in targets.items():
        target.copy_(saved[name])


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"

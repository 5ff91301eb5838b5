"""torch's operations on lists of tensors, one kernel for many: its own optimizers use them, but they have no public names.

A trailing _ changes the first list in place, as everywhere in torch.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline._utils.errors import CheckpointError
from paceline._utils.text import join_names

add, add_ = torch._foreach_add, torch._foreach_add_
mul, mul_ = torch._foreach_mul, torch._foreach_mul_
div, div_ = torch._foreach_div, torch._foreach_div_
sub, sub_ = torch._foreach_sub, torch._foreach_sub_
addcmul_, lerp_ = torch._foreach_addcmul_, torch._foreach_lerp_
clamp_min_, clamp_max_ = torch._foreach_clamp_min_, torch._foreach_clamp_max_
norm, sqrt = torch._foreach_norm, torch._foreach_sqrt
fused_sgd_, fused_adamw_ = torch._fused_sgd_, torch._fused_adamw_  # a whole step in one kernel
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy saved[name] into targets[name] for every name; `what` names the tensors in the message.

    Copying, never replacing, keeps memory formats, graph captures and every other holder of the tensors intact.
    Raises CheckpointError when names or shapes differ; then nothing was copied.
    """

    missing = [name for name in targets if name not in saved]
    unknown = [name for name in saved if name not in targets]
    problem = f"the saved {what} does not match this run: "
    if missing or unknown:
        raise CheckpointError(
            f"{problem}{len(missing)} tensors missing ({join_names(missing, 3)}), {len(unknown)} unknown ({join_names(unknown, 3)})"
        )
    for name, target in targets.items():
        if saved[name].shape != target.shape:
            raise CheckpointError(f"{problem}{name} must have shape {tuple(target.shape)}, got {tuple(saved[name].shape)}")
    for name, target in targets.items():
        target.copy_(saved[name])

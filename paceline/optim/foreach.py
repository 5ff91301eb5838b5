"""torch's operations on lists of tensors, one kernel for many: its own optimisers use them, but they have no public names.

A trailing _ changes the first list in place, as everywhere in torch.
"""

# pyright: reportPrivateImportUsage=false

import torch

add, add_ = torch._foreach_add, torch._foreach_add_
mul, mul_ = torch._foreach_mul, torch._foreach_mul_
div, div_ = torch._foreach_div, torch._foreach_div_
sub, sub_ = torch._foreach_sub, torch._foreach_sub_
addcmul_, lerp_ = torch._foreach_addcmul_, torch._foreach_lerp_
clamp_min_, clamp_max_ = torch._foreach_clamp_min_, torch._foreach_clamp_max_
norm, sqrt = torch._foreach_norm, torch._foreach_sqrt
fused_sgd_, fused_adamw_ = torch._fused_sgd_, torch._fused_adamw_  # a whole step in one kernel
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_

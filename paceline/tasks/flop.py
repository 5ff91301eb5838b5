"""The multiplications and additions of a training step, counted in its forward alone.

A product of two operands that both get a gradient is made three times: once forward, and once for each of them backward. Which of
them gets one is known when the forward makes it, so no backward has to run, and no network has to have one on torch's meta device.
What is counted, and how (two for each multiplication with its addition), are torch.utils.flop_counter's own formulas: matrix
products, convolutions, attention. Elementwise work, normalisation, pooling and the update are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class StepFlop(TorchDispatchMode):
    """Inside, `flop` grows by what the forward does, and by what its backward will do."""

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry  # half a second: for those alone who count

        self.flop, self._formulas = 0, flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            # A bias is added, not multiplied with: products of matrices have it first, convolutions third.
            first = 1 if func._overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.baddbmm) else 0
            operands = [operand for operand in args[first : first + 2] if isinstance(operand, Tensor)]
            backward = sum(operand.requires_grad for operand in operands) if torch.is_grad_enabled() else 0
            self.flop += int(formula(*args, **(kwargs or {}), out_val=result)) * (1 + backward)
        return result

"""One switch between an operation's two forms."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import paceline
from paceline.models.ops import dispatch

PACKAGE = Path(paceline.__file__).parent


def test_off_a_cpu_shapes_are_fixed_and_on_one_where_it_was_asked_for() -> None:
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    assert not dispatch.uses_static_shapes(here) and dispatch.uses_static_shapes(there)
    with dispatch.static_shapes(), dispatch.static_shapes():
        assert dispatch.uses_static_shapes(here) and dispatch.uses_static_shapes(there)
    with pytest.raises(KeyError), dispatch.static_shapes():
        raise KeyError
    assert not dispatch.uses_static_shapes(here)


def test_our_kernels_are_for_cuda_alone_and_where_they_were_asked_for() -> None:
    tensors = [SimpleNamespace(device=torch.device(kind)) for kind in ("cuda", "cpu", "meta", "hpu")]
    try:
        for wanted in (True, False):
            dispatch.set_triton(wanted)
            assert [dispatch.uses_triton(tensor) for tensor in tensors] == [wanted, False, False, False]
    finally:
        dispatch.set_triton(False)


def test_no_network_and_no_loss_asks_for_the_device_itself() -> None:
    """Else a CPU could not take the form that an accelerator takes. Run lengths end on the host: pasting may ask."""
    asking = [
        str(path.relative_to(PACKAGE))
        for room in ("backbones", "layers", "maskrcnn", "ops", "resnet", "ssd", "weights")
        for path in sorted((PACKAGE / "models" / room).rglob("*.py"))
        if path.name != "task.py" and re.search(r"\.type [!=]= \"cpu\"", path.read_text())
    ]
    assert asking == ["models/ops/dispatch.py", "models/ops/paste_masks.py", "models/weights/formats/detect.py"]

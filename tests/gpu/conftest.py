"""On the simulated device (--simulated) what one test took is given back before the next: it is memory of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    yield
    if "SIMULATED_VALUES" in os.environ:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

"""On the simulated device (--simulated) what one test took is given back before the next: it is memory of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

# Kernels in Triton have no values there; a test that fills a device would fill this machine's memory if kernels wrote.
collect_ignore_glob = ["*kernels_on_cuda.py", "test_memory_on_cuda.py"] if os.environ.get("SIMULATED_VALUES") == "1" else []


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    yield
    if "SIMULATED_VALUES" in os.environ:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

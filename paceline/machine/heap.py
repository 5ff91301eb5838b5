"""What the C library does with memory that tensors give back, where they are computed on a CPU.

A step allocates and frees the same gigabytes as the step before. glibc's own rule gives them back to the system, which hands them out
again page by page, each one cleared, to the one thread that asks: a sixth of ResNet-50's step (results/kept-memory).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

import torch

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1  # is what lies free at the end of the heap given back
# As large as glibc takes it. Larger tensors come from the system and go back to it: kept, they made a full-size Mask R-CNN half as
# fast again, but its heap grew by half too, because they are of another size in every step.
LARGEST_KEPT = 32 * 2**20
# A person's own choice, which stays.
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def keep_freed_memory(device: torch.device, environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep what tensors on a CPU give back, for good; -> whether it does.

    Not where another device computes, where the environment says how memory is kept, and with a C library other than glibc.
    """
    chosen = any(name in environ for name in CHOSEN) or "glibc.malloc." in environ.get("GLIBC_TUNABLES", "")
    if device.type != "cpu" or chosen or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # The first of them alone would be worse than none: with either, the threshold no longer follows what is freed.
    return bool(library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and library.mallopt(M_TRIM_THRESHOLD, NEVER))

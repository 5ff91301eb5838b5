"""The MLPerf reference's Mask R-CNN run again, where a checkout of it is named: it still says what is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlperf_recorded import ROOT, recorded

CHECKOUT = "PACELINE_MLPERF_TRAINING"


@pytest.mark.nightly("needs a checkout of the reference")
def test_the_reference_says_again_what_is_recorded(shared_data: Path, tmp_path: Path) -> None:
    if CHECKOUT not in os.environ:
        pytest.skip(f"{CHECKOUT} names no checkout of github.com/mlcommons/training (--nightly)")
    folder = Path(os.environ[CHECKOUT]) / "retired_benchmarks" / "maskrcnn" / "pytorch"
    out = tmp_path / "again.npz"
    words = ["--reference", folder, "--coco", shared_data / "coco_mini", "--out", out]
    # A process of its own: what the reference needs is put into numpy and torch.
    script = ROOT / "scripts" / "originals" / "mlperf_maskrcnn.py"
    subprocess.run([sys.executable, "-W", "ignore", script, *map(str, words)], check=True, timeout=300)
    with np.load(out) as again:
        assert set(again) == set(recorded())
        for name, before in recorded().items():
            assert np.allclose(again[name], before, rtol=1e-6, atol=1e-6), name

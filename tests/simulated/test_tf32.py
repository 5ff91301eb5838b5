"""Each precision reaches torch as the flags that decide whether CUDA computes float32 convolutions and products in TF32."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run

# Trains in each precision that the first word names, with the words of the command line, and prints the two flags that torch had
# inside every forward and backward pass.
PROGRAM = """
import sys
import torch
from torch import nn
from paceline.cli.main import main

seen = set()

def look(*_):
    seen.add((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))

nn.modules.module.register_module_forward_hook(look)

def backward(*given, own=torch.autograd.backward, **named):
    look()
    own(*given, **named)

torch.autograd.backward = backward
precisions, out, *words = sys.argv[1:]
for precision in precisions.split(","):
    seen.clear()
    named = ["--system.precision", precision] if precision else []
    code = main([*words, *named, "--output-dir", out + precision])
    print("flags", precision or "saved", code, sorted(seen))
"""
STEPS = ("--synthetic", "--max-steps", "2", "--global-batch-size", "8", "--optim.lr", "0.01", "--eval-every", "100")


@pytest.mark.nightly("runs on the simulated device")
@pytest.mark.parametrize("precisions", ["tf32", "fp32,bf16,fp16"])
def test_only_tf32_lets_cuda_round_float32(on_device: Run, tmp_path: Path, precisions: str) -> None:
    words = ["train", "classify-demo", "--system", "gpu", *STEPS]
    done, _ = on_device("-c", PROGRAM, precisions, f"{tmp_path}/", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for precision in precisions.split(","):
        flag = precision == "tf32"
        assert f"flags {precision} 0 {[(flag, flag)]}" in done.stdout, done.stdout + done.stderr
        assert f"   {precision}   " in done.stdout  # the plan
        assert f'"precision": "{precision}"' in (tmp_path / precision / "run.json").read_text()


@pytest.mark.nightly("three runs on the simulated device")
def test_a_resumed_run_keeps_tf32_and_exact_rejects_it(on_device: Run, tmp_path: Path) -> None:
    out = ("--output-dir", str(tmp_path / "run"))
    words = ["train", "classify-demo", "--system", "gpu", *STEPS]
    done, _ = on_device("-m", "paceline", *words, *out, "--system.precision", "tf32", "--max-steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    done, _ = on_device("-c", PROGRAM, "", str(tmp_path / "run"), *words)
    assert done.returncode == 0 and "flags saved 0 [(True, True)]" in done.stdout, done.stdout + done.stderr
    done, _ = on_device(
        "-m", "paceline", *words, "--output-dir", str(tmp_path / "other"), "--system.precision", "tf32", "--deterministic"
    )
    assert done.returncode == 2 and "--deterministic" in done.stderr and "tf32" in done.stderr
    assert not (tmp_path / "other").exists()

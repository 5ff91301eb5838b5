"""The CPU's number format: bf16 only where the processor says that it multiplies it."""

from __future__ import annotations

import pytest
import torch

from paceline.distributed.device.systems import detect_cpu

QUESTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


@pytest.mark.parametrize(
    ("avx512", "amx", "precision"), [(False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16")]
)
def test_bf16_is_chosen_where_the_cpu_has_it_in_hardware(monkeypatch, avx512, amx, precision):
    for name, answer in zip(QUESTIONS, (avx512, amx)):
        monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer, raising=False)
    assert detect_cpu().precision == precision


def test_a_torch_that_cannot_be_asked_computes_in_fp32(monkeypatch):
    for name in QUESTIONS:
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert detect_cpu().precision == "fp32"

"""Our Triton kernels of BatchNorm: beside float64 and torch by Triton's interpreter on a CPU; built for three generations of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_night import ONE_MORE
from hypothesis import settings
from triton_programs import interpreter_works, printed_by

pytest.importorskip("triton")
FOLDER = Path(__file__).parent
# Of a thread, of which a program has 256: 128 let an SM hold two programs, 80 three.
MAX_REGISTERS = {"image_gradients": 80, "normalize": 80, "partial_moments": 96, "partial_slopes": 128, "whole_slopes": 128}
MAX_OF_FEW_PROGRAMS = 168


BY_DAY = ("channels_far_from_0_and_without_spread", "other_layouts", "any_sizes")


@pytest.mark.skipif(not interpreter_works(), reason="this Triton's interpreter does not fit this numpy")
@pytest.mark.parametrize("cases", [BY_DAY, pytest.param((), marks=ONE_MORE)], ids=["some", "all"])
def test_they_are_right_to_the_last_digit_for_every_size_and_in_networks(cases: tuple[str, ...]) -> None:
    examples = settings.default.max_examples // 50
    found = printed_by(FOLDER / "interpreted_batch_norm.py", examples, *cases, TRITON_INTERPRET="1")
    assert len(found) == (len(cases) or 10) and "".join(found.values()) == ""


BY_NIGHT = [pytest.param(of, number, marks=ONE_MORE) for of in (80, 90, 100) for number in ("fp32", "fp16", "bf16")]


@pytest.mark.parametrize(("capability", "number"), BY_NIGHT)
def test_they_are_built_without_spilled_registers_and_round_as_they_should(tmp_path, capability, number) -> None:
    found = printed_by(FOLDER / "built_batch_norm.py", capability, number, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 9
    for name, facts in found.items():
        kernel = name.partition(" ")[0]
        assert facts["registers"] <= MAX_REGISTERS.get(kernel, MAX_OF_FEW_PROGRAMS), (name, facts)
        assert facts["spilled"] == 0, (name, facts)
        # A mask that is computed again is the output's to the bit only where no multiply-add is fused.
        assert not any(word.startswith(("fma", "mad")) for word in facts["words"]), (name, facts)
        # 16 bytes of images at once; what is narrower goes to the nearest number, where the interpreter cuts off.
        assert kernel.startswith("whole") or "ld.global.v4.b32" in facts["moves"], (name, facts)
        narrowed = {move for move in facts["moves"] if move.startswith("cvt") and move.endswith("16.f32")}
        narrowed |= {move for move in facts["moves"] if move.endswith("16x2.f32")}
        assert all(move.startswith("cvt.rn.") for move in narrowed), (name, facts)
        assert narrowed or number == "fp32" or not kernel.startswith(("normalize", "image")), (name, facts)

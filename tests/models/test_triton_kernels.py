"""Our kernels in Triton: bit by bit the torch forms, by Triton's interpreter on a CPU; built for three generations of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_night import ONE_MORE
from hypothesis import settings
from triton_programs import interpreter_works, printed_by

pytest.importorskip("triton")
FOLDER = Path(__file__).parent
# Of the 255 that a thread may have; above 128 an SM holds fewer than 16 warps, which `walk`, a warp or four a list, never asks for.
MAX_REGISTERS = {"objects": 80, "anchors": 96, "defaults": 96, "overlapped": 112}
MAX_OF_A_WALK = 192
# RoIAlign's, of programs of 256 threads: 128 let an SM hold two of them, 80 three, 64 four.
MAX_OF_ROI_ALIGN = {"by_map": 64, "pool": 64, "gather": 112}


BY_DAY = (
    "odd_numbers",
    "objects_that_share_a_best_anchor",
    "a_chain_and_an_overlap_of_the_threshold",
    "any_objects_and_anchors",
    "any_candidates",
)


@pytest.mark.skipif(not interpreter_works(), reason="this Triton's interpreter does not fit this numpy")
@pytest.mark.parametrize("cases", [BY_DAY, pytest.param((), marks=ONE_MORE)], ids=["some", "all"])
def test_their_answers_are_the_torch_forms_to_the_bit(cases: tuple[str, ...]) -> None:
    examples = settings.default.max_examples // 50
    found = printed_by(FOLDER / "interpreted_kernels.py", examples, *cases, TRITON_INTERPRET="1")
    assert len(found) == (len(cases) or 17) and "".join(found.values()) == ""


# `walk` of lists of 200 candidates, of 2,000 and of 12,000.
BY_NIGHT = [pytest.param(capability, (8, 64, 512), marks=ONE_MORE) for capability in (80, 90, 100)]


@pytest.mark.parametrize(("capability", "widths"), BY_NIGHT)
def test_they_are_built_without_spilled_registers_and_round_as_torch_does(tmp_path, capability, widths) -> None:
    found = printed_by(FOLDER / "built_kernels.py", capability, *widths, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 4 + len(widths)
    for name, facts in found.items():
        assert facts["registers"] <= MAX_REGISTERS.get(name, MAX_OF_A_WALK), (name, facts)
        assert facts["spilled"] == 0, (name, facts)
        # No fused multiply-add, and no quotient that is only nearly right; Triton 3.5 takes one below 2^-126 for 0.
        quotients = ([],) if name.startswith("walk") else (["div.rn.f32"], ["div.rn.ftz.f32"])
        assert facts["words"] in quotients, (name, facts)


OF_MAPS = [pytest.param(of, number, marks=ONE_MORE) for of in (80, 90, 100) for number in ("fp32", "fp16", "bf16")]


@pytest.mark.parametrize(("capability", "number"), OF_MAPS)
def test_roi_align_is_built_without_spilled_registers_and_reads_16_bytes_at_once(tmp_path, capability, number) -> None:
    found = printed_by(FOLDER / "built_roi_align.py", capability, number, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 5
    for name, facts in found.items():
        kernel = name.partition(" ")[0]
        assert facts["registers"] <= MAX_OF_ROI_ALIGN[kernel] and facts["spilled"] == 0, (name, facts)
        # Places are rounded as torchvision's: no fused multiply-add.
        assert not any(word.startswith(("fma", "mad")) for word in facts["words"]), (name, facts)
        assert kernel == "by_map" or {"ld.global.v4.b32", "st.global.v4.b32"} <= set(facts["moves"]), (name, facts)
        # What is narrower goes to the nearest number, where the interpreter cuts off.
        narrowed = {move for move in facts["moves"] if move.startswith("cvt") and move.endswith(("16.f32", "16x2.f32"))}
        assert all(move.startswith("cvt.rn.") for move in narrowed), (name, facts)
        assert bool(narrowed) == (number != "fp32" and kernel != "by_map"), (name, facts)

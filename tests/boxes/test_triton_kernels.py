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
MOST_REGISTERS = {"objects": 80, "anchors": 96, "defaults": 96, "overlapped": 112}
MOST_OF_A_WALK = 192


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
    assert len(found) == (len(cases) or 9) and "".join(found.values()) == ""


# `walk` of lists of 200 candidates, of 2,000 and of 12,000.
BY_NIGHT = [pytest.param(capability, (8, 64, 512), marks=ONE_MORE) for capability in (80, 90, 100)]


@pytest.mark.parametrize(("capability", "widths"), BY_NIGHT)
def test_they_are_built_without_spilled_registers_and_round_as_torch_does(tmp_path, capability, widths) -> None:
    found = printed_by(FOLDER / "built_kernels.py", capability, *widths, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 4 + len(widths)
    for name, facts in found.items():
        assert facts["registers"] <= MOST_REGISTERS.get(name, MOST_OF_A_WALK), (name, facts)
        assert facts["spilled"] == 0, (name, facts)
        # No fused multiply-add, and no quotient that is only nearly right; Triton 3.5 takes one below 2^-126 for 0.
        quotients = ([],) if name.startswith("walk") else (["div.rn.f32"], ["div.rn.ftz.f32"])
        assert facts["words"] in quotients, (name, facts)

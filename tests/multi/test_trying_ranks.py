"""Two ranks, of which one is short of memory: both take the cut that fits into both, and nobody waits for the other."""

from __future__ import annotations

import pytest
import torch
from messages import check_line, check_text
from small_run import said
from zygote import by_hand

from paceline.distributed.comm.interfaces import find_free_port

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


def ended_with(zygote, folder, *holds, evaluators=0):
    port = find_free_port()
    environs = [by_hand(rank, len(holds), port) for rank in range(len(holds))]
    return zygote.run(folder, environs, str(folder), str(evaluators), *map(str, holds), module="trying_rank")


@pytest.mark.parametrize("evaluators", [0, 1])
@pytest.mark.nightly("two live ranks; tests/training/test_memory_probe.py holds the rule by day")
def test_one_rank_that_is_short_makes_both_take_the_smaller_cut(zygote, tmp_path, evaluators):
    ended = ended_with(zygote, tmp_path, 8, 2, *[0] * evaluators, evaluators=evaluators)
    assert {rank.code for rank in ended} == {0}, said(ended)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    # Of four images a rank. BatchNorm over four takes two ranks' forwards of two together then.
    wanted = {"1 8": [2, 2, 1, 2], "4 0": [2, 2, 2, 2]}
    for name, cut in wanted.items():
        assert first[name]["cut"] == second[name]["cut"] == cut and first[name]["joined"] == {cut[2]}
        assert len(first[name]["said"]) == 1 and check_text(first[name]["said"][0], "4 images", "2")
        for weight, value in first[name]["weights"].items():
            assert torch.equal(value, second[name]["weights"][weight]), (name, weight)


@pytest.mark.nightly("two live ranks; tests/training/test_memory_probe.py holds the rule by day")
def test_where_no_smaller_cut_is_left_the_short_rank_says_so_and_both_end(zygote, tmp_path):
    ended = ended_with(zygote, tmp_path, 8, 0)
    assert [rank.code for rank in ended] == [3, 3], said(ended)
    assert check_line(ended[1].text, "memory", "1 image"), said(ended)
    assert "Traceback" not in said(ended) and "enough memory: " not in ended[0].text
    assert not list(tmp_path.glob("*.pt"))

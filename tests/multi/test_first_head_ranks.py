"""A last layer that begins fitted: the same on one and on two ranks, and fitted once, not again where a run goes on."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file, save_file
from small_run import Trainer, assert_same_end, losses, said

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]
FITTED = "the last layer is initialized by a linear probe"


def test_one_fit_for_all_ranks_and_none_after_it(trainer: Trainer, tmp_path):
    source = trainer.finished(tmp_path / "source", "--max-steps 1 --max-val-images 3")
    saved = load_file(source / "checkpoints" / "last" / "model.safetensors")
    save_file({name: value for name, value in saved.items() if ".fc." not in name}, tmp_path / "trunk.safetensors")
    flags = (
        f"--weights {tmp_path / 'trunk.safetensors'} --model.head-init linear-probe --model.norm frozen --optim.lr 0.0001"
    )
    flags += " --max-val-images 3 --log-every 1 --save-every 2 --eval-every 2"

    first = {}
    for ranks in (1, 2):
        ended = trainer.ended_well(trainer.train(tmp_path / f"on{ranks}", f"{flags} --max-steps 4"), ranks=ranks)
        assert said(ended).count(FITTED) == 1
        first[ranks] = losses(tmp_path / f"on{ranks}")[0]
    # A layer drawn anew has other weights, and a loss near ln K.
    drawn = trainer.finished(tmp_path / "drawn", f"{flags} --max-steps 1 --model.head-init random")
    assert first[2] == pytest.approx(first[1], rel=1e-4) and first[1] < losses(drawn)[0] - 0.05

    trainer.finished(tmp_path / "cut", f"{flags} --max-steps 2", ranks=2)
    again = trainer.ended_well(trainer.train(tmp_path / "cut", f"{flags} --max-steps 4"), ranks=2)
    assert FITTED not in said(again)
    assert_same_end(tmp_path / "cut", tmp_path / "on2")

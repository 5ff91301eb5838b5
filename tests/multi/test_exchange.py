"""How gradients travel between two real ranks: in buckets of any size to the same bits, compressed to others; variables arrive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from by_night import ONE_MORE
from small_run import losses, said, tensor_files

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

SHORT = "--max-steps 3 --eval-every 3 --max-val-images 6 --log-every 1"


@pytest.fixture(scope="module")
def plain(trainer, tmp_path_factory) -> Path:
    """A training on two ranks without a word about how gradients travel."""
    return trainer.finished(tmp_path_factory.mktemp("plain") / "run", SHORT, ranks=2)


def test_the_size_of_buckets_changes_no_bit_on_two_ranks(trainer, plain, tmp_path):
    small = trainer.finished(tmp_path / "small", f"{SHORT} --system.ddp-bucket-mib 0.01", ranks=2)
    assert tensor_files(small) == tensor_files(plain)


@pytest.mark.parametrize("number", ["bf16", pytest.param("fp16", marks=ONE_MORE)])
def test_compressed_gradients_train_to_other_bits_and_nearly_the_same_losses(trainer, plain, tmp_path, number):
    run = trainer.finished(tmp_path / number, f"{SHORT} --system.grad-compression {number}", ranks=2)
    assert tensor_files(run) != tensor_files(plain)
    ours, theirs = losses(run), losses(plain)
    assert ours[0] == theirs[0]  # before any gradient
    assert ours[1] == pytest.approx(theirs[1], rel=0.02) and ours[1] != theirs[1]
    assert json.loads((run / "run.json").read_text())["system"]["grad_compression"] == number


@pytest.mark.nightly("two more live ranks")
def test_one_rank_has_nothing_to_compress(trainer, tmp_path):
    runs = [
        trainer.finished(tmp_path / name, f"{SHORT} {flags}")
        for name, flags in (("a", ""), ("b", "--system.grad-compression bf16"))
    ]
    assert tensor_files(runs[0]) == tensor_files(runs[1])


@pytest.mark.nightly("two more live ranks")
def test_variables_of_the_system_are_set_in_every_rank_before_groups_are_made(trainer, tmp_path):
    """gloo looks for an interface that is not there, and says so: the variable was set in time."""
    job = trainer.run(trainer.train(tmp_path / "run", f"{SHORT} --system.env GLOO_SOCKET_IFNAME=nope0"), ranks=2)
    assert all(rank.code not in (0, None) for rank in job), said(job)
    assert "nope0" in said(job)


@pytest.mark.nightly("two more live ranks")
def test_two_ranks_meet_over_the_interface_that_is_named(trainer, plain, tmp_path):
    assert tensor_files(trainer.finished(tmp_path / "run", f"{SHORT} --system.interface lo", ranks=2)) == tensor_files(
        plain
    )


def test_compression_is_refused_by_exact_on_all_ranks_in_one_line(trainer, tmp_path):
    ended = trainer.refused(tmp_path / "run", f"{SHORT} --system.grad-compression bf16 --deterministic")
    assert said(ended).count("--system.grad-compression bf16") == 1

"""The number of compute threads: the flag, then OMP_NUM_THREADS, then a share of the cores; what is not obeyed is said."""

from __future__ import annotations

import json

import pytest
import torch
from messages import check_text
from tiny_runs import make_photos, of_its_own, train

from paceline._utils.platform import count_cpus
from paceline.distributed.device.setup import choose_compute_threads


@pytest.mark.parametrize(
    ("asked", "environ", "wanted", "said"),
    [
        (0, {}, 8, ""),
        (0, {"OMP_NUM_THREADS": "3"}, 3, ""),
        (0, {"OMP_NUM_THREADS": " 16,2 "}, 16, ""),  # a list for nested levels; more than the share is a wish too
        (5, {}, 5, ""),
        (5, {"OMP_NUM_THREADS": "5"}, 5, ""),
        (5, {"OMP_NUM_THREADS": "3"}, 5, "--system.intra-op-threads 5"),
        (0, {"OMP_NUM_THREADS": "many"}, 8, "'many'"),
        (0, {"OMP_NUM_THREADS": "0"}, 8, "'0'"),
        (0, {"OMP_NUM_THREADS": "10000000"}, 8, "number of"),
        (0, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 8, "torchrun"),
        (0, {"OMP_NUM_THREADS": "1"}, 1, "unset"),
        (0, {"OMP_NUM_THREADS": "1,8"}, 1, "unset it, or set --system.intra-op-threads 8"),
        (1, {"OMP_NUM_THREADS": "1"}, 1, ""),
        (0, {"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "none"}, 2, ""),
    ],
)
def test_omp_num_threads_is_obeyed_or_its_override_is_said(asked, environ, wanted, said) -> None:
    threads, why = choose_compute_threads(asked, 8, 2, environ)
    assert threads == wanted
    assert check_text(why, said) and bool(said) == bool(why)


def test_one_thread_asked_for_by_torchrun_s_only_worker_is_a_wish() -> None:
    threads, why = choose_compute_threads(0, 8, 1, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"})
    assert threads == 1 and "unset it" in why
    assert choose_compute_threads(0, 1, 1, {"OMP_NUM_THREADS": "1"}) == (1, "")


def test_a_run_takes_its_threads_from_omp_num_threads(tmp_path, capsys, monkeypatch, tmp_path_factory) -> None:
    of_its_own(monkeypatch, tmp_path_factory)
    photos, before = make_photos(tmp_path / "set"), torch.get_num_threads()
    try:
        for number in (1, 3):
            monkeypatch.setenv("OMP_NUM_THREADS", str(number))
            out = tmp_path / f"run-{number}"
            said = train(capsys, photos, out, steps=1)
            assert said.code == 0 and said.out.count("OMP_NUM_THREADS=1 is set") == (number == 1 < count_cpus())
            assert torch.get_num_threads() == number
            assert json.loads((out / "run.json").read_text())["threads"]["intra_op"] == number
    finally:
        torch.set_num_threads(before)

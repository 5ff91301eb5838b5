"""A GPU with too little memory: a run takes the next smaller cut of its batch, or ends with a sentence.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from paceline._utils.errors import ResourceError
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.distributed.device.systems import detect_gpu
from paceline.training.eval_history import TrainResult
from paceline.training.logging.events import read_events
from paceline.training.request import Request
from paceline.training.trainer import run_training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GIB = 2**30


@contextmanager
def memory_left(gib: float) -> Iterator[int]:
    """Inside, this process may take so much more of the GPU; -> how much that is in all, bytes."""
    torch.cuda.empty_cache()
    most = torch.cuda.memory_reserved() + int(gib * GIB)
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield most
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def train(out: Path, *, bn_batch_size: int) -> TrainResult:
    """Two steps of ResNet-50 on 256 made-up photos, which need 8 to 14 GiB in one forward."""
    changes = {"global_batch_size": 256, "optim.lr": 0.1, "bn_batch_size": bn_batch_size}
    request = Request(
        name="resnet50",
        recipe=override(RECIPES["resnet50"](), changes),
        system_name="gpu",
        system=detect_gpu(),
        options=RunOptions(output_dir=str(out), max_steps=2, synthetic=True),
        given=frozenset({"system"}),
    )
    return run_training(request)


def test_a_step_that_does_not_fit_takes_the_next_smaller_cut(tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    with memory_left(6) as most:
        ending = train(tmp_path / "run", bn_batch_size=32)
    (tried,) = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "warm_up"]
    assert (ending.status, ending.step) == ("stopped_early", 2)
    assert tried["micro_batch_size"] in (32, 64, 128)
    assert 0 < tried["peak_memory"] <= most


def test_a_step_that_no_cut_lets_fit_is_refused_in_words(tmp_path: Path) -> None:
    with memory_left(2), pytest.raises(ResourceError, match="memory"):
        train(tmp_path / "run", bn_batch_size=256)

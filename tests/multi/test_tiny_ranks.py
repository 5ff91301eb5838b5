"""The tiny recipes as they are shipped, on 1, 2 and 4 ranks: twenty steps end with the same gradients and weights.

Two statements. In float64 (tiny_rank.py) the cuts differ by the order of sums alone: measured 1e-14 of a tensor's largest number
after twenty steps, held to 1e-9, while one float32 rounding in the way makes 1e-7. In float32, with a rank that only evaluates
beside those that train, not one bit differs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
from small_run import Trainer, events, losses, tensor_files
from torch import Tensor

from paceline.data.shapes.render import render_shapes

pytestmark = [pytest.mark.multi, pytest.mark.nightly("twenty steps of every tiny recipe on 1, 2 and 4 ranks")]

STEPS, TOLERANCE = 20, 1e-9
RECIPES = ("classify-demo", "ssd-demo", "maskrcnn-demo")
FLAGS = (
    "--system cpu --system.precision fp32 --system.intra-op-threads 1 --system.num-workers 1 --log-every 1 "
    f"--max-steps {STEPS} --eval-every {STEPS} --max-val-images 4"
)


@pytest.fixture(scope="module")
def doubles(zygote, tmp_path_factory) -> Trainer:
    """Starts ranks of tiny_rank.py."""
    return Trainer(zygote, tmp_path_factory.mktemp("double"), "tiny_rank")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Rendered photos of both kinds."""
    folder = tmp_path_factory.mktemp("tiny-photos")
    render_shapes("classes", folder / "classes", train=64, val=16, side=128, processes=1)
    render_shapes("boxes", folder / "boxes", train=64, val=16, side=192, processes=1)
    return folder


def trained(trainer: Trainer, photos: Path, recipe: str, ranks: int, more: str = "") -> Path:
    """A training on so many ranks; -> its folder."""
    run = trainer.folder / f"{recipe}-{ranks}{more.replace(' ', '')}"
    if not run.exists():
        data = photos / ("classes" if recipe.startswith("classify") else "boxes")
        words = ["train", recipe, "--data", str(data), "--output-dir", str(run), *f"{FLAGS} {more}".split()]
        trainer.ended_well(words, ranks=ranks, deadline=900)
    return run


def tensors(run: Path) -> dict[str, Tensor]:
    """Weights, running statistics, and what the optimizer keeps of the gradients."""
    files = tensor_files(run)
    both = (safetensors.torch.load(files[f"{name}.safetensors"]) for name in ("model", "optimizer"))
    return {name: tensor for file in both for name, tensor in file.items() if tensor.is_floating_point()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_twenty_steps_end_with_the_same_gradients_and_weights(doubles, photos, recipe):
    alone = trained(doubles, photos, recipe, 1)
    expected = tensors(alone)
    for ranks in (2, 4):
        run = trained(doubles, photos, recipe, ranks)
        assert len(losses(run)) == STEPS and losses(run) == pytest.approx(losses(alone), rel=TOLERANCE), ranks
        got = tensors(run)
        assert got.keys() == expected.keys() and len(got) > 50
        for name, tensor in expected.items():
            assert tensor.dtype.itemsize == 8 or name == "steps"
            largest = float(tensor.abs().max())
            assert float((got[name] - tensor).abs().max()) <= TOLERANCE * largest, (ranks, name)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_rank_that_only_evaluates_changes_not_one_bit(trainer, photos, recipe):
    alone, run = trained(trainer, photos, recipe, 2), trained(trainer, photos, recipe, 3, "--dedicated-eval-ranks 1")
    assert tensor_files(run) == tensor_files(alone)
    assert events(run) == events(alone)

"""Three steps of a ResNet beside what GluonCV's network and MXNet's own SGD and LARS computed, in float64: losses, rates, statistics.

The original's numbers are recorded (scripts/certificates/resnet50.py --record); weights and pictures are drawn again here. Fifty
steps of ResNet-50 on photos, in float32 too: results/certificate-resnet50.
"""

from __future__ import annotations

import importlib
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "gluoncv_resnet.npz"
# Relative. MXNet's SGD keeps numbers in float32 that float32 has exactly here; its LARS keeps ratios and constants in it.
SAME = {"sgd": 1e-13, "lars": 1e-9}


@pytest.fixture
def systems(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "certificates"))
    return importlib.import_module("resnet50_systems")


@pytest.fixture
def as_mxnet(systems):
    """kind -> the context in which our norms are rounded as MXNet's CPU kernel rounds them."""
    in_order = importlib.import_module("resnet50_changes").norms_summed_in_order
    return lambda kind: in_order() if kind == "lars" else nullcontext()


def trained(systems, as_mxnet, kind: str, *, late: int = 0, **fields: object):
    start, recipe = systems.tiny(kind)
    with as_mxnet(kind):
        losses, model = systems.ours(start, systems.changed(recipe, **fields), "float64", late=late)
    return [row["loss"] for row in losses], model, start


def original_s(systems, start, recipe, tmp_path: Path) -> np.ndarray:
    python = os.environ.get("PACELINE_GLUONCV_PYTHON")
    if python is None:
        pytest.skip(
            "PACELINE_GLUONCV_PYTHON names no interpreter with GluonCV: tests/oracle/recorded/README.md says how to make one"
        )
    return systems.original(start, recipe, Path(python), tmp_path, "float64")["losses"]


def apart(losses: list[float], wanted: np.ndarray) -> float:
    assert len(losses) == len(wanted) == 3
    return float(np.abs(np.array(losses) / wanted - 1).max())


@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_three_steps_are_the_originals(systems, as_mxnet, kind):
    with np.load(RECORDED) as file:
        found = {name.removeprefix(f"{kind}_"): file[name] for name in file.files if name.startswith(kind)}
    losses, model, start = trained(systems, as_mxnet, kind)
    assert apart(losses, found["losses"]) < SAME[kind]
    ends = systems.end_differences(model, found, start)
    assert max(ends["running_mean"], ends["running_var of a step"], ends["norm"]) < 2e-6, ends
    assert ends["running_var"] > 0.01, "the two variances differ at 4 values of a channel"


NIGHT = pytest.mark.nightly("two errors show by day that the comparison can fail")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("sgd", {"optim__momentum_style": "torch"}),
        ("lars", {"optim__momentum_style": "mxnet"}),
        pytest.param("sgd", {"late": 1}, marks=NIGHT),
        pytest.param("sgd", {"model__label_smoothing_style": "mxnet"}, marks=NIGHT),
        pytest.param("sgd", {"optim__no_decay": "none"}, marks=NIGHT),
        pytest.param("lars", {"optim__no_decay": "none"}, marks=NIGHT),
        pytest.param("lars", {"optim__lars_trust_coefficient": 0.00101}, marks=NIGHT),
        pytest.param("lars", {"model__bn_eps": 2e-5}, marks=NIGHT),
    ],
)
def test_an_error_shows_in_three_steps(systems, as_mxnet, kind, changes):
    with np.load(RECORDED) as file:
        wanted = file[f"{kind}_losses"]
    losses, *_ = trained(systems, as_mxnet, kind, **changes)
    assert apart(losses, wanted) > 100 * SAME[kind]


@pytest.mark.nightly("needs an interpreter with GluonCV, and trains fifty layers")
@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_fifty_layers_from_drawn_weights(systems, as_mxnet, kind, seed, tmp_path):
    recipe = systems.recipe_of(kind, 3, 8, 64, systems.LR[kind])
    recipe = systems.changed(recipe, seed=seed % 2**32, model__zero_init_residual=True)
    random = np.random.RandomState(recipe.seed)
    images = random.randint(0, 256, (3, 8, 64, 64, 3)).astype(np.uint8)
    start = systems.Start(systems.first_weights(recipe), images, random.randint(0, systems.CLASSES, (3, 8)))
    wanted = original_s(systems, start, recipe, tmp_path)
    with as_mxnet(kind):
        losses, _ = systems.ours(start, recipe, "float64")
    assert apart([row["loss"] for row in losses], wanted) < 100 * SAME[kind]

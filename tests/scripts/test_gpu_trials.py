"""The trials of the GPU campaign: their changes only round differently, and the page has their predictions."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def scripts(monkeypatch):
    """Imports one of the scripts, which see each other as they do when they are run."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "gpu"))
    return importlib.import_module


def bench_of(scripts, network: str, tmp_path: Path) -> Any:
    item = scripts("item").Item("it", tmp_path / "results", tmp_path, tmp_path, None, tiny=True, cpu=True)
    return scripts("steps").BENCHES[network](item)


def gradients(bench: Any) -> tuple[float, torch.Tensor, Any]:
    """The loss and all gradients of a benchmark's model in float64, and the model."""
    *_, (_, scene) = bench.scenes(CPU)
    model = bench.trained(scene, CPU).double()
    found = model(scene.batch)
    loss = found["loss"] if "loss" in found else (found["sums"] / found["counts"].clamp(min=1)).sum()
    loss.backward()
    return float(loss.detach()), torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]), model


def test_products_have_the_loss_and_the_gradients_of_convolutions(scripts, tmp_path) -> None:
    trials, bench = scripts("trials"), bench_of(scripts, "resnet", tmp_path)
    bench = replace(bench, depth=50)
    loss, wanted, _ = gradients(bench)
    changed, found, model = gradients(trials.changed(bench, trials.use_products))
    assert sum(type(module) is trials.ProductConv2d for module in model.modules()) == 33  # 2 of 16 units, and a shortcut
    assert changed == pytest.approx(loss, rel=1e-9) and (found - wanted).norm() < 1e-7 * wanted.norm()


@pytest.mark.parametrize("network", ["ssd", "maskrcnn"])
def test_parts_of_a_network_are_compiled(scripts, network, tmp_path, monkeypatch) -> None:
    trials, bench, compiled = scripts("trials"), bench_of(scripts, network, tmp_path), []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **_: compiled.append(type(module).__name__))
    *_, (_, scene) = bench.scenes(CPU)
    for trial in trials.TRIALS[network]:
        trials.changed(bench, trial.change).trained(scene, CPU)
    wanted = {"ssd": ["SSD"], "maskrcnn": ["BackboneWithFPN", "BackboneWithFPN", "RPNHead"]}
    assert compiled == wanted[network]


def test_settings_of_the_compiler_reach_the_training_step(scripts, tmp_path, monkeypatch) -> None:
    trials, bench, settings = scripts("trials"), bench_of(scripts, "resnet", tmp_path), []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **more: settings.append(more))
    *_, (_, scene) = bench.scenes(CPU)
    menu = trials.contenders(trials.TRIALS["resnet"], bench, "fp32", scene, CPU)
    for trial in trials.TRIALS["resnet"]:
        menu[trial.name].make()
    assert [{**{"dynamic": False}, **more} for more in settings] == settings
    assert [more for more in settings if "options" in more] and [more for more in settings if "mode" in more]
    assert len(settings) == sum(trial.compile for trial in trials.TRIALS["resnet"])


def test_each_trial_has_its_prediction_in_the_page_and_a_form_to_compare_with(scripts) -> None:
    trials, steps, page = scripts("trials"), scripts("steps"), (ROOT / "results" / "gpu" / "README.md").read_text()
    for network, several in trials.TRIALS.items():
        for trial in several:
            item = "autotune" if trial.alone else f"all-{network}"
            assert f"| `{trial.name}` | `{item}` | {trial.predicted:,} ({trial.low:,} to {trial.high:,}) |" in page, trial
            assert trial.low <= trial.predicted <= trial.high and trial.plain in steps.FORMS[network]
            assert len(trial.name) > len(trial.plain)
    names = {name for network, names in steps.FILL.values() for name in names}
    several = [*trials.TRIALS["resnet"], *trials.TRIALS["ssd"]]  # Mask R-CNN's parts compile in its own process
    assert names >= {trial.name for trial in several if trial.compiled and not trial.alone}

"""Whether cores feed an accelerator: the measured rate, what it is compared with, and the decoder that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from messages import check_text
from run_files import cut_after, facts_of, tensor_files
from tiny_runs import TINY, command, refused

from paceline._utils.errors import RecipeError
from paceline.config.recipes import RECIPES
from paceline.config.run import RunRecord
from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank
from paceline.training import input_rate
from paceline.training.input_rate import InputRate, choose_decoder, measure_input_rate, resolve_decoder

CPU, CUDA = InputRank(0, 1, torch.device("cpu"), 2), InputRank(0, 1, torch.device("cuda", 0), 2)
SHORT, ENOUGH, UNKNOWN = InputRate(100.0, 2, 6000.0), InputRate(4000.0, 2, 6000.0), InputRate(100.0, 2, 0.0)


def recipe(name: str = "resnet50", **changes):
    made = RECIPES[name]()
    return replace(made, input=replace(made.input, **{"decoder": "auto", **changes}))


@pytest.fixture
def task(class_photos):
    made = RECIPES["resnet50"]()
    return WORKLOADS["classification"].open(made, Manifest.load(prepare_if_needed(class_photos)))


def test_one_cores_rate_is_measured_once_and_stands_beside_the_published_step(task, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(input_rate, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert measure_input_rate(task, CPU, 1) is None
    found = measure_input_rate(task, CUDA, 1)
    assert found is not None and found.one_core > 0 and found.cores == 2 and found.step > 1000
    assert check_text(found.format_line(), f"{found.one_core:,.0f} images/s", "2")
    assert found.format_line().endswith(f" {found.step:,.0f} images/s (published)")
    monkeypatch.setattr(input_rate, "limit_to_one_core", lambda task: pytest.fail("it was measured again"))
    assert measure_input_rate(task, CUDA, 1) == found
    monkeypatch.setattr(input_rate, "get_device_name", lambda device: "a card that nobody measured")
    other = measure_input_rate(task, CUDA, 1)
    assert other is not None and other.step == 0 and not other.short and "published" not in other.format_line()


def test_another_size_has_no_published_step(task, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(input_rate, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(input_rate, "limit_to_one_core", lambda task: 1000.0)
    smaller = replace(task.recipe, input=replace(task.recipe.input, image_size=64))
    found = measure_input_rate(WORKLOADS["classification"].open(smaller, task.data.manifest), CUDA, 1)
    assert found == InputRate(1000.0, 2, 0.0)


def test_auto_decodes_on_the_device_only_where_the_cores_are_short_and_it_can(monkeypatch):
    asked = []
    monkeypatch.setattr(input_rate, "get_gpu_decoder", asked.append)
    assert choose_decoder(recipe(), CUDA, SHORT) == "nvjpeg" and asked == [CUDA.device]
    assert [choose_decoder(recipe(), CUDA, one) for one in (ENOUGH, UNKNOWN, None)] == ["simplejpeg"] * 3
    assert choose_decoder(recipe("ssd"), CUDA, SHORT) == "simplejpeg"  # its colors change on a CPU
    assert choose_decoder(recipe("ssd", color_jitter="none"), CUDA, SHORT) == "nvjpeg"

    def none(device):
        raise RecipeError("decodes nothing")

    monkeypatch.setattr(input_rate, "get_gpu_decoder", none)
    assert choose_decoder(recipe(), CUDA, SHORT) == "simplejpeg"


@pytest.mark.parametrize(
    ("name", "system", "on_cpu", "saved", "expected"),
    [
        ("resnet50", "cuda", False, None, "auto"),  # the rates decide
        ("resnet50", "cuda", True, None, "simplejpeg"),
        ("resnet50", "cpu", False, None, "simplejpeg"),
        ("ssd", "cuda", False, None, "simplejpeg"),
        ("resnet50", "cuda", False, "nvjpeg", "nvjpeg"),
        ("resnet50", "cuda", False, "simplejpeg", "simplejpeg"),
    ],
)
def test_what_needs_no_rates_is_settled_first(name, system, on_cpu, saved, expected):
    facts = saved and RunRecord(recipe={"input": {"decoder": saved}})
    assert resolve_decoder(recipe(name), System(system), on_cpu, facts).input.decoder == expected
    named = recipe(name, decoder="pillow")
    assert resolve_decoder(named, System(system), on_cpu, facts) is named


def test_the_remedy_names_auto_only_where_it_helps():
    assert "--input.decoder auto" in InputRate.remedy(recipe()) and "pack" in InputRate.remedy(recipe())
    assert "--input.decoder" not in InputRate.remedy(recipe("ssd")) and "pack" in InputRate.remedy(recipe("ssd"))


@pytest.mark.usefixtures("no_report")
def test_a_run_keeps_what_auto_was_and_resumes_by_the_same_words(class_photos, tmp_path, capsys):
    run, words = (
        tmp_path / "run",
        ["train", "classify-demo", "--data", class_photos, *TINY, "--max-steps", 4, "--save-every", 2],
    )
    words += ["--input.decoder", "auto"]
    assert command(capsys, *words, "--output-dir", run).code == 0
    assert facts_of(run)["recipe"]["input"]["decoder"] == "simplejpeg" and "input_rate" not in facts_of(run)
    whole = tensor_files(run)
    cut_after(run, 2)
    assert command(capsys, *words, "--output-dir", run).code == 0
    assert tensor_files(run) == whole
    cut_after(run, 2)
    refused(command(capsys, *words[:-1], "pillow", "--output-dir", run), "decoder", lines=5)


@pytest.mark.usefixtures("no_report")
def test_a_run_whose_number_of_workers_changes_in_the_middle_has_equal_weights(class_photos, tmp_path, capsys):
    words = [
        "train",
        "classify-demo",
        "--data",
        class_photos,
        *TINY,
        "--max-steps",
        6,
        "--save-every",
        2,
        "--keep-checkpoints",
        9,
    ]
    runs = {}
    for workers in (1, 2, 5, 16):
        runs[workers] = tmp_path / str(workers)
        said = command(capsys, *words, "--system.num-workers", workers, "--output-dir", runs[workers])
        assert said.code == 0 and "by threads" not in said.out
    weights = tensor_files(runs[1])
    assert all(tensor_files(run) == weights for run in runs.values())
    for step, workers in ((4, 3), (2, 7)):
        cut_after(runs[16], step)
        assert command(capsys, *words, "--system.num-workers", workers, "--output-dir", runs[16]).code == 0
        assert tensor_files(runs[16]) == weights

"""The command line on the simulated CUDA device: full-size recipes that are captured, tiny ones with values, devices that fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import device
import pytest
import torch
from conftest import Run
from messages import check_line
from safetensors.torch import load_file

from paceline.training.logging.events import read_events

# Triton's kernels have no values there.
TINY = [
    "--system.kernels", "torch",
    "--max-steps", "6", "--global-batch-size", "8", "--optim.lr", "0.01", "--save-every", "2", "--eval-every", "100", "--seed", "3",
    "--max-val-images", "8",
]  # fmt: skip
LAST = "checkpoints/step-000006/model.safetensors"
NIGHT = pytest.mark.nightly("whole runs on the simulated device")


@NIGHT
@pytest.mark.parametrize("recipe", ["resnet50", "ssd", "maskrcnn", "maskrcnn-nvidia-96"])
def test_a_full_size_recipe_is_captured_and_replayed(on_device, tmp_path: Path, recipe: str) -> None:
    words = [
        "train",
        recipe,
        "--system",
        "gpu",
        "--system.cuda-graph",
        "on",
        "--synthetic",
        "--max-steps",
        "3",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    done, counted = on_device("-m", "paceline", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 step captured" in done.stdout and counted["broken rules"] == []
    assert counted["counts"]["graph launches"] >= 3
    assert not [wait for wait in counted["waits"] if " run_step" in wait]


@NIGHT
@pytest.mark.parametrize("recipe", ["classify-demo", "ssd-demo", "maskrcnn-demo"])
def test_a_run_that_is_replayed_stopped_and_resumed_has_the_bits_of_one_that_is_sent(
    on_device, tmp_path: Path, recipe: str
) -> None:
    # Mask R-CNN has no deterministic form on a GPU; the device's values come from one thread of a CPU all the same.
    exact = [] if recipe.startswith("maskrcnn") else ["--deterministic"]

    def weights(name: str, *more: str) -> dict[str, torch.Tensor]:
        words = [
            "train",
            recipe,
            "--system",
            "gpu",
            *exact,
            "--output-dir",
            str(tmp_path / name),
            *TINY,
            "--max-steps",
            "4",
            *more,
        ]
        done, counted = on_device("-m", "paceline", *words, SIMULATED_VALUES="1")
        assert done.returncode == 0 and counted["broken rules"] == [], done.stdout + done.stderr
        (last,) = (tmp_path / name).glob("checkpoints/step-00000" + ("2" if "2" in more else "4") + "/model.safetensors")
        return load_file(last)

    sent = weights("sent")
    weights("replayed", "--system.cuda-graph", "on", "--max-steps", "2")
    resumed = weights("replayed", "--system.cuda-graph", "on")
    for name, tensor in sent.items():
        assert torch.equal(resumed[name], tensor), name


@NIGHT
@pytest.mark.parametrize("failure", ["launch 1500", "copy 430"])
def test_a_device_that_fails_ends_the_run_and_leaves_its_checkpoints(on_device, tmp_path: Path, failure: str) -> None:
    words = ["-m", "paceline", "train", "classify-demo", "--system", "gpu", "--output-dir", str(tmp_path / "run"), *TINY]
    words += ["--system.cuda-graph", "off"]  # each kernel is a launch
    done, _ = on_device(*words, SIMULATED_VALUES="1", SIMULATED_FAIL=failure)
    assert done.returncode == 3 and "CUDA error" in done.stdout + done.stderr
    done, _ = on_device(*words, SIMULATED_VALUES="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(read_events(tmp_path / "run" / "events.jsonl"))[-1]["event"] == "end"


def trained(on_device: Run, out: Path, ranks: int, **settings: str) -> subprocess.CompletedProcess[str]:
    words = ["--bn-batch-size", "16", "--global-batch-size", "16", "--system.precision", "fp32", "--output-dir", str(out)]
    own = ["-m", "paceline", "train", "classify-demo", "--system", "gpu", *TINY, *words]
    started = device.torchrun(ranks, *own) if ranks > 1 else own
    return on_device(*started, SIMULATED_VALUES="1", SIMULATED_DEVICES=str(ranks), **settings)[0]


@NIGHT
def test_two_ranks_whose_statistics_are_joined_train_what_one_does_even_after_a_collective_failed(
    on_device: Run, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert trained(on_device, one, 1).returncode == 0
    failed = trained(on_device, two, 2, SIMULATED_FAIL="collective 150")
    assert failed.returncode and ") failed:" in failed.stdout + failed.stderr
    done = trained(on_device, two, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    theirs = load_file(two / LAST)
    for name, tensor in load_file(one / LAST).items():
        torch.testing.assert_close(theirs[name], tensor, rtol=2e-3, atol=2e-4, msg=name)


@NIGHT
def test_too_little_memory_cuts_the_batch_and_not_the_result(on_device, tmp_path: Path) -> None:
    words = [
        "train",
        "resnet50",
        "--system",
        "gpu",
        "--synthetic",
        "--max-steps",
        "2",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    done, _ = on_device("-m", "paceline", *words, "--system.micro-batch-size", "512", SIMULATED_GIB="14")
    assert done.returncode == 0, done.stdout + done.stderr
    check_line(done.stdout, 512, 256)


@NIGHT
def test_qualify_measures_a_device_and_judges_it_by_its_kind(on_device, tmp_path: Path) -> None:
    """Its name is an H200's, so published rows are found; what it computes is nothing, so no verdict means anything."""
    words = [
        "check-performance",
        "--system",
        "gpu",
        "--minutes",
        "0.02",
        "--check-dir",
        str(tmp_path),
        "--output-dir",
        str(tmp_path / "out"),
    ]
    done, counted = on_device("-m", "paceline", *words)
    assert done.returncode in (0, 1) and counted["broken rules"] == [], done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "qualify.json").read_text())
    by_name = {row["name"]: row for row in found["rows"]}
    assert by_name["ResNet-50, step"]["expected"] == 7950 and by_name["SSD, step"]["verdict"] == "not rated"
    assert by_name["matrix multiplication, slowest rank"]["expected"] == 790 and len(by_name) == 13


@NIGHT
def test_synthetic_batches_need_no_decoder_to_be_chosen(on_device, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        "classify-demo",
        "--system",
        "gpu",
        "--synthetic",
        "--max-steps",
        "1",
        "--eval-every",
        "100",
        "--output-dir",
        str(run),
    ]
    done, _ = on_device("-m", "paceline", "train", *words, "--input.decoder", "auto")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((run / "run.json").read_text())
    assert facts["recipe"]["input"]["decoder"] == "simplejpeg" and "input_rate" not in facts

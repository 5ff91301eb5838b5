"""Which torch computes on a V100: the pin, the file of versions that holds it, the systems that need it, and what is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from messages import check_lines, check_text, raises

from paceline._utils.errors import RecipeError
from paceline.config.published import PAIRINGS, system_for
from paceline.distributed.device import setup
from paceline.distributed.device.accelerators import V100, explain_unsupported, find_torch_pin, supports_accelerator
from paceline.distributed.device.systems import DETECTED, SYSTEMS
from paceline.launch.doctor.local_checks import _accelerators, _network
from paceline.training.plan_text import format_torch

ROOT = Path(__file__).parents[2]
# torch.cuda.get_arch_list() of PyPI's wheels: 2.9.0 and 2.15.0 (results/images/v100.txt).
OF_2_9 = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OF_2_15 = OF_2_9[1:]
HAVE_V100 = {"dgx1", "dgx1-16gb", "dgx2", "dss8440", "c4140", "p3dn", "v100x8"}


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((7, 0), OF_2_9, True),
        ((7, 0), OF_2_15, False),
        ((7, 5), OF_2_15, True),
        ((8, 9), OF_2_15, True),  # sm_86 runs on it
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_86"], False),  # another major version
        ((9, 0), ["sm_86", "compute_80"], True),  # the driver compiles it
        ((7, 0), ["compute_80"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 1), ["sm_120"], True),
        ((10, 3), ["sm_100a"], False),
        ((9, 0), ["gfx942"], False),
    ],
)
def test_code_runs_on_its_own_major_version_and_newer_minor_ones(capability, architectures, runs):
    assert supports_accelerator(capability, architectures) == runs
    assert (explain_unsupported("cuda:0", capability, "2.15.0", architectures) == "") == runs


def test_a_v100_is_told_which_torch_to_install():
    told = explain_unsupported("cuda:1", (7, 0), "2.15.0+cu132", OF_2_15)
    assert check_text(told, "cuda:1", "sm_70", "torch 2.15.0+cu132", "sm_75")
    assert told.endswith(": pip install torch==2.9.1 torchvision==0.24.1")
    assert "2.9.1" not in explain_unsupported("cuda:0", (6, 1), "2.15.0", OF_2_15)
    assert explain_unsupported("cuda:0", (7, 0), "2.15.0", []) == ""  # a torch without CUDA


def test_every_system_with_a_v100_has_the_pin_and_no_other():
    pinned = {name for name in SYSTEMS if name not in DETECTED and find_torch_pin(SYSTEMS[name]().device_name)}
    assert pinned == HAVE_V100
    assert find_torch_pin("Tesla V100-SXM2-32GB") is V100 and find_torch_pin("") is None


def test_the_file_of_versions_holds_the_pin_and_libraries_of_cuda_12_alone():
    lines = (ROOT / V100.constraints).read_text().splitlines()
    pins = [line.partition(" ;")[0] for line in lines if not line.startswith("#")]
    assert {f"torch=={V100.torch}", f"torchvision=={V100.torchvision}"} <= set(pins)
    # cuDNN after 9.10 has no code for a V100 either.
    assert "nvidia-cudnn-cu12==9.10.2.21" in pins
    libraries = [pin for pin in pins if pin.startswith("nvidia-")]
    assert len(libraries) > 10 and all(re.match(r"nvidia-[\w-]+-cu12==", pin) for pin in libraries)
    assert f"-P torch=={V100.torch} " in lines[1] and lines[1].endswith(f"-o {V100.constraints}")


def test_a_v100_trains_in_fp16_with_the_published_loss_scale():
    found = [pairing for pairing in PAIRINGS if pairing.system in HAVE_V100]
    assert {pairing.workload for pairing in found} == {"detection", "instance-segmentation"}
    for pairing in found:
        system = system_for(pairing.recipe, pairing.system, SYSTEMS[pairing.system]())
        # SSD's MXNet program multiplies by 128; GluonCV's trainer finds its scale.
        scale = 128 if pairing.workload == "detection" else 0
        assert (system.precision, system.loss_scale) == ("fp16", scale), pairing
    assert {SYSTEMS[name]().precision for name in HAVE_V100} == {"fp16"}


def test_a_plan_says_in_one_line_which_torch_its_system_needs():
    for name in set(SYSTEMS) - set(DETECTED):
        wanted = [f"torch 2.9.1 ({V100.constraints}): {V100.why}"] if name in HAVE_V100 else []
        assert format_torch(SYSTEMS[name]()) == wanted


def test_doctor_names_the_torch_for_a_v100_that_torch_does_not_see(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    row = "0, Tesla V100-SXM2-32GB, 535.54.03, 1530, 1530, 0, 0x0000000000000004"
    program.write_text(f"#!/bin/sh\necho '{row}'\n")
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    texts = [finding.text for finding in _accelerators()]
    assert check_lines(texts[1:], ("V100", V100.why, V100.install))
    program.write_text("#!/bin/sh\nexit 9\n")
    assert len(_accelerators()) == 1


@pytest.mark.parametrize("value", ["", "-1", "0,0", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "NoDevFiles"])
def test_doctor_prints_the_variable_that_limits_the_devices(value, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = [finding.text for finding in _accelerators()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    (text,) = [text for text in (finding.text for finding in _accelerators()) if "CUDA_VISIBLE_DEVICES" in text]
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in text and not any("CUDA_VISIBLE_DEVICES" in one for one in before)


def test_doctor_says_how_ranks_start_from_a_shell_of_srun_pty(monkeypatch):
    step = {"PROCID": 0, "NTASKS": 8, "STEP_NUM_TASKS": 8, "LOCALID": 0, "NODEID": 0, "JOB_ID": 4242, "STEP_ID": 7}
    for name, value in {**step, "STEP_TASKS_PER_NODE": 8, "STEP_NODELIST": "gpu07", "PTY_PORT": 40123}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    (note, launcher) = list(_network())
    assert note[0] == "note" and "srun --overlap --ntasks 8" in note[1] and "rank 0 of 1" in launcher[1]


def test_a_run_on_a_device_without_code_is_refused(monkeypatch):
    monkeypatch.setattr(setup, "count_devices", lambda kind: 4)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: OF_2_15)
    with raises(RecipeError, "cuda:2", "sm_70", "pip install torch==2.9.1 torchvision==0.24.1"):
        setup.choose_device(SYSTEMS["c4140"](), 2, 4)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: OF_2_9)
    assert setup.choose_device(SYSTEMS["c4140"](), 2, 4) == torch.device("cuda", 2)

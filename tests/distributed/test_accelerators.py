"""Accelerators that are not here: counted, named and refused through torch's own interface, with stand-ins for the devices."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from messages import raises
from tiny_runs import command, refused

from paceline._utils.errors import RecipeError
from paceline.config.system import System, check_system
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import open_distributed
from paceline.distributed.device import accelerators
from paceline.distributed.device.setup import autocast_for, choose_device, make_exact
from paceline.distributed.device.systems import SYSTEMS, detect_gpu, detect_system
from paceline.training.meters import Meters
from paceline.training.request import refuse_inexact
from paceline.training.step_variants import choose_kernels

GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
    """-> a call that puts devices of a kind into this machine."""

    def have(kind: str, devices: int, memory: int = 96 * GIB):
        module = SimpleNamespace(
            get_device_name=lambda device: f"{kind} of a test",
            get_device_properties=lambda index: SimpleNamespace(total_memory=memory),
            synchronize=lambda: None,
        )
        monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
        here = torch.device(kind) if devices else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: here)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: memory)
        if kind == "xpu":
            monkeypatch.setattr(torch.xpu, "is_bf16_supported", lambda including_emulation=True: True)

    return have


@pytest.mark.parametrize("kind", ["hpu", "xpu"])
def test_a_rank_takes_its_own_device_of_the_systems_kind(machine, kind):
    machine(kind, 8)
    system = System(kind, ranks_per_node=8)
    assert [choose_device(system, rank, 8) for rank in range(8)] == [torch.device(kind, rank) for rank in range(8)]
    with raises(RecipeError, "8", "9 ranks"):
        choose_device(system, 0, 9)


@pytest.mark.parametrize("wanted", ["cuda", "hpu", "xpu", "mps"])
def test_a_system_whose_accelerator_is_not_here_is_refused_and_another_kind_does_not_count(machine, wanted):
    machine("xpu" if wanted == "hpu" else "hpu", 8)
    with pytest.raises(RecipeError) as refusal:
        choose_device(System(wanted), 0)
    assert "torch finds 0" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("kind", "precision"), [("hpu", "bf16"), ("xpu", "bf16"), ("mps", "fp32")])  # CUDA's: tests/gpu
def test_gpu_asks_whatever_accelerator_there_is(machine, kind, precision):
    machine(kind, 1 if kind == "mps" else 4)
    found = detect_gpu()
    assert (found.device, found.ranks_per_node, found.memory_gib) == (kind, 1 if kind == "mps" else 4, 96.0)
    assert found.precision == precision and found.device_name == f"{kind} of a test"
    # Apple's is not taken unasked.
    assert detect_system().device == ("cpu" if kind == "mps" else kind)


def test_a_kind_that_does_not_say_its_memory_is_refused_with_what_to_do(machine, monkeypatch):
    machine("hpu", 8, memory=0)
    monkeypatch.delattr(torch.accelerator, "get_memory_info", raising=False)  # torch 2.9
    with raises(RecipeError, "memory"):
        detect_gpu()


def test_this_machine_without_an_accelerator_has_none():
    if torch.cuda.is_available():
        pytest.skip("it has one")
    assert accelerators.find_accelerators() == ("", 0) and accelerators.default_accelerator() == ""
    assert {kind: accelerators.count_devices(kind) for kind in accelerators.NAMES} == dict.fromkeys(accelerators.NAMES, 0)
    accelerators.synchronize(torch.device("cpu"))
    accelerators.set_device(torch.device("cpu"))
    assert accelerators.get_device_name(torch.device("cpu")) == "CPU"


@pytest.mark.parametrize("system", ["gaudi8", "gaudi2x8", "mi300x8", "dgx-h100", "gpu"])
def test_training_on_a_machine_that_is_not_here_is_refused_in_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, system
):
    if accelerators.find_accelerators()[1]:
        pytest.skip("this machine has accelerators")
    monkeypatch.chdir(tmp_path)
    refused(command(capsys, "train", "ssd-demo", "--system", system), "torch finds")
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_nothing_connects_are_refused_before_they_look_for_each_other():
    pair = replace(SINGLE, kind="torchrun", world=2, local_world=1, nodes=2)
    with pytest.raises(RecipeError, match=r"2 ranks on Apple GPU"), open_distributed(pair, device=torch.device("mps", 0)):
        pass


def test_every_kind_of_the_menu_has_a_name_and_a_way_between_ranks_or_none():
    kinds = {SYSTEMS[name]().device for name in SYSTEMS if name not in ("auto", "gpu")}
    assert kinds <= {"cpu", *accelerators.NAMES} and set(accelerators.BACKENDS) == {"cpu", *accelerators.NAMES}
    assert accelerators.BACKENDS["mps"] == ""


def test_where_there_is_no_float64_losses_are_summed_in_float32():
    meters = Meters(torch.device("cpu"))
    meters.dtype = torch.float32
    meters.add({"loss": torch.tensor(2.0, dtype=torch.bfloat16)}, 0)
    assert meters.sums["loss"].dtype == torch.float32


@pytest.mark.parametrize("apply", [choose_kernels, lambda system: autocast_for(system, torch.device("cpu"))])
def test_only_the_precision_tf32_allows_tf32(apply):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        for precision in ("fp32", "tf32", "bf16", "tf32", "fp16"):
            apply(System("cuda", precision=precision))
            allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
            assert allowed == (precision == "tf32",) * 2
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("kind", ["cpu", "xpu", "hpu", "mps"])
def test_tf32_is_for_nvidia_gpus(kind):
    with pytest.raises(RecipeError, match=r"--system\.precision tf32.*fp32"):
        check_system(System(kind, precision="tf32"))


def test_exact_rejects_tf32():
    with pytest.raises(RecipeError, match=r"--deterministic.*tf32.*fp32"):
        refuse_inexact(System("cuda", precision="tf32"), exact=True)
    refuse_inexact(System("cuda", precision="fp32"), exact=True)
    refuse_inexact(System("cuda", precision="tf32"), exact=False)


def test_kernels_in_triton_are_refused_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with raises(RecipeError, "--system.kernels triton", "--system.kernels torch", "Triton"):
        choose_kernels(System("cuda", kernels="triton"))
    choose_kernels(System("cuda"))  # torch's need none


@pytest.mark.parametrize(
    ("exact", "varied", "searches"), [(False, False, True), (False, True, False), (True, False, False)]
)
def test_cudnn_searches_for_kernels_unless_shapes_vary_or_a_run_is_exact(monkeypatch, exact, varied, searches):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not searches)
    make_exact(exact, varied=varied)
    assert torch.backends.cudnn.benchmark is searches

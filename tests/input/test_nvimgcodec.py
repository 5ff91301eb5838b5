"""nvImageCodec's two packages: which one fits the installed torch, and what is said where another one is there, or both, or none."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest
import torch

from paceline.cli import list as menus
from paceline.config import nvimgcodec_packages
from paceline.config.errors import RecipeError
from paceline.config.nvimgcodec_packages import cuda_of_torch, misfit, to_install_nvimgcodec
from paceline.input.nvimgcodec import import_nvimgcodec
from paceline.machine.doctor import here

CU12, CU13 = "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"


@pytest.fixture
def installed(monkeypatch):
    """Call it with the packages that are there, and the CUDA of the torch beside them."""

    def pretend(*there: str, cuda: int | None) -> None:
        def distribution(name: str) -> str:
            if name in there:
                return name
            raise PackageNotFoundError(name)

        monkeypatch.setattr("importlib.metadata.distribution", distribution)
        monkeypatch.setattr(nvimgcodec_packages, "cuda_of_torch", lambda: cuda)

    return pretend


def test_torchs_cuda_is_read_without_importing_it(tmp_path, monkeypatch):
    assert cuda_of_torch() == (int(torch.version.cuda.partition(".")[0]) if torch.version.cuda else None)
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    for text, major in (("cuda = '12.8'", 12), ("from typing import Optional\ncuda: Optional[str] = None", None)):
        (folder / "version.py").write_text(text)
        assert cuda_of_torch() == major


@pytest.mark.parametrize(
    ("there", "cuda", "wanted"),
    [
        ((), 13, f"pip install '{CU13}[nvjpeg]>=0.9'"),
        ((), 12, f"pip install '{CU12}[nvjpeg]>=0.9'"),
        ((), None, f"pip install '{CU13}[nvjpeg]>=0.9'"),
        ((CU12,), 13, f"pip uninstall -y {CU12} && pip install '{CU13}[nvjpeg]>=0.9'"),
        ((CU12, CU13), 12, f"pip uninstall -y {CU13} {CU12} && pip install '{CU12}[nvjpeg]>=0.9'"),
    ],
)
def test_the_package_for_torchs_cuda_is_advised_and_every_other_goes_first(installed, there, cuda, wanted):
    installed(*there, cuda=cuda)
    assert to_install_nvimgcodec() == wanted


@pytest.mark.parametrize(
    ("there", "cuda", "wanted"),
    [
        ((), 13, ""),
        ((CU13,), 13, ""),
        ((CU12,), 12, ""),
        ((CU12,), None, ""),  # a torch without CUDA decodes on the CPU, which any package does
        ((CU12,), 13, f"{CU12} is for CUDA 12, torch is built for CUDA 13: fit for the CPU alone."),
        ((CU13,), 12, f"{CU13} is for CUDA 13, torch is built for CUDA 12: fit for the CPU alone."),
        ((CU12, CU13), 13, f"{CU13} and {CU12} write the same files, install one alone:"),
    ],
)
def test_doctor_and_menu_name_a_package_that_does_not_fit(installed, monkeypatch, there, cuda, wanted):
    installed(*there, cuda=cuda)
    assert misfit().startswith(wanted) and bool(misfit()) == bool(wanted)
    monkeypatch.setattr("paceline.input.decode.require_decoder", lambda decoder: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert [text for level, text in here._decoders() if level == "note"] == [misfit()] * bool(wanted)
    menu = {row["name"]: row["about"] for row in menus._decoders()}
    assert menu["nvimgcodec"].endswith(f"Linux. {misfit()}" if wanted else "Linux")


def test_a_package_whose_files_another_ones_removal_took_is_refused_with_the_command(monkeypatch):
    """What is left is a folder without modules, which Python imports."""
    hollow = ModuleType("nvidia.nvimgcodec")
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    monkeypatch.setattr(sys.modules["nvidia"], "nvimgcodec", hollow, raising=False)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", hollow)
    with pytest.raises(RecipeError, match=r"cannot be imported here: .*Decoder.*\nInstall it:  pip "):
        import_nvimgcodec()

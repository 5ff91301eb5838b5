"""nvImageCodec where it is broken, and what doctor and the menu say of it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from paceline._utils.errors import RecipeError
from paceline.data.transforms.decode import import_nvimgcodec


def test_a_package_whose_files_another_ones_removal_took_is_refused_with_the_command(monkeypatch):
    """What is left is a folder without modules, which Python imports."""
    hollow = ModuleType("nvidia.nvimgcodec")
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    monkeypatch.setattr(sys.modules["nvidia"], "nvimgcodec", hollow, raising=False)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", hollow)
    with pytest.raises(RecipeError, match=r"imported.*: .*Decoder.*\n.*:  pip "):
        import_nvimgcodec()

"""The code on the pages of docs/extending does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.config.errors import UserError
from paceline.dist import launcher

PAGES = Path(__file__).parents[1] / "docs" / "extending"


def blocks(page: str) -> list[str]:
    """The Python that a page shows, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), flags=re.M | re.S)


def test_a_launcher_is_a_function_and_a_row(monkeypatch):
    monkeypatch.setattr(launcher, "LAUNCHERS", dict(launcher.LAUNCHERS))
    names = dict(vars(launcher))
    for block in blocks("launcher.md"):
        exec(block, names)
    environ = names["environ"]
    with pytest.raises(UserError, match="ACME_HEAD missing although ACME_RANK"):
        launcher.read_launch({**environ, "ACME_HEAD": ""})
    with pytest.raises(UserError, match="ACME_RANK and ACME_SIZE: rank 8 of 8 is impossible"):
        launcher.read_launch({**environ, "ACME_RANK": "8"})
    with pytest.raises(UserError, match=r"ACME_RANK and ACME_SIZE say rank 5 of 8 \(acme\)"):
        launcher.read_launch({**environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})


def test_a_kernel_is_an_operator_with_a_fake_form_and_a_twin():
    names: dict = {}
    for block in blocks("kernel.md"):
        exec(block, names)

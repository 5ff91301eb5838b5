"""What is advised to install is what the package itself asks for, and never a package of our name."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import paceline
from paceline._utils.commands import EXTRAS, install_command

ROOT = Path(paceline.__file__).parents[1]


def test_each_extra_is_as_the_package_declares_it():
    declared: dict[str, set[tuple[str, frozenset[str], SpecifierSet]]] = {}
    for one in map(Requirement, requires("paceline") or []):
        for extra in re.findall(r'extra == "([\w-]+)"', str(one.marker)):
            declared.setdefault(extra, set()).add((one.name, frozenset(one.extras), one.specifier))
    for extra, packages in EXTRAS.items():
        asked = {(one.name, frozenset(one.extras), one.specifier) for one in map(Requirement, packages)}
        assert asked == declared[extra], extra


def test_nobody_is_told_to_install_a_package_of_our_name():
    # The name is on no index: whoever registers it would be installed by our advice.
    advice = re.compile(r"pip3? install [^\n]*?['\" ]paceline\b")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    sources = [path for path in (ROOT / "paceline").rglob("*.py")]
    found = [f"{path}: {match[0]}" for path in pages + sources for match in advice.finditer(path.read_text())]
    assert not found, "\n".join(found)
    assert install_command("mlflow") == "pip install 'mlflow-skinny>=2.20' 'sqlalchemy>=2,<3' 'alembic>=1.14'"

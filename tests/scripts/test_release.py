"""A release: its version and packages are the same everywhere; what the script refuses; and, by night, all of the script."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from paceline._utils.version import __version__

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import release  # noqa: E402

# conda-forge's names of PyPI's packages.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def declared(key: str) -> dict[str, SpecifierSet]:
    """Package -> versions, of a list in pyproject.toml; Python 3.10 has no reader of TOML."""
    block = re.search(rf"^{key} = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.M | re.S)
    assert block
    return {one.name: one.specifier for one in map(Requirement, re.findall(r'"([^"]+)"', block[1]))}


def test_the_version_is_the_same_everywhere(monkeypatch, tmp_path):
    assert release.version() == __version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    for name in ("paceline/_utils/version.py", *release.COPIES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.version() == __version__
    for name in release.COPIES:
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(__version__, "9.9.9"))
        with pytest.raises(release.Refused, match=r"9\.9\.9"):
            release.version()
        (tmp_path / name).write_text(text)


def test_a_release_has_a_dated_entry_in_the_changelog():
    text = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-31\n\n### Added\n- a thing\n\n## [0.1.0] - 2025-01-31\n"
    assert release.changelog_problem(text, "0.2.0") == ""
    assert "nothing stands" in release.changelog_problem(text, "0.1.0")
    assert "no heading" in release.changelog_problem(text.replace(" - 2026", " - soon"), "0.2.0")
    headings = re.findall(r"^##+ (.*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert (
        headings[0] == "[Unreleased]" or release.changelog_problem((ROOT / "CHANGELOG.md").read_text(), __version__) == ""
    )


def test_a_wheel_with_a_test_in_it_is_refused(tmp_path):
    wheel, ours = tmp_path / "paceline-1-py3-none-any.whl", ["paceline/__init__.py", "paceline/py.typed"]
    for more, fits in (([], True), (["tests/test_it.py"], False), (["paceline/left_over.py"], False)):
        with zipfile.ZipFile(wheel, "w") as file:
            for name in (*ours, "paceline-1.dist-info/licenses/LICENSE", *more):
                file.writestr(name, "")
        if fits:
            assert release.check_wheel(wheel, set(ours)) == 2
        else:
            with pytest.raises(release.Refused, match=more[0]):
                release.check_wheel(wheel, set(ours))


def test_conda_s_recipe_asks_for_what_the_package_asks_for():
    recipe = yaml.safe_load((ROOT / "containers" / "conda" / "recipe.yaml").read_text())
    wanted = {CONDA.get(name, name): versions for name, versions in declared("dependencies").items()}
    run = dict(line.split(maxsplit=1) for line in recipe["requirements"]["run"])
    assert (
        run.pop("python") == ">=${{ python_min }}"
        and recipe["context"]["python_min"] in (ROOT / "pyproject.toml").read_text()
    )
    assert {name: SpecifierSet(versions) for name, versions in run.items()} == wanted


@pytest.mark.nightly(
    "builds both distributions, installs torch and the others anew and trains: a minute and a half of one core"
)
def test_wheel_and_source_distribution_build_and_a_fresh_environment_trains_with_them(tmp_path):
    words = [sys.executable, str(ROOT / "scripts" / "release.py"), "--rehearse", "--out", str(tmp_path / "dist")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "paceline doctor" in done.stdout and "--max-steps 2" in done.stdout
    assert sorted(path.suffix for path in (tmp_path / "dist").glob("paceline-*")) == [".gz", ".whl"]

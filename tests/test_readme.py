"""The README is executable: its commands parse, its file tree is the real one, its results have folders."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse_recipe
from paceline.cli.main import VERBS
from paceline.cli.preview import PreviewFlags
from paceline.cli.show import ShowFlags
from paceline.config.run import Controls

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.M | re.S)
RECIPE_VERBS = {"train": Controls(), "show": ShowFlags(), "preview": PreviewFlags()}


def paceline_commands() -> list[str]:
    """Every `paceline VERB ...` in a fenced block, without comments and launchers."""
    lines = [line.partition("#")[0] for block in BLOCKS for part in block.splitlines() for line in part.split("&&")]
    found = [re.search(r"(?:\bpaceline|\.venv/bin/paceline)\s+([a-z].*)", line) for line in lines]
    return [match[1].strip() for match in found if match and not match[0].startswith("paceline/")]


@pytest.mark.parametrize("command", paceline_commands())
def test_a_readme_command_parses(command: str) -> None:
    words = shlex.split(command)
    assert words[0] in VERBS, command
    if words[0] in RECIPE_VERBS:
        parse_recipe(words[1:], RECIPE_VERBS[words[0]], verb=words[0])
    if "--system" in words and words[words.index("--system") + 1] != "gpu":
        choose_system(words[words.index("--system") + 1])


def test_the_first_block_is_the_main_command_and_the_second_the_tests() -> None:
    assert BLOCKS[0].strip().endswith("paceline train ssd-tiny") and BLOCKS[0].strip().count("\n") == 0
    assert BLOCKS[1].strip() == "scripts/test.sh"


def test_ci_runs_the_readmes_test_command() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[-1] == BLOCKS[1].strip()


def test_the_file_tree_is_the_real_one() -> None:
    tree = next(block for block in BLOCKS if block.startswith("paceline/train.py"))
    named = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    package = ROOT / "paceline"
    rooms = {
        f"paceline/{entry.name}"
        for entry in package.iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").exists()
    }
    tops = {"containers", "docs", "results", "scripts", "tests"}
    assert named == (rooms - {"paceline/__init__.py", "paceline/__main__.py"}) | tops


def test_every_results_folder_that_is_named_exists() -> None:
    text = README + "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for name in set(re.findall(r"results/([a-z0-9-]+)", text)):
        assert (ROOT / "results" / name / "README.md").is_file() or name == "gpu", name

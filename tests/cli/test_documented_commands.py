"""Every `paceline ...` command in a fenced block of README, CONTRIBUTING and docs gets past its own flag parser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from parsed import parse
from tiny_runs import TINY, without_report
from tiny_runs import command as carry_out

from paceline.cli import main as front_door

ROOT = Path(__file__).parents[2]
# But for docs/contributing/first-change.md, whose flag comes with its change: tests/test_first_change.py carries its commands out, and
# tests/test_extending.py those of docs/how-to/extend.
OWN_TESTS = [ROOT / "docs/contributing/first-change.md", *(ROOT / "docs/how-to/extend").glob("*")]
USAGES = (ROOT / "docs/reference/generated/cli").glob("*")
DOCS = sorted({*(ROOT / "docs").rglob("*.md")} - {*OWN_TESTS, *USAGES})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
# `paceline`, `.venv/bin/paceline`, `python -m paceline`, `torchrun ... -m paceline`; not the folder paceline/.
CALL = re.compile(r"(?:^|[\s/])paceline\s+([a-z][^#&|]*)")


def documented() -> list[str]:
    found = []
    for page in PAGES:
        text = page.read_text() if page.is_file() else ""
        for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                call = CALL.search(line.partition("#")[0])
                if call and call[1].split()[0] in front_door.VERBS:
                    found.append(call[1].strip())
    return sorted(set(found))


def recipe_page() -> str:
    """The Python file that docs/how-to/write-a-recipe.md shows."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/how-to/write-a-recipe.md").read_text(), flags=re.M | re.S)[0]


@pytest.mark.parametrize("command", documented())
def test_a_documented_command_gets_past_its_parser(command, tmp_path, monkeypatch):
    if "./my_recipe.py:" in command:
        (tmp_path / "my_recipe.py").write_text(recipe_page())
        monkeypatch.chdir(tmp_path)
    if command.startswith("prepare my-images"):  # the format of a folder is found by its files
        for name in ("cat/1.jpg", "dog/1.jpg"):
            (tmp_path / "my-images" / name).parent.mkdir(parents=True)
            (tmp_path / "my-images" / name).touch()
        monkeypatch.chdir(tmp_path)
    for word in (
        "RUN_A/run.json",
        "RUN/run.json",
        "RECIPE",
        "plan cats.safetensors",
        "plan shapes.safetensors",
        "plan RUN_A",
        "plan RUN",
    ):
        # show reads a file before it parses what follows
        command = command.replace(word, f"{'plan ' if ' ' in word else ''}classify-demo")
    parse(command, monkeypatch)


def test_the_readme_shows_the_verbs_that_people_need():
    said = {command.split()[0] for command in documented()}
    assert said >= {"train", "predict", "eval", "prepare", "plan"}


@pytest.mark.parametrize("name", ["longer", "resnet18"])
def test_the_recipes_of_the_recipe_page_train(name, class_photos, tmp_path, monkeypatch, capsys):
    without_report(monkeypatch)
    (tmp_path / "my_recipe.py").write_text(recipe_page())
    monkeypatch.chdir(tmp_path)
    flags = [*TINY, "--bn-batch-size", "8", "--max-steps", "1"]
    said = carry_out(capsys, "train", f"./my_recipe.py:{name}", "--data", class_photos, "--output-dir", "run", *flags)
    assert said.code == 0, said
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["name"] == f"./my_recipe.py:{name}"
    assert facts["recipe"]["optim"]["weight_decay"] == (1e-4 if name == "longer" else 5e-5)


@pytest.mark.parametrize("command", ["eval RUN --checkpont best", "train classify-dmeo", "prepare folder --dat X"])
def test_a_mistyped_command_would_be_noticed(command, monkeypatch):
    from paceline._utils.errors import PacelineError

    with pytest.raises(PacelineError):
        parse(command, monkeypatch)

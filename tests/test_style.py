"""Texts keep to docs/contributing/style.md: the counts of findings by file and rule only fall. And each rule, on examples."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("style", ROOT / "scripts" / "style.py")
STYLE = importlib.util.module_from_spec(SPEC)
sys.modules["style"] = STYLE
SPEC.loader.exec_module(STYLE)
RULES = STYLE.TABLE["rules"]
LONG = "word " * 31


def rules_of(text: str, kind: str = "docs") -> set[str]:
    """Return the names of the rules that a page or another text breaks."""
    passages = STYLE.passages_of_page(text) if kind == "docs" else [(kind, 1, text)]
    return {finding.rule for finding in STYLE.find_in("page.md", passages)}


def test_no_count_is_above_or_below_the_allowed_one():
    found = STYLE.differences(STYLE.count(STYLE.check_all()), ROOT / STYLE.ALLOWED)
    advice = "To see findings:  .venv/bin/python scripts/style.py FILE. To lower the counts:  ... scripts/style.py --write-allowed"
    assert not found, "\n".join([*found, advice])


@pytest.mark.parametrize(
    ("rule", "kind", "text"),
    [(rule, kind, text) for rule in RULES for kind in ("wrong", "right") for text in RULES[rule][kind]],
)
def test_a_rule_finds_the_wrong_sense_and_leaves_the_right_one(rule, kind, text):
    assert len(RULES[rule]["wrong"]) >= 5 and len(RULES[rule]["right"]) >= 5
    found = rules_of(text, "docs" if "docs" in RULES[rule].get("in", "docs") else "messages")
    assert (rule in found) == (kind == "wrong")


def test_the_guide_names_each_rule():
    guide = (ROOT / "docs" / "contributing" / "style.md").read_text()
    assert not [rule for rule in (*RULES, "long-sentence", "help-length") if f"`{rule}`" not in guide]


def test_lengths_count_code_and_links_as_one_word():
    assert "long-sentence" in rules_of(LONG) and "long-sentence" in rules_of(LONG, "messages")
    assert not rules_of(f"`{LONG}` and [{LONG}](page.md). --a-flag " + "word " * 20)
    assert not rules_of("word " * 20 + "end. Another " + "word " * 20)
    assert rules_of("x" * 91, "help") == {"help-length"} and not rules_of("x" * 90, "help")


def test_passages_have_their_lines_and_no_code():
    page = "# One\n\nTwo\nthree alone.\n\n| a | b |\n| - | - |\n| c | so many |\n\n```\nbeside  # beside it\n```\n"
    found = STYLE.find_in("page.md", STYLE.passages_of_page(page))
    assert [(one.line, one.rule) for one in found] == [(4, "alone"), (8, "so-many"), (11, "beside")]
    module = (
        '"""A data set."""\n\nHELP = Help("a data set")\nre.compile("a data set for it")\n\n'
        'def f():\n    """A data set."""\n    raise ValueError(\n        f"{x}: the data set of {y} is old"\n    )\n'
    )
    found = STYLE.find_in("module.py", STYLE.passages_of_module(module))
    assert sorted((one.line, one.area, one.instead) for one in found) == [
        (3, "help", "dataset"),
        (9, "messages", "dataset"),
    ]


def test_an_allowed_count_falls_and_does_not_rise(tmp_path):
    file = tmp_path / "allowed.json"
    assert not STYLE.write_allowed({"a.md": {"where": 3}, "b.md": {}}, file)
    assert STYLE.write_allowed({"a.md": {"where": 3}, "b.md": {"where": 1}}, file)
    assert STYLE.write_allowed({"a.md": {"where": 2, "beside": 1}, "b.md": {}}, file)
    assert json.loads(file.read_text()) == {"a.md": {"where": 3}, "b.md": {}}
    # A new file may have what another lost, and no more.
    assert not STYLE.write_allowed({"a.md": {"where": 1}, "c.md": {"where": 2}}, file)
    assert STYLE.write_allowed({"d.md": {"where": 4}}, file)
    assert STYLE.differences({"a.md": {"where": 1}}, file) == ["c.md: where: 0, and 2 are allowed"]


def test_subjects_of_new_commits_are_short(tmp_path):
    def git(*words: str) -> None:
        environ = os.environ | {
            f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        subprocess.run(["git", "-C", tmp_path, *words], check=True, env=environ, capture_output=True)

    def found_after(*words: str) -> list[str]:
        git(*words)
        return [line.partition(" ")[2] for line in STYLE.long_subjects(tmp_path)]

    commit = ("commit", "--allow-empty", "-m")
    git("init", "-b", "main")
    assert found_after(*commit, "Before the check " + LONG) == []
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "style.py").touch()
    git("add", ".")
    assert found_after(*commit, "Add the check " + LONG) == []
    git("update-ref", "refs/remotes/origin/other", "HEAD")
    assert found_after(*commit, "x" * 73) == ["x" * 73]
    assert found_after(*commit, "x" * 72) == []  # without origin/main, the last one counts
    assert found_after("update-ref", "refs/remotes/origin/main", "refs/remotes/origin/other") == ["x" * 73]
    assert found_after("update-ref", "refs/remotes/origin/main", "HEAD") == []
    git("checkout", "-b", "side")
    git(*commit, "y" * 73)
    git("checkout", "main")
    assert found_after("merge", "--no-ff", "-m", "Merge " + LONG, "side") == ["y" * 73]
    assert "scripts/style.py --commits" in (ROOT / "scripts" / "test.sh").read_text()

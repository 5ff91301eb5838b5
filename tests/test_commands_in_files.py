"""Every `paceline COMMAND ...` in a page, a result, a script, or a golden file has only flags of that command."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from test_named_in_pages import FLAG, PAGES

from paceline.cli.main import VERBS

ROOT = Path(__file__).parents[1]
PLACES = ("README.md", "docs", "results", "scripts", "examples", "containers", "tests/launch/golden", ".ci", ".github")
# A command ends with its line (a backslash continues it), its quote, or the shell's own signs.
COMMAND = re.compile(rf"\bpaceline((?: --quiet| --json)*) ({'|'.join(VERBS)})\b((?:\\\n|[^`|;&\n])*)")
# These take a recipe, so they have its flags, those of the system, and some have those of `train`.
OF_RECIPES = ("train", "launch", "plan", "preview", "bench", "weights", "eval", "predict", "export", "serve")
# Flags of other tools that users try first; a flag that the page teaches to add.
OTHERS = ("results/first-guesses/", "docs/contributing/first-change.md")
COMMON = {"--help", "--help-all", "--quiet", "--json", "--system", "--task-file"}


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, the rest of its line) of each command in a text."""
    for match in COMMAND.finditer(text):
        rest = re.sub(r"\"[^\"]*\"|'[^']*'", "", match[3])  # the flags in a quoted value are another program's
        yield match[2], re.split(r"\s#|\"|'|\)|\\n|</| -- ", rest)[0]


@cache
def flags_of(verb: str) -> set[str]:
    """The flags of a command, of its kinds, and of the recipes that it takes."""
    texts = [PAGES.page_of_verb(verb)]
    texts += [PAGES.help_of("train", one) for one in PAGES.WHOLE.values()] if verb in OF_RECIPES else []
    return {flag for text in texts for flag in FLAG.findall(text)} | COMMON


def wrong_flags(text: str) -> list[str]:
    """Each flag of a command in this text that the command does not have, after the command's name."""
    found = [(verb, flag) for verb, rest in commands(text) for flag in FLAG.findall(rest)]
    return [
        f"{verb} {flag}"
        for verb, flag in found
        if flag not in flags_of(verb) and re.sub(r"(--|\.)no-", r"\1", flag) not in flags_of(verb)
    ]


def test_commands_in_files_have_flags_of_their_command():
    listed = subprocess.run(["git", "ls-files", "-z", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wrong, seen = [], 0
    for name in listed.split("\0"):
        if not name or name.startswith(OTHERS) or Path(name).suffix in (".py", ".png", ".jpg", ".gz", ".svg"):
            continue
        text = (ROOT / name).read_text(errors="replace")
        seen += sum(1 for _ in commands(text))
        wrong += [f"{name}: {one}" for one in wrong_flags(text)]
    assert seen > 500 and not wrong, "\n".join(sorted(set(wrong)))


def test_a_wrong_flag_would_be_noticed():
    assert wrong_flags("paceline eval runs/a --nonsense 3") == ["eval --nonsense"]
    assert wrong_flags("paceline train ssd-demo \\\n  --out runs/a") == ["train --out"]
    assert not wrong_flags("paceline eval runs/a --max-detections 3  # --nonsense\n`paceline plan ssd-demo`, `--nonsense`")

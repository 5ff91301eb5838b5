"""Every command of the pages that trains a detector says which weights it starts from."""

import re
from pathlib import Path

import pytest

from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import ROWS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "reference" / "generated" / "migration").glob("*.md"))
COMMAND = re.compile(r"paceline (?:train|launch) ([\w@.-]+)([^`\n]*)")


def detects(name: str) -> bool:
    made = RECIPES[name]() if name in RECIPES else ROWS[name].make() if name in ROWS else None
    return made is not None and made.task != "classification" and not name.endswith("-demo")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_that_trains_a_detector_names_its_weights(page):
    found = [match for match in COMMAND.finditer(page.read_text()) if detects(match[1])]
    silent = [match[0] for match in found if "--weights" not in match[2] and "run.json" not in match[2]]
    assert silent == []

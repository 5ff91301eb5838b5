"""What a page names is there: pages and results as links, files, flags, recipes; and a row's numbers stand in the folder it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from paceline.config.system import System

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "results").rglob("*.md"))
BLOCK = re.compile(r"^( *)```.*?^\1```", flags=re.M | re.S)
NUMBER = re.compile(r"(?<![\w.,-])\d[\d,.]*\d|(?<![\w.,-])\d(?![\w.])")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return BLOCK.sub("", page.read_text())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", GUIDES + RESULTS, ids=name_of)
def test_a_page_that_another_names_is_linked(page):
    bare = re.findall(r"(?<!\[)`((?:docs/[\w/-]+\.md|results/[a-z0-9][\w-]*))/?`(?!\])", prose(page))
    named = [ROOT / name / ("" if name.endswith(".md") else "README.md") for name in bare]
    assert not [name for name, there in zip(bare, named) if there.is_file() and there != page]


def rows_of_results() -> list[tuple[str, list[str], str]]:
    """(what, folders, measured) of each row of results/README.md."""
    found = []
    for row in (ROOT / "results" / "README.md").read_text().splitlines():
        cells = row.strip("| ").split(" | ")
        if len(cells) == 3 and (folders := re.findall(r"\]\(([\w-]+)/README\.md\)", cells[2])):
            found.append((cells[0], folders, cells[1]))
    return found


def missing_numbers(claim: str, folders: list[str]) -> list[str]:
    """The numbers of a claim that no page of these folders has; a link's address and a date are none."""
    text = " ".join(page.read_text() for folder in folders for page in (ROOT / "results" / folder).rglob("*.md"))
    claim = re.sub(r"\]\([^)]*\)|\d{4}-\d\d-\d\d|`[^`]*`", "", claim)
    return [one for one in NUMBER.findall(claim) if not re.search(rf"(?<![\d.,]){re.escape(one)}(?!\d|[.,]\d)", text)]


@pytest.mark.parametrize(("what", "folders", "measured"), rows_of_results())
def test_each_number_of_a_claim_stands_in_the_folder_that_it_names(what, folders, measured):
    assert not missing_numbers(measured, folders), what


def test_each_number_of_the_readmes_claims_stands_in_the_folder_that_it_names():
    results = prose(GUIDES[0]).partition("\n## Results\n")[2].partition("\n## ")[0]
    claims = re.split(r"\n\n|^- ", results, flags=re.M)[1:]
    assert len(claims) > 3 and len(rows_of_results()) > 20
    for claim in claims:
        assert not missing_numbers(claim.partition(":")[2], re.findall(r"\]\(results/([\w-]+)/", claim)), claim


def test_another_number_would_be_noticed():
    what, folders, measured = rows_of_results()[0]
    assert missing_numbers(measured.replace("0.369", "0.370"), folders) == ["0.370"], what


def test_the_table_of_support_has_each_accelerator_and_claims_no_gpu_before_results_do():
    text = (ROOT / "docs" / "support.md").read_text()
    kinds = get_args(get_type_hints(System)["accelerator"])
    assert len(kinds) > 4 and not [kind for kind in kinds if f"`{kind}`" not in text]
    measured = "Nothing here is measured yet." not in (ROOT / "results" / "gpu" / "README.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| NVIDIA |"))
    assert measured or "no GPU was ever used" in row

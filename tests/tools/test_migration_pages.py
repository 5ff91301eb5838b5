"""The generated migration pages are what the tables say; each original command comes to the numbers of ours, or says why not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from by_night import ONE_MORE

from paceline.cli.commands.translate import translation_record
from paceline.tools.migrate import ORIGINALS, PAGES
from paceline.tools.migrate.table import FlagTranslation

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("migration_pages", ROOT / "scripts" / "migration_pages.py")
WRITER = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(WRITER)
ROWS = {
    line.split("|")[1].strip()
    for line in (ROOT / "docs/reference/known-differences.md").read_text().splitlines()
    if line[:1] == "|"
}
RUNS = list(dict.fromkeys(run for page in PAGES for run in WRITER.runs_of(page)))
# One a system and kind of line; all of them at night.
FEW = (
    "SYSTEM=C4140 sbatch",
    "source config_DGX2_multi",
    "source config_DGX1_multinode",
    "mpirun --allow-run-as-root --bind-to core",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_tables_say(page):
    there = (ROOT / "docs/reference/generated/migration" / f"{page.name}.md").read_text()
    assert there == WRITER.markdown(page), "write it again: PYTHONPATH=. python scripts/migration_pages.py"


@pytest.mark.parametrize(
    ("run", "of"), [pytest.param(run, of, id=run, marks=() if run.startswith(FEW) else ONE_MORE) for run, of in RUNS]
)
def test_each_command_of_a_page_comes_to_the_same_numbers_or_names_the_row_that_says_why_not(run, of):
    found = translation_record(run, of)
    assert {row["row"] for row in found["differs"]} <= ROWS
    assert found["command"].count("--weights") == (1 if found["facts"]["theirs"] else 0)


def test_every_flag_has_a_reader_or_a_way_to_ours():
    """A flag that carries over does so by a template, by values, by fields of the recipe, or by what its program says."""
    for original in ORIGINALS:
        for program in original.programs:
            for entry in (*program.flags, *original.variables):
                carried = entry.fields or entry.by or entry.values is not None or entry.flags("7") or entry.kind == "bool"
                assert entry.status != "carries" or carried or entry.ours.startswith("paceline "), entry


def test_no_flag_stands_twice_in_a_program():
    for original in ORIGINALS:
        for program in original.programs:
            names = [name for entry in program.flags for name in entry.names]
            assert len(names) == len(set(names)), program.files


def test_a_wrong_number_in_a_table_would_be_noticed(monkeypatch):
    """A default of the original that the table has wrongly moves its numbers, not ours: an unexplained difference."""
    from paceline.tools.migrate import mxnet_ssd

    monkeypatch.setattr(mxnet_ssd, "TRAIN_IMAGES", 118_287)
    found = translation_record("mpirun -np 8 python ssd_main.py --batch-size 128 --lr-warmup-epochs 5")
    assert any(re.match("steps_per_epoch: 116 in the original, 115 in paceline", row["what"]) for row in found["differs"])


def test_cells_of_entries_have_one_line():
    for page in PAGES:
        for section in page.sections:
            for row in section.rows:
                cells = (row.ours, row.remark) if isinstance(row, FlagTranslation) else (row.theirs, row.ours, row.remark)
                assert not any("|" in cell or "\n" in cell for cell in cells), row

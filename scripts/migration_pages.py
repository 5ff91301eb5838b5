"""Write docs/migration/*.md from the tables of paceline/tools/migrate: `PYTHONPATH=. python scripts/migration_pages.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.tools.migrate import PAGES
from paceline.tools.migrate.table import CommandPair, FlagTranslation, MigrationPage, MigrationTable
from paceline.tools.migrate.translate import format_number, translate

FOLDER = Path(__file__).parents[1] / "docs" / "migration"
HEAD = "| original | paceline | remark |\n| --- | --- | --- |\n"


def markdown(page: MigrationPage) -> str:
    """The page's whole text; pages that the tables name, which a terminal shows too, become links."""
    text = f"# {page.title}\n\n{page.text.strip()}\n" + "".join(map(_section, page.sections))
    return re.sub(r"(?<![\w/`[])(?<!\]\()`?docs/([\w/-]+)\.md`?", r"[\1](../\1.md)", text)


def runs_of(page: MigrationPage) -> Iterator[tuple[str, str]]:
    """The originals' command lines whose cells are translations, each with its --source-system."""
    for section in page.sections:
        yield from ((row.run, row.of) for row in section.rows if isinstance(row, CommandPair) and row.run)


def _section(section: MigrationTable) -> str:
    text = f"{section.text.strip()}\n\n" if section.text else ""
    follows = f"The flags of paceline are relative to `paceline {section.follows}`.\n\n" if section.follows else ""
    rows = "".join(f"| {' | '.join(_cells(row))} |\n" for row in section.rows)
    return f"\n## {section.title}\n\n{text}{follows}{HEAD}{rows}".replace(" |  |\n", " | |\n")


def _cells(row: FlagTranslation | CommandPair) -> tuple[str, str, str]:
    if isinstance(row, CommandPair):
        if row.ours:
            return row.theirs, row.ours, row.remark
        ours = translate(row.run, system_of=row.of).command.replace("--data DIR", "--data /data/coco")
        return row.theirs, f"`{ours}`", row.remark
    value = row.example or " ".join(map(format_number, row.default if isinstance(row.default, tuple) else (row.default,)))
    ours = row.ours.replace("{}", value) if row.kind != "bool" else row.ours
    return ", ".join(f"`{name}`" for name in row.names), f"`{ours}`" if row.status == "carries" else ours, row.remark


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / f"{page.name}.md").write_text(markdown(page))

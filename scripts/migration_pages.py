"""Write docs/reference/generated/migration/*.md from the tables of `paceline translate`.

PYTHONPATH=. python scripts/migration_pages.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.tools.migrate import PAGES
from paceline.tools.migrate.table import CommandPair, FlagTranslation, MigrationPage, MigrationTable
from paceline.tools.migrate.translate import format_number, translate

FOLDER = Path(__file__).parents[1] / "docs/reference/generated/migration"
HEAD = "| Original | paceline | Remark |\n| --- | --- | --- |\n"


def markdown(page: MigrationPage) -> str:
    """Return the text of a page. Paths of pages, which `paceline translate` prints as they are, become links."""
    text = f"# {page.title}\n\n{page.text.strip()}\n" + "".join(map(_section, page.sections))
    return re.sub(r"(?<![\w/`[])(?<!\]\()`?docs/([\w/-]+/)?([\w-]+)\.md`?", _link, text)


def _link(match: re.Match[str]) -> str:
    folder = (match[1] or "").removeprefix("reference/")
    return f"[{match[2].replace('-', ' ')}]({'../../' if folder != match[1] else '../../../'}{folder}{match[2]}.md)"


def runs_of(page: MigrationPage) -> Iterator[tuple[str, str]]:
    """Yield the commands of the originals whose cells are translations, each with its --source-system."""
    for section in page.sections:
        yield from ((row.run, row.of) for row in section.rows if isinstance(row, CommandPair) and row.run)


def _section(section: MigrationTable) -> str:
    text = f"{section.text.strip()}\n\n" if section.text else ""
    follows = f"Flags in the second column follow `paceline {section.follows}`.\n\n" if section.follows else ""
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

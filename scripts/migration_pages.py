"""Write docs/migration/*.md from the tables of paceline/migrate: `PYTHONPATH=. python scripts/migration_pages.py`."""

from __future__ import annotations

from pathlib import Path

from paceline.recipes.migrate.originals import PAGES
from paceline.recipes.migrate.pages import markdown

FOLDER = Path(__file__).parents[1] / "docs" / "migration"

for page in PAGES:
    (FOLDER / f"{page.name}.md").write_text(markdown(page))

"""All published configurations that are no recipes of the menu, by name (row.py says what one is)."""

from __future__ import annotations

from paceline.recipes import rows_maskrcnn, rows_resnet50, rows_ssd
from paceline.recipes.row import Row

ROWS: dict[str, Row] = {row.name: row for row in (*rows_resnet50.ROWS, *rows_ssd.ROWS, *rows_maskrcnn.ROWS)}

"""Published tables in JSON files: rows become frozen dataclasses, and what is no such row is refused by file, row and key."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.config.constraints import Count, read_menu, read_rows


@dataclass(frozen=True)
class Part:
    name: str
    folders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Row:
    nodes: Count
    minutes: float = 0.0
    parts: tuple[Part, ...] = ()


def written(folder, text):
    file = folder / "rows.json"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return file


def test_rows_and_menus_are_read_with_their_types(tmp_path):
    facts = {"nodes": 2, "minutes": 3, "parts": [{"name": "a", "folders": [["val", 5]]}]}
    row = Row(2, 3.0, (Part("a", (("val", 5),)),))
    rows = read_rows(written(tmp_path, [facts, {"nodes": 1}]), Row)
    assert rows == (row, Row(1)) and type(rows[0].minutes) is float
    assert read_menu(written(tmp_path, {"one": facts}), Row) == {"one": row}


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("[{", "rows.json ... line 1 column 3"),
        ({}, "rows.json ... list"),
        ([{"nodes": 1}, {"minutes": 1}], r"rows.json[1]: missing key 'nodes'"),
        ([{"nodes": 1, "minute": 1}], r"rows.json[0]: unknown key 'minute'"),
        ([{"nodes": "1"}], 'rows.json[0] ... nodes ... "1"'),
        ([{"nodes": 0}], r"rows.json[0]: --nodes 0: must be 1 or more"),
        ([{"nodes": 1, "parts": [{}]}], r"rows.json[0]: parts[0]: missing key 'name'"),
        ([[]], "rows.json[0] ... [] ... table"),
    ],
)
def test_what_is_no_such_row_is_refused_by_file_row_and_key(tmp_path, text, refused):
    with raises(RecipeError, refused):
        read_rows(written(tmp_path, text), Row)

"""The generated reference pages are those of the code, and have each flag, each recipe's values, and each public name."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

import paceline
from paceline.cli.main import VERBS
from paceline.config.recipes import RECIPES
from paceline.training.logging.events import SCHEMA, RunEvent

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("reference_pages", ROOT / "scripts" / "reference_pages.py")
PAGES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")


def test_the_committed_pages_are_what_the_script_writes():
    made = PAGES.all_pages(ROOT)
    there = {path.relative_to(PAGES.FOLDER).with_suffix("").as_posix(): path for path in PAGES.FOLDER.rglob("*.md")}
    assert {name for name in there if not name.startswith("migration/")} == set(made)
    assert not [name for name, text in made.items() if there[name].read_text() != text], "run scripts/reference_pages.py"
    assert json.loads(PAGES.FLAGS.read_text()) == PAGES.table_of_flags(), "run scripts/reference_pages.py"


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_a_verb_has_each_flag_of_its_help(verb):
    page, text = PAGES.page_of_verb(verb), PAGES.help_of(verb)
    assert set(FLAG.findall(text)) - {"--help"} <= set(FLAG.findall(page))
    named = re.findall(r"^`(.*)`\n: (.*)", page, flags=re.M)
    assert len(named) == len(re.findall(r"^`--|^`\[|^`[A-Z]", page, flags=re.M))
    assert all(about.strip() for _, about in named)


def test_kinds_of_a_verb_stand_on_its_page():
    page = PAGES.page_of_verb("prepare")
    assert {"## prepare folder", "## prepare coco", "## prepare zip"} <= set(page.splitlines())
    assert "--val-fraction" in page


def test_a_recipes_page_has_what_it_sets_with_help_and_source():
    helps = {
        "--model.freeze-stages": "stages",
        "--input.mosaic-prob": "four photos",
        "--optim.lr": "the rate",
        "--optim.momentum": "no",
    }
    page = PAGES.page_of_recipe("ssd-finetune-cpu", helps, {"ssd-finetune-cpu": "a file"})
    assert "| `--model.freeze-stages` | `3` | stages |" in page and "| `--optim.lr` | `0.0005` | the rate |" in page
    assert (
        "--optim.momentum" not in page
        and "Source: a file (" in page
        and RECIPES["ssd-finetune-cpu"]().input.mosaic_prob == 0.5
    )


def test_the_page_of_events_has_each_field_with_its_meaning():
    page = PAGES.page_of_events(ROOT)
    assert re.findall(r"^## (\w+)$", page, flags=re.M) == list(SCHEMA)
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", page, flags=re.M)
    fields = sum(len(dataclasses.fields(event)) for event in RunEvent.__subclasses__())
    assert len(rows) == fields and all(re.search(r"\w\w", value) for _, value in rows)
    assert not [name for fields in SCHEMA.values() for name in fields if f"| `{name}`" not in page and name != "metrics"]


def test_the_page_of_python_has_what_the_package_offers():
    page = PAGES.page_of_python(ROOT)
    assert {f"## paceline.{name}" for name in paceline.__all__ if name != "__version__"} <= set(page.splitlines())
    assert "    data: str | Path = ''," in page and "### Predictor.predict" in page
    assert "\nmax_steps: int\n" in page and "\nboxes_xyxy: np.ndarray\n" in page  # a keyword, a property
    links = set(re.findall(r"\]\(#([\w-]+)\)", page))
    assert "pacelinedetectionresult" in links and links <= {
        re.sub(r"[^\w-]", "", head.lower()) for head in re.findall(r"^## (.*)", page, flags=re.M)
    }


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("  --out PATH   where it\n               goes\n", [("--out PATH", "where it goes")]),
        (
            "  RUN          a run\n\nmodel:\n  --model.n N\n               many\n",
            [("RUN", "a run"), ("--model.n N", "many")],
        ),
    ],
    ids=["two lines", "a word, and a group"],
)
def test_flags_are_read_as_help_prints_them(text, flags):
    _, boxes = PAGES.parts_of(f"usage\n\nabout\n\n{text}")
    assert [tuple(flag) for box in boxes.values() for flag in box] == flags

"""docs/schemas/ is what scripts/schemas.py writes, fits what real runs have written, and names each of their keys."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_runs import command

from paceline.config.run import FORMAT
from paceline.training.logging.events import SCHEMA

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import schemas  # noqa: E402

RUNS = ("resnet_run", "ssd_run", "maskrcnn_run")


def validator(name: str, *, closed: bool = True) -> jsonschema.Draft202012Validator:
    """closed: what has named keys may have no others."""
    schema = json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    def close(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and isinstance(node.get("properties"), dict):
                node.setdefault("additionalProperties", False)
            for inner in node.values():
                close(inner)
        elif isinstance(node, list):
            for inner in node:
                close(inner)

    if closed:
        close(schema)
    return jsonschema.Draft202012Validator(schema)


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_the_files_are_what_the_package_says_today():
    """After a change that is meant:  scripts/schemas.py"""
    for name, text in schemas.written().items():
        assert json.loads((schemas.FOLDER / name).read_text()) == json.loads(text), (
            f"{name}: .venv/bin/python scripts/schemas.py writes it"
        )
    assert {path.name for path in schemas.FOLDER.glob("*.json")} == {
        "flags.json",
        *(f"{name}.schema.json" for name in schemas.VERSIONS),
    }


def test_the_page_names_each_version():
    page = (ROOT / "docs/reference/file-schemas.md").read_text()
    assert dict(re.findall(r"^\| \[(\w+)\.schema\.json\].*\| ([\d.]+) \|$", page, flags=re.M)) == schemas.VERSIONS
    assert schemas.VERSIONS["run"].split(".")[0] == str(FORMAT)


@pytest.mark.parametrize("fixture", RUNS)
def test_a_run_fits_and_has_no_key_without_a_schema(fixture, request):
    folder = request.getfixturevalue(fixture).folder
    facts = json.loads((folder / "run.json").read_text())
    validator("run").validate(facts)
    validator("recipe").validate(facts["recipe"])
    line = validator("events")
    for event in (found := events_of(folder)):
        line.validate(event)
    assert {event["event"] for event in found} >= {"train", "eval", "checkpoint", "end"}


@pytest.mark.parametrize("fixture", RUNS)
def test_predictions_fit(fixture, request, tmp_path, capsys):
    run = request.getfixturevalue(fixture)
    photo = next(path for path in sorted(run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png"))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8")
    assert command(capsys, "predict", run.folder, photo, broken, "--output-dir", tmp_path / "answers").code == 1
    found = json.loads((tmp_path / "answers" / "predictions.json").read_text())
    validator("predictions").validate(found)
    assert len(found["images"]) == len(found["skipped"]) == 1


def test_what_is_wrong_does_not_fit(resnet_run):
    facts = json.loads((resnet_run.folder / "run.json").read_text())
    check = validator("run", closed=False)
    for change in (
        lambda facts: facts.pop("plan"),
        lambda facts: facts.update(format=2),
        lambda facts: facts["recipe"].update(ema_decay=1.0),
        lambda facts: facts["recipe"]["model"].update(depth=51),
        lambda facts: facts["recipe"]["input"].update(crop_scale=[0.1]),
        lambda facts: facts["options"].update(keep_checkpoints=0),
        lambda facts: facts["system"].update(precision="fp8"),
    ):
        wrong = copy.deepcopy(facts)
        change(wrong)
        assert not check.is_valid(wrong)
    assert check.is_valid({**facts, "later": 1})
    own = {**facts["recipe"], "task": "./mine.py:workload", "model": {"mine": 1}}
    assert validator("recipe").is_valid(own) and not validator("recipe").is_valid({**own, "task": "nothing"})


def test_each_kind_of_event_needs_what_the_package_needs(ssd_run):
    line, found = validator("events", closed=False), {event["event"]: event for event in events_of(ssd_run.folder)}
    for kind, event in found.items():
        for name in (*SCHEMA[kind], "step", "crc"):
            assert not line.is_valid({key: value for key, value in event.items() if key != name}), (kind, name)
    assert line.is_valid({**found["train"], "loss": "nan"}) and not line.is_valid({**found["train"], "loss": "none"})
    assert not line.is_valid({**found["end"], "status": "over"})

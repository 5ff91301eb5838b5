"""Several runs in one page: compared, and as the list of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from detected_runs import HERE, image_of, make_run
from html_pages import Page
from messages import check_text
from tiny_runs import command

from paceline._utils.safe_read import SEAL, with_checksum
from paceline.tools.report.runs_page import find_differences, run_letter


def made(folder: Path, name: str, best: float, task: str = "detection", **recipe: object) -> Path:
    """FOLDER/name, a run that scored `best` at its last evaluation."""
    (folder / f"of-{name}").mkdir(parents=True)
    images = [image_of(index, [(HERE, 1, 0.9)][:index], [(HERE, 1, 0)]) for index in range(2)]
    run = make_run(folder / f"of-{name}", task, {}, lambda step: {"box_ap": best * step / 60}, images)
    facts = json.loads((run / "run.json").read_text())
    facts["recipe"].update(recipe)
    facts.update(versions={"torch": "2.15.0"}, started=f"2026-01-02T03:04:0{len(name)}")
    (run / "run.json").write_text(json.dumps(with_checksum(facts)))
    return run.rename(folder / name)


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Two runs that differ by their batch and their version of torch, and one that is still running; the middle one is best."""
    made_up = [made(tmp_path, "a", 0.2), made(tmp_path, "bb", 0.4, global_batch_size=16), made(tmp_path, "ccc", 0.3)]
    facts = json.loads((made_up[0] / "run.json").read_text())
    del facts[SEAL]
    (made_up[0] / "run.json").write_text(json.dumps(with_checksum({**facts, "versions": {"torch": "2.11.0"}})))
    events = (made_up[2] / "events.jsonl").read_text().splitlines(keepends=True)
    (made_up[2] / "events.jsonl").write_text("".join(events[:-1]))
    (made_up[1] / "report.html").write_text("")
    return made_up


def page_of(path: Path) -> Page:
    return Page(path.read_text())


def test_several_runs_are_compared_in_one_page_best_first_with_only_what_differs(runs, tmp_path, capsys):
    said = command(capsys, "report", *runs)
    assert said.code == 0 and said.out.strip() == str(tmp_path / "comparison.html")
    page = page_of(tmp_path / "comparison.html")
    assert page.charts == ["Loss", "box AP"] and len(page.pictures) == 3
    for name in ("A bb", "B ccc", "C a"):
        assert page.html.count(f">{name}<") >= 2, name  # legends of both charts
    table = page.text[page.text.index("Differences") : page.text.index("Metrics")]
    assert "recipe | global_batch_size | 16 | 8 | 8 |" in table and "versions | torch | 2.15.0 | 2.15.0 | 2.11.0" in table
    assert "started" not in table and "task" not in table and "accelerator" not in table
    scores = page.text[page.text.index("Metrics") :]
    assert scores.index("bb") < scores.index("ccc") < scores.index("| a |")
    assert "40.0" in scores and "killed" in scores
    assert [link["href"] for link in page.all("a")] == ["bb/report.html"]
    assert not (runs[0] / "report.html").exists()


def test_runs_of_different_tasks_are_not_compared(runs, tmp_path, capsys):
    other = made(tmp_path, "other", 0.1, task="instance-segmentation")
    said = command(capsys, "report", runs[0], other)
    assert said.code == 2 and check_text(said.err, "task", "instance-segmentation")
    assert str(other) in said.err and not (tmp_path / "comparison.html").exists()


@pytest.mark.parametrize("several", [True, False])
def test_a_file_of_somebody_else_is_not_replaced_and_one_run_has_its_own_place(runs, tmp_path, capsys, several):
    (tmp_path / "mine.html").write_text("notes")
    said = command(capsys, "report", *runs[: 1 + several], "--html", tmp_path / "mine.html")
    assert said.code == 2 and "--html" in said.err and (tmp_path / "mine.html").read_text() == "notes"


def test_the_page_of_a_folder_lists_its_runs_best_first_and_names_what_is_damaged(runs, tmp_path, capsys):
    (runs[0] / "run.json").write_text("{")
    (runs[2] / "predictions" / "step-000060.json").write_text("{")
    said = command(capsys, "runs", tmp_path, "--html", tmp_path / "list.html")
    assert said.code == 0 and "damaged: " in said.err
    page = page_of(tmp_path / "list.html")
    assert page.charts == [] and len(page.pictures) == 1 and "Differences" not in page.text
    assert page.text.index("bb") < page.text.index("ccc")


def test_runs_of_different_tasks_have_a_table_each_without_the_others_columns(runs, tmp_path, capsys):
    made(tmp_path, "masked", 0.1, task="instance-segmentation")
    assert command(capsys, "runs", tmp_path, "--html", tmp_path / "list.html").code == 0
    first, *others = page_of(tmp_path / "list.html").text.split("Metrics")[1:]
    tables = {("masked" in table, "bb" in table) for table in (first, *others)}
    assert len(others) == 1 and tables == {(True, False), (False, True)}


def test_runs_on_different_data_sets_are_not_ranked_in_one_table(runs, tmp_path, capsys):
    """A copy of a set in another folder, and its folds, are the set."""
    places = ({"hash": "c" * 32, "root": "/cats"}, {"hash": "d" * 32, "root": "/dogs"})
    fold = {"hash": "e" * 32, "root": "/copy", "fold": {"data": "c" * 32, "number": 1, "of": 5}}
    half = {**places[0], "half": "tune"}
    runs.append(made(tmp_path, "dddd", 0.1))
    for run, data in zip(runs, (places[0], places[1], fold, half)):
        facts = json.loads((run / "run.json").read_text())
        del facts[SEAL]
        (run / "run.json").write_text(json.dumps(with_checksum({**facts, "data": data})))
    assert command(capsys, "runs", tmp_path, "--html", tmp_path / "list.html").code == 0
    tables = page_of(tmp_path / "list.html").text.split("Metrics")[1:]
    names = [[run.name for run in runs if f"| {run.name} |" in table] for table in tables]
    assert sorted(names) == [["a", "ccc"], ["bb"], ["dddd"]]
    assert "/dogs" in tables[names.index(["bb"])] and "tune" in tables[names.index(["dddd"])]


def test_a_folder_without_runs_has_a_page(tmp_path, capsys):
    assert command(capsys, "runs", tmp_path, "--html", tmp_path / "list.html").code == 0
    assert "0 runs" in page_of(tmp_path / "list.html").text


def test_equal_runs_have_no_difference_and_letters_go_on():
    facts = {"recipe": {"lr": 0.1, "at": []}, "options": {"output_dir": "x"}, "started": "now"}
    assert find_differences([facts, {**facts, "options": {"output_dir": "y"}, "started": "then"}]) == []
    assert find_differences([facts, {"recipe": {"lr": 0.1}}]) == [("recipe", [("at", ["[]", "-"])])]
    older = {**facts, "options": {"output_dir": "z", "patience": 0}}
    assert find_differences([facts, older]) == []
    assert find_differences([facts, {**older, "options": {"patience": 3}}]) == [("options", [("patience", ["0", "3"])])]
    assert [run_letter(place) for place in (0, 25, 26, 51, 52)] == ["A", "Z", "AA", "AZ", "BA"]

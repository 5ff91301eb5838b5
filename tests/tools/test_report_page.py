"""report.html: tells what happened, whatever happened; needs nothing but itself; trusts no name."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from detected_runs import NAMES, report_of, write_predictions
from html_pages import Page, picture_in
from listed_photos import list_photos
from messages import check_text
from PIL import Image

from paceline._utils.errors import PacelineError
from paceline._utils.formatting import split_run_time
from paceline.config.run import RunRecord
from paceline.tools.report.run_report import get_targets, write_report
from paceline.training.logging.events import EventLog


def make_run(folder: Path, *, status: str | None = "success", steps: int = 60, targets=(("top1", 0.7),)) -> Path:
    """A run folder as training leaves it: an evaluation every 20 steps, top-1 rising by 0.3 each time."""
    photos = folder / "photos"
    photos.mkdir(parents=True)
    facts = {
        **{
            "format": 1,
            "name": "classify-demo",
            "world_size": 2,
            "command": "paceline train classify-demo --output-dir <run>",
        },
        **{"recipe": {"task": "classification", "global_batch_size": 64, "optim": {"lr": 0.1}, "target": targets}},
        **{"system": {"device": "cpu"}, "plan": {"total_steps": 60}, "options": {"data": "photos"}},
        **{
            "versions": {"torch": "2.9.0"},
            "git_commit": "abc123",
            "host": {"name": "lab-07"},
            "data": {"hash": "9f2c", "root": str(photos)},
        },
    }
    (folder / "run.json").write_text(json.dumps(facts))
    log = EventLog(folder / "events.jsonl")
    for step in range(5, steps + 1, 5):
        when = {"step": step, "epoch": step / 20, "seconds": float(2 * step)}
        loss = {"loss": 2 / step, "loss_box": 1 / step, "lr": 0.1}
        log.write("train", **when, **loss, images_per_second=150.0, data_wait=0.01, samples=64 * step)
        if step % 20 == 0:
            top1 = 0.1 + 0.3 * (step // 20 - 1)
            log.write("eval", **when, images=8, eval_seconds=1.5, top1=top1, top5=0.95, eval_loss=1 / step)
    if status:
        reason = {"reason": "non-finite loss at step 61"} if status == "failed" else {}
        log.write("end", step=steps, epoch=steps / 20, seconds=2.0 * steps, status=status, best={}, **reason)
    images = []
    for index in range(8):
        label, answer = index % 3, (index % 3 if index < 5 else (index + 1) % 3)
        Image.fromarray(np.full((60, 90, 3), 30 * index, np.uint8)).save(photos / f"{index}.jpg")
        others = [{"class": other, "score": 0.05} for other in range(3) if other != answer]
        top5 = [{"class": answer, "score": 0.5 + index / 20}, *others]
        images.append({"index": index, "file": f"{index}.jpg", "label": label, "top5": top5})
    list_photos(photos, [image["file"] for image in images])
    write_predictions(folder, {"step": 60, "kind": "classification", "classes": NAMES, "images": images})
    return folder


@pytest.fixture
def no_charts(monkeypatch):
    """Drawing takes most of a report's time; some tests look elsewhere."""
    monkeypatch.setattr("paceline.tools.report.curves.draw_chart", lambda *_, **__: None)


def test_a_finished_run_shows_headline_curves_photos_and_provenance(tmp_path):
    page = report_of(make_run(tmp_path / "run"))
    headline = page.text[: page.text.index("Curves")]
    assert "Target reached" in headline
    for piece in ("best top1", "time to target | 2 min 00 s", "3 epochs | 60 steps", "150 | median, 2 ranks", "1.0%"):
        assert piece in headline
    assert page.charts == [
        *("Loss", "Validation metrics", "Calibration", "Learning rate", "Throughput (images/s)", "Time waiting for data")
    ]
    for piece in ("target 70 %", "loss_box", "8 validation images after step 60", "abc123", "lab-07", "optim.lr | 0.1"):
        assert piece in page.text
    assert len(page.pictures) == 8
    first = picture_in(page.pictures[0])  # the surest wrong one: photo 7
    assert first.size[0] == first.size[1] and abs(np.asarray(first).mean() - 30 * 7) < 2


@pytest.mark.parametrize(
    "status, targets, words",
    [
        ("success", (), "Finished"),
        ("stopped_early", (("top1", 0.99),), "Stopped early"),
        ("ran_out", (("top1", 0.99),), "Target not reached"),
        ("interrupted", (("top1", 0.99),), "Interrupted"),
        ("failed", (("top1", 0.99),), "Failed | run | non-finite loss at step 61"),
        (None, (("top1", 0.99),), "Running or killed"),
    ],
)
def test_a_run_that_ended_otherwise_has_a_report_that_says_so(tmp_path, no_charts, status, targets, words):
    page = report_of(make_run(tmp_path / "run", status=status, targets=targets))
    assert words in page.text
    assert "time to target" not in page.text


def test_a_run_that_went_on_began_when_its_first_command_did(tmp_path, no_charts):
    run = make_run(tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    (run / "run-first.json").write_text(json.dumps({**facts, "started": "2026-01-02T03:04:05+00:00"}))
    (run / "run.json").write_text(json.dumps({**facts, "started": "2026-06-07T08:09:10+00:00"}))
    assert "started 2026-01-02 03:04 UTC" in report_of(run).html
    (run / "run-first.json").write_text("{}")
    assert "started 2026-06-07 08:09 UTC" in report_of(run).html


def test_a_run_killed_before_its_first_event_has_a_report(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    (run / "predictions" / "step-000060.json").unlink()
    page = report_of(run)
    check_text(page.text, "training events")
    assert "abc123" in page.text


@pytest.mark.parametrize("steps", [5, 20])
def test_a_run_of_one_event_or_one_evaluation_has_curves(tmp_path, steps):
    assert len(report_of(make_run(tmp_path / "run", steps=steps, status=None)).charts) == (5 if steps == 5 else 6)


def test_non_finite_numbers_leave_gaps_and_no_damage(tmp_path):
    run = make_run(tmp_path / "run", status=None)
    log = EventLog(run / "events.jsonl")
    facts = {"lr": 0.1, "images_per_second": 1.0, "data_wait": 0.0, "samples": 1}
    log.write("train", step=65, epoch=3.2, seconds=130.0, loss=math.nan, loss_box=math.inf, **facts)
    log.write("eval", step=65, epoch=3.2, seconds=130.0, images=8, eval_seconds=1.0, top1=math.nan)
    html = write_report(run).read_text()
    assert "Infinity" not in html and "NaN" not in html
    assert "top1" in html


def test_names_from_other_people_are_text_and_never_markup(tmp_path, no_charts):
    page = report_of(make_run(tmp_path / "run"))
    assert NAMES[2] in page.words and page.html.count("<script") == 1
    assert "--output-dir &lt;run&gt;" in page.html


def test_names_that_are_no_text_are_shown_with_a_sign_in_their_place(tmp_path, no_charts):
    run = make_run(tmp_path / "run")
    path = run / "predictions" / "step-000060.json"
    found = json.loads(path.read_text())
    name = os.fsdecode(b"caf\xe9")
    (run / "photos" / "7.jpg").rename(run / "photos" / f"{name}.jpg")
    found["images"][7]["file"] = f"{name}.jpg"
    write_predictions(run, {**found, "classes": [*NAMES[:2], name]})
    assert "caf?" in report_of(run).text


def test_the_page_asks_the_network_for_nothing_and_its_ids_are_unique(tmp_path):
    page = report_of(make_run(tmp_path / "run"))  # which looks at every link
    assert len(page.html) < 2_000_000 and any("id" in attributes for _, attributes in page.tags)


def test_photos_that_have_moved_are_named_and_the_rest_is_shown(tmp_path, no_charts):
    run = make_run(tmp_path / "run")
    (run / "photos" / "7.jpg").unlink()
    (run / "photos" / "6.jpg").write_bytes(b"not a photo")
    page = report_of(run)
    assert page.text.count("not found") == 2
    assert len(page.pictures) == 6


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"kind": "classification", "images": [{}], "classes": [], "step": 1}']
)
def test_damaged_predictions_cost_the_photos_alone_and_are_named(tmp_path, no_charts, damage):
    run = make_run(tmp_path / "run")
    (run / "predictions" / "step-000060.json").write_bytes(damage)
    page = report_of(run)
    assert "predictions/step-000060.json" in page.text
    assert "Target reached" in page.text


def test_the_newest_predictions_are_shown(tmp_path, no_charts):
    run = make_run(tmp_path / "run")
    write_predictions(run, {"step": 80, "kind": "classification", "classes": ["a"], "images": []})
    assert "0 validation images" in report_of(run).text


def test_where_the_time_went_adds_up_to_the_run_s_time_and_names_what_is_left(tmp_path, no_charts):
    def event(kind: str, seconds: float, **facts: object) -> dict[str, object]:
        return {"event": kind, "seconds": seconds, **facts}

    step = {"forward": 0.5, "backward": 0.25}
    events = [
        event("warm_up", 3.0, warm_up_seconds=3.0),
        event("train", 13.0, step=10, samples=80, images_per_second=8.0, data_wait=0.1, step_seconds=step),
        event("eval", 15.0, eval_seconds=2.0),
        event("train", 26.0, step=20, samples=160, images_per_second=8.0, data_wait=0.2, step_seconds=step),
        event("end", 28.0),
    ]
    spent = dict(split_run_time(events))
    assert spent == pytest.approx(
        {"forward": 10.0, "backward": 5.0, "waiting for data": 3.0, "warm-up": 3.0, "evaluations": 2.0,
         "other parts of steps": 2.0, "other: start, checkpoints, images": 3.0}
    )  # fmt: skip
    assert next(iter(spent)) == "forward" and list(spent)[-1].startswith("other: ")
    assert split_run_time([]) == [] and split_run_time(events[:1]) == [("warm-up", 3.0)]
    assert "Time by activity" in report_of(make_run(tmp_path / "run")).text


def test_targets_are_those_of_the_runs_own_recipe():
    assert get_targets(RunRecord(recipe={"target": [["top1", 0.7]]})) == {"top1": 0.7}
    assert get_targets(RunRecord(recipe={"target": []})) == get_targets(RunRecord()) == {}


def test_a_folder_without_a_run_is_a_users_error(tmp_path):
    with pytest.raises(PacelineError, match=r"run\.json not found"):
        write_report(tmp_path)


def test_a_second_report_replaces_the_first_and_leaves_nothing_else(tmp_path):
    run = make_run(tmp_path / "run")
    before = {path.name for path in run.iterdir()}
    assert write_report(run).read_bytes() == write_report(run).read_bytes()
    assert {path.name for path in run.iterdir()} == before | {"report.html"}


def test_a_browser_shows_the_page_without_an_error_and_hovering_tells_the_values(tmp_path, need_program):
    chromium = need_program("chromium", "chromium")
    html = write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    hover = """<script>const plot = document.querySelectorAll(".plot")[1], box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 30, clientY: box.top}));</script>"""
    page = tmp_path / "hover.html"
    page.write_text(html.replace("</body>", hover + "</body>"), encoding="utf-8")
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    headless = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--enable-logging=stderr"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [chromium, *headless, *quiet, profile, "--window-size=1280,2400", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # Without a network Chromium itself notes that the network is slow.
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "Slow network is detected" not in line]
    assert console == []
    shown = Page(done.stdout)
    assert "step 60, epoch 3.00, 2 min 00 s | top1 70.00 % | top5 95.00 %" in shown.text

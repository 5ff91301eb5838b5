"""The gallery: which errors it shows, where in the photo they lie, and that the page filters them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from browser import browser
from detected_runs import HERE, NAMES, THERE, image_of, make_run, predictions_of, report_of, write_predictions
from example_counts import examples
from html_pages import picture_in
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paceline.models.metrics.detection_errors import classify_errors
from paceline.tools.report.detection_results import read_detections
from paceline.tools.report.gallery import (
    MAX_OF_A_KIND,
    MAX_OF_A_PHOTO,
    MIN_REGION,
    WORDS,
    _region,
    choose_errors,
    error_tiles,
)

FAR, WIDE = (60, 50, 20, 20), (10, 10, 20, 45)
# One error of each kind: the last two objects are missed, one of them where a box of another class lies badly.
PLANTED = image_of(
    0,
    [
        *((HERE, 1, 0.95), (HERE, 1, 0.9), (THERE, 2, 0.8), ((0, 60, 15, 15), 1, 0.7)),
        *(((62, 64, 20, 20), 3, 0.6), ((80, 10, 12, 20), 2, 0.5)),
    ],
    [(HERE, 1, 0), (THERE, 1, 0), (FAR, 3, 0), ((82, 10, 18, 6), 1, 0)],
)


def tiles_of(images, root=Path("/nowhere")):
    found = read_detections(predictions_of(images), root)
    return error_tiles(found, classify_errors(found.truth, found.boxes), ["cat", "dog", "cow"], "ignore")


def test_each_kind_has_a_tile_that_names_what_is_wrong():
    tiles = {tile.kind: tile for tile in tiles_of([PLANTED])}
    assert set(tiles) == set(WORDS)
    said = {kind: (tile.about, tile.name, tile.more, tile.pair, tile.classes, tile.score) for kind, tile in tiles.items()}
    assert said["classification"] == ("wrong class, 0.80, IoU 1.00", "dog", "label: cat", "1-2", (1, 2), 0.8)
    assert said["duplicate"] == ("duplicate, 0.90, IoU 1.00", "cat", "", "", (1,), 0.9)
    assert said["background"] == ("false positive, 0.70", "cat", "", "0-1", (1,), 0.7)
    assert said["localisation"][0].startswith("inaccurate box, 0.60, IoU 0.1")
    assert said["missed"] == ("missed, 18 x 6 px", "cat", "", "1-0", (1,), None)


def test_no_kind_no_photo_and_no_class_fills_the_gallery():
    sure = [((8 * place, 30, 10, 10), 1, 0.9 - place / 100) for place in range(8)]
    images = [image_of(index, sure if not index else [((9, 9, 20, 20), 1, 0.5 - index / 100)], []) for index in range(30)]
    images.append(image_of(30, [(HERE, 2, 0.05)], []))
    found = read_detections(predictions_of(images), Path())
    chosen = choose_errors(found, classify_errors(found.truth, found.boxes))
    assert len(chosen) == MAX_OF_A_KIND and {error.kind for error in chosen} == {"background"}
    photos = [error.photo for error in chosen]
    assert Counter(photos)[0] == MAX_OF_A_PHOTO and photos[:4] == [0, 30, 0, 1]  # the rare class has its turn
    assert tiles_of([image_of(0, [], [])]) == [] and tiles_of([]) == []


def test_a_tile_shows_the_part_of_the_photo_around_its_box_whatever_the_stored_photo_s_size(tmp_path):
    (tmp_path / "val").mkdir()
    photo = np.full((320, 400, 3), 40, np.uint8)  # four times the size that the annotations name
    photo[4 * 30 : 4 * 50, 4 * 40 : 4 * 60] = 250
    Image.fromarray(photo).save(tmp_path / "val" / "0.jpg")
    (tile,) = tiles_of([image_of(0, [], [((40, 30, 20, 20), 1, 0)])], tmp_path)
    colored = np.asarray(picture_in(tile.photo)).astype(int)
    picture, side = colored.mean(axis=2), len(colored)
    frame = np.argwhere(colored[..., 0] - colored[..., 2] > 90) / side  # in the color of cats, around the box
    assert (frame.min(axis=0) > 0.28).all() and (frame.max(axis=0) < 0.72).all() and len(frame) > side / 2
    inner = slice(round(side * 0.36), round(side * 0.64))  # the box is 20 of MIN_REGION pixels wide, in the middle
    assert MIN_REGION == 56 and picture[inner, inner].mean() > 230
    edge = round(side * 0.28)
    assert picture[:edge].mean() < 60 and picture[:, :edge].mean() < 60 and picture[-edge:].mean() < 60


@examples(60)
@given(
    st.lists(st.tuples(*[st.floats(-30, 150)] * 2, *[st.floats(0, 200)] * 2), min_size=1, max_size=3),
    *[st.integers(1, 120)] * 2,
)
def test_a_region_lies_in_the_photo_and_holds_what_of_the_boxes_does(boxes, width, height):
    left, top, right, bottom = _region(boxes, width, height)
    assert left >= 0 and top >= 0 and right <= width + 1e-9 and bottom <= height + 1e-9 and right > left and bottom > top
    for x, y, wide, high in boxes:
        seen = max(x, 0), max(y, 0), min(x + wide, width), min(y + high, height)
        if seen[2] - seen[0] > 1 and seen[3] - seen[1] > 1:
            assert left <= seen[0] + 1e-6 and top <= seen[1] + 1e-6 and right >= seen[2] - 1e-6 and bottom >= seen[3] - 1e-6


@pytest.fixture
def run(tmp_path) -> Path:
    empty = image_of(1, [], [])
    run = make_run(tmp_path, "ssd", {}, lambda step: {"box_ap": step / 100}, [PLANTED, empty])
    best = {"iou": 0.5, "threshold": 0.4, "f1": 0.5, "precision": 0.5, "recall": 0.5}
    write_predictions(run, {**predictions_of([PLANTED, empty]), "best_f1": best})
    return run


def test_kinds_stand_in_the_page_with_their_costs_dearest_first(run):
    page = report_of(run)
    rows = page.text[page.text.index("Error types") : page.text.index("TIDE")]
    assert all(words in rows for words in WORDS.values())
    gains = [float(piece) for piece in rows.split(" | ") if piece.startswith("+")]
    assert len(gains) == 6 and gains == sorted(gains, reverse=True) and gains[0] > 1


@pytest.mark.nightly("a browser opens a page")
def test_in_a_browser_tables_sort_the_gallery_filters_and_keys_reach_all(run, tmp_path, need_program):
    report_of(run)
    with browser(need_program("chromium", "chromium"), tmp_path / "profile") as page:
        page.open((run / "report.html").as_uri(), width=390)
        page.wait("document.readyState === 'complete'")
        assert page.eval("document.documentElement.scrollWidth") == 390
        shown = "[...document.querySelectorAll('.gallery figure:not([hidden])')].map(one => one.dataset.kind)"
        assert len(page.eval(shown)) > 3
        page.eval("{const form = document.querySelector('.gallery form'); form.elements.kind.value = 'missed';"
                  "form.dispatchEvent(new Event('input')); 1}")  # fmt: skip
        page.eval("document.querySelector('[name=kind]').dispatchEvent(new Event('input', {bubbles: true}))")
        assert set(page.eval(shown)) == {"missed"}
        page.eval("document.querySelector('[data-show-kind=classification] button').click()")
        assert set(page.eval(shown)) == {"classification"}
        heads = "document.querySelector('table.sortable').tHead.rows[1].cells"
        first = "document.querySelector('table.sortable').tBodies[0].rows[0].cells[0].textContent"
        assert page.eval(first) == NAMES[2]
        page.eval(f"{heads}[0].querySelector('button').focus()")
        page.press("Enter", 13)
        assert page.eval(f"[{heads}[0].getAttribute('aria-sort'), {first}]") == ["ascending", NAMES[2]]
        page.press("Enter", 13)
        assert page.eval(first) == "cat"
        page.eval("document.querySelector('.plot').focus()")
        page.press("Home", 36)
        assert "step 20" in page.eval("document.querySelector('.plot .tip').textContent")
        page.press("ArrowRight", 39)
        assert "step 40" in page.eval("document.querySelector('.plot .tip').textContent")
        page.eval("document.querySelector('.gallery figure:not([hidden]) img').focus()")
        page.press("Enter", 13)
        assert page.eval("document.querySelector('dialog').open")
        page.press("Escape", 27)
        assert page.errors == []

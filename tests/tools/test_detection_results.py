"""What the report tells of a detector: which photos, what counts as found, tables, curves, confusions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from detected_runs import (
    HERE,
    NAMES,
    THERE,
    TWELVE,
    image_of,
    make_run,
    predictions_of,
    report_of,
    scenes_of,
    write_predictions,
)
from example_counts import examples
from html_pages import picture_in
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text
from PIL import Image

from paceline.models.metrics.detection_errors import confusion_matrix
from paceline.tools.report import detection_results as scene_pictures
from paceline.tools.report.curves import class_table, draw_curves, read_curves
from paceline.tools.report.detection_results import (
    ImageComparison,
    add_rendered_images,
    read_detections,
    select_worst_and_best,
)
from paceline.tools.report.gallery import format_confusion_matrix, list_mistakes
from paceline.tools.report.run_report import write_report

BEST = {"iou": 0.5, "threshold": 0.55, "f1": 0.8, "precision": 1.0, "recall": 2 / 3}


def scene(found=(), truth=(), file="x.jpg") -> ImageComparison:
    """found: (box, label, score) best first; truth: (box, label, crowd)."""
    return ImageComparison(
        file, 100, 80,
        np.array([box for box, _, _ in found], float).reshape(-1, 4),
        np.array([label for _, label, _ in found], int),
        np.array([score for _, _, score in found], float),
        np.array([box for box, _, _ in truth], float).reshape(-1, 4),
        np.array([label for _, label, _ in truth], int),
        np.array([crowd for _, _, crowd in truth], bool),
    )  # fmt: skip


@pytest.mark.parametrize(
    "found, truth, counts, quality",
    [
        ([], [], (0, 0, 0), None),
        ([], [(HERE, 1, 0)], (0, 1, 0), 0.0),
        ([(HERE, 1, 0.9)], [], (0, 0, 1), 0.0),
        ([(HERE, 1, 0.9)], [(HERE, 1, 0)], (1, 1, 0), 1.0),
        ([(HERE, 2, 0.9)], [(HERE, 1, 0)], (0, 1, 1), 0.0),  # another class
        ([(HERE, 1, 0.29)], [(HERE, 1, 0)], (0, 1, 0), 0.0),  # too unsure to count, either way
        ([(HERE, 1, 0.9), (HERE, 1, 0.8)], [(HERE, 1, 0)], (1, 1, 1), 2 / 3),  # twice the same
        ([(HERE, 1, 0.9), (THERE, 1, 0.8)], [(HERE, 1, 0), (THERE, 1, 0)], (2, 2, 0), 1.0),
        ([((12, 12, 6, 6), 1, 0.9)], [((0, 0, 50, 50), 1, 1)], (0, 0, 0), None),  # inside a crowd: not held against it
        ([((12, 12, 6, 6), 2, 0.9)], [((0, 0, 50, 50), 1, 1)], (0, 0, 1), 0.0),  # but of another class it is
        ([((10, 10, 20, 9.9), 1, 0.9)], [(HERE, 1, 0)], (0, 1, 1), 0.0),  # IoU just below one half
        ([((10, 10, 20, 10), 1, 0.9)], [(HERE, 1, 0)], (1, 1, 0), 1.0),
    ],
)
def test_what_counts_as_found(found, truth, counts, quality):
    one = scene(found, truth)
    assert one.counts == counts
    assert one.quality == (None if quality is None else pytest.approx(quality))


def iou(one, other) -> float:
    wide = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    high = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    shared = max(wide, 0) * max(high, 0)
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)


box = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20))
label = st.integers(1, 3)
scenes = st.builds(
    lambda found, truth: scene(sorted(found, key=lambda one: -one[2]), truth),
    st.lists(st.tuples(box, label, st.sampled_from([0.1, 0.3, 0.5, 0.9])), max_size=6),
    st.lists(st.tuples(box, label, st.sampled_from([0, 0, 0, 1])), max_size=6),
)


@examples(150)
@given(scenes)
def test_matching_agrees_with_the_obvious_loop(one):
    free = [not crowd for crowd in one.crowd]
    for number, partner in enumerate(one.partners):
        best, overlap_of_best = -1, 0.5
        for other in range(len(one.truth)):
            overlap = iou(one.boxes[number], one.truth[other])
            better = overlap > overlap_of_best or (best < 0 and overlap >= 0.5)
            if better and free[other] and one.labels[number] == one.truth_labels[other]:
                best, overlap_of_best = other, overlap
        if one.scores[number] < 0.3:
            best = -1
        assert partner == best if best >= 0 else partner < 0
        if best >= 0:
            free[best] = False


@examples(80)
@given(st.lists(scenes, max_size=12), st.integers(1, 5))
def test_worst_and_best_are_the_ends_of_the_ranking_and_share_no_photo(group, most):
    group = [ImageComparison(f"{place:02d}", *list(vars(one).values())[1:9]) for place, one in enumerate(group)]
    worst, best = select_worst_and_best(group, most, most)
    rated = sorted((one.quality, one.file) for one in group if one.quality is not None)
    assert [(one.quality, one.file) for one in worst] == rated[: len(worst)]
    assert [one.quality for one in best] == sorted((one.quality for one in best), reverse=True)
    assert {one.file for one in worst}.isdisjoint(one.file for one in best)
    assert len(worst) <= most and len(best) <= most
    assert all(one.quality < 1 for one in worst) and all(one.quality > 0 for one in best)
    if best and best[0].quality < 1:
        assert all(one.quality <= best[0].quality for one in group if one.quality is not None)


def test_equal_photos_are_shown_in_the_order_of_their_names():
    right = [scene([(HERE, 1, 0.9)], [(HERE, 1, 0)], file) for file in "dbca"]
    wrong = [scene([], [(HERE, 1, 0)], file) for file in "zxwy"]
    worst, best = select_worst_and_best(right + wrong, 3, 3)
    assert [one.file for one in worst] == ["w", "x", "y"] and [one.file for one in best] == ["a", "b", "c"]


def test_mistakes_leave_out_background_and_tell_the_share_of_the_class():
    counts = np.array([[0, 9, 9], [5, 3, 2], [0, 1, 1]])
    assert list_mistakes(counts, ["a", "b"], 9) == [("a", "b", 2, 0.2, "1-2"), ("b", "a", 1, 0.5, "2-1")]
    assert list_mistakes(counts, ["a", "b"], 1) == [("a", "b", 2, 0.2, "1-2")]
    (_, first), _, (name, last) = format_confusion_matrix(counts, ["a", "b"])
    assert first == [("3", 0.3, "good", ""), ("2", 0.2, "bad", "1-2"), ("5", 0.5, "bad", "1-0")]
    assert name == "no object" and last[2][0] == ""


def test_scenes_hold_the_sure_boxes_or_where_there_are_none_the_three_best():
    unsure = [(HERE, 1, score) for score in (0.29, 0.2, 0.1, 0.05)]
    first, second, third = scenes_of(
        predictions_of([image_of(0, [(HERE, 1, 0.3), *unsure], []), image_of(1, unsure, []), image_of(2, [], [])]),
        Path("/photos"),
    )
    assert first.scores.tolist() == [0.3] and second.scores.tolist() == [0.29, 0.2, 0.1]
    assert third.boxes.shape == third.truth.shape == (0, 4)
    assert first.file == "/photos/val/0.jpg"


def test_the_class_table_leaves_out_classes_without_objects_and_starts_with_the_worst():
    rows = class_table(predictions_of([]))
    assert [(row["name"], row["ap"], row["ap50"], row["ar100"], row["objects"]) for row in rows] == [
        (NAMES[2], 0.25, 0.5, 0.3, 2),
        ("cat", 0.5, 0.75, 0.6, 6),
    ]


@pytest.mark.parametrize("classes, drawn", [(0, 0), (1, 1), (2, 3), (5, 6), (80, 6)])
def test_curves_are_the_mean_and_a_choice_from_best_to_worst(classes, drawn):
    names = [f"class {number}" for number in range(classes)]
    curve = [0.5] * 101
    curves = read_curves(
        {
            "per_class": [
                {"name": name, "ap": place / 100, "ap50": 0.5, "ar100": 0.5, "objects": 1}
                for place, name in enumerate(names)
            ],
            "curves": {
                **{"iou": 0.5, "recall": [place / 100 for place in range(101)], "mean": curve},
                "classes": dict.fromkeys(names, curve),
            },
        },
        "box",
    )
    chart = draw_curves(curves)
    if not drawn:
        assert chart is None
        return
    shown = [line["name"] for line in chart.hover["lines"]]
    assert len(shown) == drawn == len(set(shown))
    if classes > 1:
        assert (shown[0], shown[1], shown[-1]) == ("mean", names[-1], names[0])
        assert chart.hover["lines"][0]["points"][30][2:] == ["0.500", "recall 0.30"]


def test_a_picture_has_predictions_left_and_annotations_right_whatever_the_stored_photos_size(tmp_path):
    Image.new("RGB", (200, 160), (90, 90, 90)).save(tmp_path / "x.jpg")  # twice the size that the annotations name
    found = scene([((0, 0, 50, 80), 1, 0.9)], [((50, 0, 50, 80), 2, 0)], str(tmp_path / "x.jpg"))
    ((_, picture),) = add_rendered_images([found], ["", ""], "ignore")
    picture = np.asarray(picture_in(picture)).astype(int)
    assert picture.shape[0] == 300 and picture.shape[1] == 2 * 375 + 6
    plain = np.abs(picture - 90).sum(axis=-1) < 30
    half = picture.shape[1] // 2
    # The left photo's right part and the right photo's left part have no frame in them.
    assert plain[:, 200 : half - 10].mean() > 0.97 and plain[:, half + 10 : half + 180].mean() > 0.97
    assert plain[20:-20, 10:178].mean() > 0.9 and not plain[:, 2:6].all() and not plain[:, -6:-2].all()


def test_a_box_without_counterpart_is_dashed_on_its_side(tmp_path, monkeypatch):
    Image.new("RGB", (100, 80)).save(tmp_path / "x.jpg")
    drawn = []
    monkeypatch.setattr(
        scene_pictures, "draw_side_by_side", lambda photo, left, right, **_: drawn.append((left, right)) or photo
    )
    found = [(HERE, 1, 0.9), (HERE, 2, 0.5)]
    truth = [(HERE, 1, 0), (THERE, 2, 0), ((0, 40, 90, 40), 2, 1)]
    add_rendered_images([scene(found, truth, str(tmp_path / "x.jpg"))], ["cat", "dog"], "ignore")
    ((left, right),) = drawn
    assert [(mark.text, mark.line) for mark in left] == [("cat 0.90", "solid"), ("dog 0.50", "dashed")]
    assert [(mark.text, mark.line) for mark in right] == [
        *(("dog (crowd)", "solid"), ("cat", "solid"), ("dog", "dashed"))  # the largest first
    ]


# The page ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished detection run of four photos, with an evaluation whose small objects do not exist."""

    def values(step: int) -> dict[str, float]:
        return {f"box_{name}": -1.0 if "small" in name else step / 150 for name in TWELVE}

    images = []
    for index in range(4):
        found = [(HERE, 1 + index // 3, 0.9), (THERE, 3, 0.8 if index < 2 else 0.1)]
        images.append(image_of(index, found, [(HERE, 1, 0), (THERE, 3, 0)] if index else [(HERE, 1, 0)]))
    run = make_run(tmp_path, "ssd", {"box_ap": 0.4}, values, images)
    write_predictions(run, {**predictions_of(images), "best_f1": {**BEST, "threshold": 0.3}})
    return run


def test_the_page_of_a_detector_shows_scores_photos_curves_and_confusions(run):
    page = report_of(run)
    assert page.charts[1:5] == [
        *(
            "Validation metrics",
            "Precision, recall, and F1 by score threshold",
            "Precision-recall curve at IoU 0.5",
            "Calibration",
        )
    ]
    for piece in (
        *("best box AP | 40.0 | target 40, epoch 3", "Target reached", "4 validation images after step 60"),
        *(
            "1 of 1 | objects found, 1 false positive | F1 0.67",
            "2 of 2 | objects found | F1 1.00",
            "0 of 2 | objects found, 1 false positive",
        ),
        *("Average precision by class", "1 classes without objects", "Confusion matrix", "no object", "n/a"),
    ):
        assert piece in page.text, piece
    assert len(page.pictures) == 4 + 4  # a false alarm, a confusion, and two missed objects
    assert NAMES[2] in page.words and page.html.count("<script") == 1


def test_every_chart_has_its_own_hover_points(run):
    page = report_of(run)
    listed = json.loads(
        next(row for row in page.html.splitlines() if row.startswith("const charts"))[len("const charts = ") : -1]
    )
    assert len(listed) == len(page.all("div", class_="plot")) == 8
    assert [line["name"] for line in listed[1]["lines"]] == ["box AP", "box AP50", "box AP75"]
    assert [line["name"] for line in listed[3]["lines"]] == ["mean", "cat", NAMES[2]]


def test_the_table_of_classes_has_ap_by_size_where_the_file_has_it(run):
    path = run / "predictions" / "step-000060.json"
    content = json.loads(path.read_text())
    assert "small | medium" not in report_of(run).text
    content["per_class"][0].update(ap_small=-1.0, ap_medium=0.125, ap_large=0.75)
    content["per_class"][2].update(ap_small=0.25, ap_medium=0.5, ap_large=0.875)
    write_predictions(run, content)
    text = report_of(run).text
    assert "AP | AP50 | AR100 | small | medium | large | objects" in text
    assert "cat | 50.0 | 75.0 | 60.0 | n/a | 12.5 | 75.0 | 6" in text


def test_photos_that_have_moved_leave_a_note_in_their_place(run, tmp_path):
    (tmp_path / "data" / "val" / "1.jpg").unlink()
    (tmp_path / "data" / "val" / "2.jpg").write_bytes(b"not a photo")
    page = report_of(run)
    gone = [figure["title"] for figure in page.all("figure") if figure["title"].endswith(("1.jpg", "2.jpg"))]
    assert page.text.count("not found") == len(gone) > 2
    assert len(page.pictures) == len(page.all("figure")) - len(gone) > 2


def test_a_run_without_any_image_or_object_has_a_page(run):
    content = predictions_of([])
    content["per_class"] = [dict(row, ap=-1.0, objects=0) for row in content["per_class"]]
    write_predictions(run, content)
    text = report_of(run).text
    assert "0 validation images" in text and "readable" not in text
    assert "Precision-recall" not in text


def test_where_a_threshold_was_chosen_by_f1_pictures_and_tables_count_from_it_and_the_page_says_so(run):
    images = [image_of(0, [(HERE, 1, 0.6), (THERE, 1, 0.5)], [(HERE, 1, 0), (THERE, 1, 0)])]
    content = {**predictions_of(images), "best_f1": BEST}
    for row in content["per_class"]:
        row["f1"] = -1.0 if row["name"] == "dog" else 0.625
    (one,) = scenes_of(content, Path())
    assert one.counts == (1, 2, 0) and one.scores.tolist() == [0.6]
    found = read_detections(content, Path())
    assert confusion_matrix(found.truth, found.boxes, score=0.55)[1].tolist() == [1, 1, 0, 0]
    write_predictions(run, content)
    text = report_of(run).text
    for wanted in ("a score of 0.55 or more", "0.800, with precision 1.000 and recall", "chosen on these images", "62.5"):
        assert wanted in text, wanted
    write_predictions(run, predictions_of(images))  # of a run that did not choose one: the report does
    text = report_of(run).text
    assert "of 0.5 or more" in text and "best F1" in text and check_text(text, "1.000")
    write_predictions(run, predictions_of([image_of(0, [], [(HERE, 1, 0)])]))
    text = report_of(run).text
    assert check_text(text, "0 of 1 objects", "of 0.3") and "best F1" not in text


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(
    "damage",
    [
        *({"per_class": None}, {"curves": {}}, {"images": [{"file": "x"}]}, {"classes": []}, {"step": None}),
        {"images": [image_of(0, [(HERE, 9, 0.9)], [])]},  # of no class
        {"images": [image_of(0, [((0, 0, float("nan"), 9), 1, 0.9)], [])]},
        *({"best_f1": best} for best in (None, {}, {**BEST, "threshold": 7}, {**BEST, "f1": "x"}, {**BEST, "recall": -1})),
        *({"images": [{**image_of(0, [(HERE, 1, 0.9)], []), "scores": scores}]} for scores in ([], [[0.9]] * 3)),
        *({"images": [{**image_of(0, [(HERE, 1, 0.9)], [(HERE, 1, 0)]), side: 0}]} for side in ("width", "height")),
        {"images": [image_of(0, [(HERE, 1, 0.9)], []), {**image_of(1, [(HERE, 1, 0.9)], []), "scores": [[0.9]]}]},
    ],
)
def test_damaged_predictions_cost_their_section_alone_and_are_named(run, damage):
    content = predictions_of([image_of(0, [(HERE, 1, 0.9)], [(HERE, 2, 0)])])
    write_predictions(run, {**content, **damage})
    text = report_of(run).text
    assert "predictions/step-000060.json" in text and "Target reached" in text


@pytest.mark.parametrize("name", ["confusion_matrix", "add_rendered_images", "draw_curves", "error_tiles"])
def test_a_mistake_of_ours_is_not_called_damage(run, monkeypatch, name):
    monkeypatch.setattr(f"paceline.tools.report.prediction_section.{name}", lambda *_, **__: {}["no such key"])
    with pytest.raises(KeyError, match="no such key"):
        write_report(run)

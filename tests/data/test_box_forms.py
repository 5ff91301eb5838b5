"""Boxes in another form than x, y, width, height in pixels are guessed from most of them, and good sets are left in peace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, document, make_set, write_json

from paceline._utils.reporter import Lines
from paceline.cli.printing import format_prepared
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.box_source import prepare_boxes
from paceline.tools.report.prepare_notes import prepare_lines

Form = Callable[[float, float, float, float], list[float]]
FORMS: dict[str, Form] = {
    "like x1 y1 x2 y2": lambda x, y, w, h: [x, y, x + w, y + h],
    "fractions of the image": lambda x, y, w, h: [x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT],
}


def boxes_in(form: Form | None, root, good: int = 0):
    """A set of 24 boxes each side, all but the first `good` in another form."""
    make_set(root)
    for split in ("train", "val"):
        random = np.random.default_rng(len(split))
        objects = []
        for number in range(24):
            w, h = random.uniform(2, 12), random.uniform(2, 10)
            x, y = random.uniform(0, WIDTH - w), random.uniform(0, HEIGHT - h)
            objects.append(box(1 + number % 2, 7, *([x, y, w, h] if form is None or number < good else form(x, y, w, h))))
        objects.append(box(2, 3, 2, 2, 9, 9))
        write_json(root, split, document([1, 2], objects))
    return root


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("good", [0, 5])
def test_most_boxes_in_another_form_are_named_with_a_guess(tmp_path, form, good):
    root, said = boxes_in(FORMS[form], tmp_path / "set", good), []
    prepare_if_needed(root, kind="boxes", reporter=Lines(said.append, format_prepared))
    for lines in (said, list(prepare_lines(prepare_boxes(root)))):
        guesses = [line for line in lines if "look like" in line]
        assert len(guesses) == 1 and guesses[0].startswith("warning: ") and form in guesses[0]


def test_good_boxes_are_not_guessed_at(tmp_path, shared_data):
    assert not any("look like" in line for line in prepare_lines(prepare_boxes(boxes_in(None, tmp_path / "set"))))
    for name in ("bccd3", "coco_mini"):
        manifest = prepare_boxes(shared_data / name, out=tmp_path / name)
        assert not any("look like" in line or "warning: Masks" in line for line in prepare_lines(manifest))

"""Instances through the command line: preview's masks lie where crop and flip have put them, eval tells boxes from masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import command

from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.shapes.render import render_shapes
from paceline.inference.drawing import boxes as samples


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "set"
    render_shapes("boxes", folder, train=8, val=2, side=96, processes=1)
    prepare_if_needed(folder, kind="boxes")  # its check page draws pictures too
    return folder


def test_masks_fill_their_boxes_whatever_crop_and_flip_did(pictures, tmp_path, capsys, monkeypatch):
    drawn = []
    real = samples.draw_annotations
    monkeypatch.setattr(samples, "draw_annotations", lambda *args, **more: drawn.append(args) or real(*args, **more))
    out = tmp_path / "mosaic.png"
    flags = ["--data", pictures, "--output", out, "--num-images", 8, "--columns", 4, "--input.min-crop-scale", 0.6]
    said = command(capsys, "preview", "maskrcnn-demo", *flags)
    assert said.code == 0 and "8 training images" in said.out, said
    with Image.open(out) as picture:
        assert picture.width > 4 * 200
    assert len(drawn) == 8
    near = []
    for photo, marks in drawn:
        for mark in marks:
            rows, columns = (np.flatnonzero(mark.mask.any(axis=axis)) for axis in (1, 0))
            assert mark.mask.shape == photo.shape[:2]
            left, top, width, height = mark.box
            found = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
            apart = np.abs(np.array(found) - (left, top, left + width, top + height)).max()
            near.append(apart <= 3 + 0.05 * max(width, height))
    # An object that another one hides in part has a larger box than what is left of its mask.
    assert len(near) >= 8 and np.mean(near) > 0.8

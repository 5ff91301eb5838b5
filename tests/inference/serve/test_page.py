"""The page in a real browser: a photo is dropped, what was found is seen, filtered and saved, by mouse and by keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import CAMERA, Browser, browser
from serving import Served, served

import paceline
from paceline.inference.drawing.boxes import class_color
from paceline.inference.trained_model import TorchPredictor

READY = "document.body?.dataset.ready"
SHOWN = "photos.length && shown && !document.querySelector('#canvas').hidden"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[Browser]:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed (Debian package chromium)")
    with browser(chromium, tmp_path_factory.mktemp("profile"), *CAMERA) as one:
        yield one


@pytest.fixture(scope="module")
def ssd(ssd_run) -> Iterator[tuple[Served, TorchPredictor, list[Path]]]:
    predictor = paceline.load(ssd_run.folder)
    with served(predictor, max_batch_size=1) as service:
        yield service, predictor, photos_of(ssd_run)


def photos_of(run) -> list[Path]:
    return [path for path in sorted(run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png")][:3]


def test_a_dropped_photo_shows_its_boxes_and_the_slider_and_the_classes_choose_among_them(page, ssd):
    service, predictor, photos = ssd
    page.open(service.url)
    page.wait(READY)
    page.drop("#view", photos[0])
    page.wait(SHOWN)
    found = predictor.predict(photos[0])

    def expected(least: float, *without: str) -> int:
        return sum(round(score, 5) >= least and name not in without for score, name in zip(found.scores, found.names))

    def listed() -> int:
        return int(page.eval("document.querySelector('#count').innerText").split()[0])

    begins = page.eval("threshold(model.threshold), least()")
    assert begins == pytest.approx(predictor.best_f1().get("threshold", 0.3), abs=0.005)
    page.eval("document.querySelector('#threshold').focus()")
    page.press("Home", 36)  # the slider's least value
    assert listed() == expected(0) > 0
    middle = round(sorted(found.scores)[len(found.scores) // 2], 2)
    page.eval(f"$('threshold').value = {middle}, $('threshold').dispatchEvent(new Event('input'))")
    assert listed() == expected(middle) < expected(0)
    page.press("Home", 36)
    first = page.eval("document.querySelector('#classes li').dataset.name")
    page.eval("document.querySelector('#classes input').focus()")
    page.press(" ", 32)
    assert listed() == expected(0, first) < expected(0)
    page.eval("document.querySelector('[data-do=all]').click()")
    assert listed() == expected(0)
    page.press("Home", 36)
    # The best object's frame has its class's color: where its left edge is, or right beside it.
    page.eval("light(0)")
    box, wide = found.boxes_xyxy[0], page.eval("document.querySelector('#canvas').width") / found.width
    x, y = max(0.0, box[0]) * wide, (max(0.0, box[1]) + min(found.height, box[3])) / 2 * wide
    row = page.eval(
        f"[...document.querySelector('#canvas').getContext('2d').getImageData({x:.0f} - 4, {y:.0f}, 9, 1).data]"
    )
    pixels = np.array(row).reshape(-1, 4)[:, :3]
    assert np.abs(pixels - class_color(found.class_ids[0] + 1)).sum(axis=1).min() < 60
    assert page.errors == []


def test_the_masks_on_the_page_are_those_of_the_answer_pixel_for_pixel(page, maskrcnn_run):
    predictor = paceline.load(maskrcnn_run.folder)
    photo = photos_of(maskrcnn_run)[0]
    found = predictor.predict(photo)
    assert found.masks_rle is not None
    with served(predictor, max_batch_size=1) as service:
        page.open(service.url)
        page.wait(READY)
        page.drop("#view", photo)
        page.wait(SHOWN)
        for i in range(min(len(found.scores), 5)):
            onto = f"{{width: {found.width}, height: {found.height}}}"
            mask_of = f"raster(shown.answer.detections[{i}].segmentation, pixels, {onto})"
            drawn = page.eval(f"(pixels => ({mask_of}, pixels.join('')))(new Uint8Array({found.width * found.height}))")
            mask = np.frombuffer(drawn.encode(), np.uint8).reshape(found.height, found.width) - ord("0")
            assert (mask.astype(bool) == found.mask(i)).all()
    assert page.errors == []


def test_a_classifier_shows_its_five_best_and_no_slider(page, resnet_run):
    predictor = paceline.load(resnet_run.folder)
    photo = photos_of(resnet_run)[0]
    with served(predictor, max_batch_size=1) as service:
        page.open(service.url)
        page.wait(READY)
        page.drop("#view", photo)
        page.wait(SHOWN)
        shown = page.eval("document.querySelector('#answers').innerText").split("\n")
        answer = predictor.predict(photo)
        assert [text for text in shown if text in predictor.classes] == list(answer.names)
        assert f"{100 * answer.scores[0]:.1f}%" in shown
        assert page.eval("document.querySelector('#threshold').offsetParent === null")
    assert page.errors == []


def test_several_photos_and_one_that_is_none_by_keyboard_on_a_phone(page, ssd, tmp_path):
    service, _, photos = ssd
    (tmp_path / "note.jpg").write_text("no photo")
    page.open(service.url, width=390, height=844, dark=True)
    page.wait(READY)
    page.drop("#view", *photos[:2], tmp_path / "note.jpg")
    page.wait("photos.length === 3 && document.querySelector('#busy').hidden")
    assert page.eval("document.documentElement.scrollWidth") <= 390
    assert page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    page.eval("document.querySelector('#strip button').focus()")
    for wanted in (photos[1].name, "note.jpg"):
        page.press("Tab", 9)
        page.press(" ", 32)
        page.wait(f"shown.name === {wanted!r} && document.activeElement.title === {wanted!r}")
    assert "image format" in page.eval("document.querySelector('#wrong').innerText")
    assert [error for error in page.errors if "422" not in error] == []
    page.errors.clear()


def test_the_camera_is_answered_picture_by_picture_until_it_is_stopped(page, ssd):
    service, _, _ = ssd
    page.open(service.url)
    page.wait(READY)
    page.eval("document.querySelector('#empty [data-do=camera]').click()")
    page.wait("shown && shown.pace && shown.answer.width > 0")
    page.press("Escape", 27)
    page.wait("stream === null && document.querySelector('#camera').innerText === 'Camera'")
    assert page.errors == []


def test_the_page_asks_for_the_token_and_takes_it_from_its_address(page, ssd):
    _, predictor, photos = ssd
    with served(predictor, "a-token-of-24-characters") as service:
        page.open(service.url)
        page.wait("document.querySelector('dialog')?.open")
        page.eval("document.querySelector('#token').focus()")
        for letter in "a-token-of-24-characters":
            page.press(letter)
        page.press("Enter", 13)
        page.wait(READY)
        page.eval("sessionStorage.clear()")
        page.open("about:blank")
        page.open(f"{service.url}#token=a-token-of-24-characters")
        page.wait(READY)
        assert page.eval("location.href") == service.url
        page.drop("#view", photos[0])
        page.wait(SHOWN)
    assert [error for error in page.errors if "401" not in error] == []
    page.errors.clear()

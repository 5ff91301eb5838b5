"""The check page: each kind of suspicious box is found once and only there, and the page holds what it says, with pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from html_pages import picture_in, read_page
from messages import check_text
from PIL import Image

from paceline.data.checks.suspicious_boxes import KINDS, find_suspicious
from paceline.data.index.index import Index, file_per_record_arrays
from paceline.data.index.index import make_index as open_arrays
from paceline.data.index.records import record_digest
from paceline.data.prepare.box_source import prepare_boxes
from paceline.tools.report.check.page import make_box_page, write_check_page
from paceline.tools.report.check.page_parts import make_tile

CLASSES = ("cat", "<b>dog</b>", "cow")
SIZE = (200, 300)  # height, width
Row = tuple[list[float], int, int]  # box, class, crowd


def make_index(root: Path, split: str, images: list[list[Row]], *, seed: int = 0) -> Index:
    """Images of noise, 300 x 200 pixels; image i of one seed has the same bytes in every split."""
    names, lengths, digests = [], [], []
    for i in range(len(images)):
        path = root / split / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(1000 * seed + i).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((SIZE[1], SIZE[0])).save(path, "JPEG")
        names.append(f"{split}/{i}.jpg".encode())
        lengths.append(path.stat().st_size)
        digests.append(record_digest(path.read_bytes()))
    rows = [row for image in images for row in image]
    boxes = np.array([box for box, _, _ in rows], np.float64).reshape(len(rows), 4)
    extra = {
        "object_starts": np.cumsum([0, *map(len, images)]),
        "boxes": boxes,
        "classes": np.array([k for _, k, _ in rows], np.int32),
        "crowd": np.array([crowd for _, _, crowd in rows], np.uint8),
        "areas": boxes[:, 2] * boxes[:, 3],
        "usable": ((boxes[:, 2:] > 0).all(axis=1) & (boxes[:, 0] < SIZE[1])).astype(np.uint8),
        "digests": np.array(digests, np.uint64),
    }
    number = len(images)
    sides = (np.full(number, SIZE[0]), np.full(number, SIZE[1]))
    arrays = file_per_record_arrays(
        names, lengths=np.array(lengths), labels=np.zeros(number), heights=sides[0], widths=sides[1], extra=extra
    )
    return open_arrays(arrays, root, split)


def suspected(index) -> set[str]:
    return {key for key, suspects in find_suspicious(index).items() if suspects.count}


GOOD: Row = ([50, 60, 40, 30], 1, 0)
BAD: dict[str, list[Row]] = {
    "degenerate": [([10, 10, 0, 5], 1, 0), ([10, 10, 5, -5], 1, 0)],
    "outside": [([301, 10, 20, 20], 1, 0), ([10, -50, 20, 50], 1, 0)],
    "over_border": [([-3, 10, 20, 20], 1, 0), ([280, 10, 23, 20], 1, 0)],
    "tiny": [([10, 10, 1.9, 20 - 1.5], 1, 0), ([10, 10, 13, 1.3], 2, 0)],
    "nearly_all": [([0, 0, 300, 190], 1, 0)],
    "aspect": [([10, 10, 101, 10], 1, 0), ([10, 40, 5, 51], 1, 0)],
}


@pytest.mark.parametrize("key", BAD)
def test_each_kind_is_found_and_nothing_else_is(tmp_path: Path, key: str) -> None:
    found = find_suspicious(make_index(tmp_path, "train", [[GOOD], *([row] for row in BAD[key]), []]))
    assert {kind: suspects.count for kind, suspects in found.items() if suspects.count} == {key: len(BAD[key])}
    assert sorted(suspect.image for suspect in found[key].worst) == list(range(1, len(BAD[key]) + 1))
    assert [s.degree for s in found[key].worst] == sorted((s.degree for s in found[key].worst), reverse=True)
    assert {kind.key for kind in KINDS} == set(found)


def test_what_lies_just_within_the_limits_is_not_suspicious(tmp_path: Path) -> None:
    rows: list[Row] = [
        ([-2, -2, 50, 50], 1, 0), ([250, 150, 52, 52], 1, 0), ([10, 10, 2.01, 20], 1, 0), ([0, 0, 300, 189], 2, 0),
        ([10, 100, 100, 10], 1, 0),
    ]  # fmt: skip
    assert not suspected(make_index(tmp_path, "train", [[row] for row in rows]))


def test_pairs_are_found_within_one_image_by_their_overlap_and_class(tmp_path: Path) -> None:
    box, near, apart = [50, 50, 100, 100], [51, 50, 100, 100], [53, 50, 100, 100]
    images: list[list[Row]] = [
        [(box, 1, 0), GOOD, (near, 1, 0)],
        [(box, 1, 0), (box, 2, 0)],
        [(box, 1, 0), (apart, 1, 0)],
        [(box, 1, 0), (box, 1, 1)],
        [(box, 1, 0)],
    ]
    found = find_suspicious(make_index(tmp_path, "train", images))
    assert [(s.image, s.objects) for s in found["twice"].worst] == [(0, (0, 2))]
    assert [(s.image, s.objects) for s in found["two_classes"].worst] == [(1, (3, 4))]
    assert found["twice"].worst[0].degree == pytest.approx(99 / 101)


def test_pairs_are_those_of_a_slow_loop_over_all_boxes(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    images: list[list[Row]] = [
        [([*random.integers(0, 6, 2).tolist(), *random.integers(60, 66, 2).tolist()], int(random.integers(1, 3)), 0)
         for _ in range(12)]
        for _ in range(6)
    ]  # fmt: skip
    wanted: dict[str, set] = {"twice": set(), "two_classes": set()}
    for image, rows in enumerate(images):
        for i, ((x, y, w, h), k, _) in enumerate(rows):
            for j, ((u, v, a, b), other, _) in enumerate(rows[:i]):
                common = max(min(x + w, u + a) - max(x, u), 0) * max(min(y + h, v + b) - max(y, v), 0)
                if common / (w * h + a * b - common) > 0.95:
                    wanted["twice" if k == other else "two_classes"].add((12 * image + j, 12 * image + i))
    found = find_suspicious(make_index(tmp_path, "train", images))
    for key, pairs in wanted.items():
        assert {s.objects for s in found[key].worst} == pairs and found[key].count == len(pairs) > 3 and found[key].all_met


def test_a_crowd_region_is_no_suspect_of_size(tmp_path: Path) -> None:
    rows: list[Row] = [([0, 0, 300, 200], 1, 1), ([0, 0, 300, 4], 1, 1)]
    assert not suspected(make_index(tmp_path, "train", [rows]))


def test_a_hundred_thousand_alike_boxes_on_one_image_are_counted_and_a_few_drawn(tmp_path: Path) -> None:
    index = make_index(tmp_path, "train", [[([50, 50, 4, 4], 1, 0)] * 100_000])
    found = find_suspicious(index)["twice"]
    assert found.count > 3_000_000 and not found.all_met and len(found.worst) == 1_000
    tile = make_tile(index, 0, CLASSES, side=100, caption="many")
    assert len(tile.boxes) == 150 and tile.caption == "many; 150 of 100,000 objects drawn"
    assert "at least 3," in make_box_page(tmp_path, CLASSES, {"train": index}).html


@pytest.mark.parametrize("box", [[20, 30, 4, 3], [20, 30, 200, 100], [-900, 30, 40, 40], [290, -10, 60, 60], [5, 5, 0, 0]])
def test_a_tile_shows_the_box_it_points_at_where_it_lies_in_the_photo(tmp_path: Path, box: list[float]) -> None:
    index = make_index(tmp_path, "train", [[GOOD, (box, 3, 0)]])
    tile = make_tile(index, 0, CLASSES, side=240, focus=(1,))
    focus = [shown for shown in tile.boxes if shown.about.startswith("cow: ")]
    with picture_in(tile.photo) as photo:
        size = photo.size
    assert max(size) == 240 and size[0] / size[1] == pytest.approx(tile.aspect, rel=0.02)
    if box[0] < -300:
        assert focus == []  # further away than is shown
        return
    (shown,) = focus
    assert 0 <= shown.left <= 100 and 0 <= shown.top <= 100
    if box[2]:  # of whole pixels
        width, height = shown.width / 100 * size[0], shown.height / 100 * size[1]
        assert width > 9 and height == pytest.approx(width * box[3] / box[2], abs=2)


def test_the_pixels_under_a_box_are_the_photos(tmp_path: Path) -> None:
    index = make_index(tmp_path, "train", [[([120, 80, 20, 20], 2, 0)]])  # drawn in blue
    picture = Image.new("RGB", (300, 200), (10, 10, 10))
    picture.paste((250, 20, 20), (120, 80, 140, 100))
    picture.save(tmp_path / "train/0.jpg", "JPEG", quality=95, subsampling=0)
    index.lengths[0] = (tmp_path / "train/0.jpg").stat().st_size
    index.extra["digests"][0] = record_digest((tmp_path / "train/0.jpg").read_bytes())
    for focus in ((), (0,)):
        tile = make_tile(index, 0, CLASSES, side=300, focus=focus)
        red = np.asarray(picture_in(tile.photo))[..., 0] > 128
        (box,) = tile.boxes
        rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
        height, width = red.shape
        frame = 4
        assert columns[0] == pytest.approx(box.left / 100 * width + frame, abs=2)
        assert columns[-1] + 1 == pytest.approx((box.left + box.width) / 100 * width - frame, abs=2)
        assert rows[0] == pytest.approx(box.top / 100 * height + frame, abs=2)
        assert rows[-1] + 1 == pytest.approx((box.top + box.height) / 100 * height - frame, abs=2)


def test_a_clean_set_is_said_to_be_clean_and_shows_all_its_photos(tmp_path: Path) -> None:
    rows: list[Row] = [GOOD, ([120, 60, 40, 30], 2, 0), ([180, 60, 40, 30], 3, 0)]
    splits = {"train": make_index(tmp_path, "train", [rows] * 3), "val": make_index(tmp_path, "val", [rows] * 2, seed=1)}
    page = read_page(make_box_page(tmp_path, CLASSES, splits).html)
    assert "No issues found" in page.words and check_text(page.words, "area")
    assert len(page.pictures) == 5 and len(page.all("div", class_="box")) == 15
    assert all(picture_in(picture) for picture in page.pictures)
    assert "<b>dog</b>" in page.words and "<b>dog</b>" not in page.html  # a name is text, not markup
    assert "http" not in page.html.replace("http-equiv", "")


def test_a_dirty_set_is_told_with_counts_notices_and_a_picture_of_each_kind(tmp_path: Path) -> None:
    train = [[GOOD, *rows] for rows in BAD.values()] + [[], [GOOD, ([50, 60, 40, 30], 2, 0)]]
    splits = {
        "train": make_index(tmp_path, "train", train),
        "val": make_index(tmp_path, "val", [[GOOD], [([50, 50, 40, 40], 3, 0), ([0, 0, 99, 99], 1, 1)]]),
    }
    page = read_page(make_box_page(tmp_path, CLASSES, splits).html)
    assert "before training" in page.words
    check_text(page.words, "val", "train", "bytes): 2")
    check_text(page.words, "1 of 3", "train", "cow")
    check_text(page.words, "1 of 3", "val", "<b>dog</b>")
    for kind in KINDS:
        count = len(BAD.get(kind.key, [GOOD]))
        assert (f"{kind.title} {count} in train" in page.words) == (kind.key != "twice"), kind.title
    assert "empty images 1 " in page.words and "crowd regions 1 " in page.words and "unusable boxes 3 " in page.words
    assert len(page.pictures) == 10 + 2 + sum(map(len, BAD.values())) + 1


def test_a_photo_that_is_gone_or_changed_leaves_a_gap_and_the_page_stays(tmp_path: Path) -> None:
    index = make_index(tmp_path, "train", [[GOOD], [GOOD], [GOOD]])
    (tmp_path / "train/0.jpg").unlink()
    (tmp_path / "train/1.jpg").write_bytes(b"x" * int(index.lengths[1]))
    page = read_page(make_box_page(tmp_path, CLASSES, {"train": index}).html)
    assert page.words.count("not found") == 2 and len(page.pictures) == 1


@pytest.mark.parametrize("images", [[], [[]], [[], []]])
def test_splits_without_objects_or_images_have_a_page(tmp_path: Path, images: list[list[Row]]) -> None:
    splits = {"train": make_index(tmp_path, "train", images), "val": make_index(tmp_path, "val", images, seed=1)}
    page = read_page(make_box_page(tmp_path, CLASSES, splits).html)
    check_text(page.words, "3 of 3", "cat, <b>dog</b>, cow")


def test_a_prepared_real_set_gets_its_page_beside_the_manifest(shared_data: Path, tmp_path: Path) -> None:
    manifest = prepare_boxes(shared_data / "coco_mini", out=tmp_path)
    path, _ = write_check_page(manifest)
    assert path == tmp_path / "check.html" and [p.name for p in tmp_path.glob("*.part")] == []
    page = read_page(path.read_text(encoding="utf-8"))
    assert "train images 282 2,401 objects" in page.words and "val images 64 449 objects" in page.words
    assert len(page.pictures) >= 12 and path.stat().st_size < 3_000_000

"""Photos in tiles: what the tiles cover, that a tile's answer is the crop's own, and which of the merged boxes stay."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hotcoco.mask import encode
from PIL import Image
from tiny_runs import command, refused

from paceline.inference import load
from paceline.inference.image_paths import FailedImage
from paceline.inference.results import DetectionResult
from paceline.inference.tiling import TileWindow, make_tiles, merge_tiles

H, W = 100, 160
LEFT, RIGHT = TileWindow(0, 0, 100, 100), TileWindow(0, 60, 100, 100)


def found(
    *rows: tuple[float, ...], size: tuple[int, int] = (H, W), masks: tuple[np.ndarray, ...] | None = None
) -> DetectionResult:
    """rows: left, top, width, height, score, class."""
    return DetectionResult(
        file="a.jpg",
        pixels=lambda: np.zeros((*size, 3), np.uint8),
        height=size[0],
        width=size[1],
        boxes_xywh=np.array([row[:4] for row in rows], float).reshape(-1, 4),
        scores=tuple(row[4] for row in rows),
        class_ids=tuple(int(row[5]) - 1 for row in rows),
        names=tuple("xab"[int(row[5])] for row in rows),
        category_ids=tuple(10 * int(row[5]) for row in rows),
        masks_rle=None if masks is None else tuple(rle(mask) for mask in masks),
    )


def rle(mask: np.ndarray) -> bytes:
    text = encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    return text.encode() if isinstance(text, str) else text


def merge(whole: DetectionResult, left: DetectionResult, right: DetectionResult) -> list[tuple[float, ...]]:
    """-> left, top, width, height, score of what stays."""
    result = merge_tiles(whole, [LEFT, RIGHT], [left, right])
    assert (
        result.names == tuple("ab"[class_id] for class_id in result.class_ids)
        and list(result.scores) == sorted(result.scores)[::-1]
    )
    return [(*box, score) for box, score in zip(result.boxes_xywh.tolist(), result.scores)]


NOTHING, IN_TILE = found(), (100, 100)


@pytest.mark.parametrize("height, width", [(100, 100), (101, 100), (1000, 333), (77, 2000), (640, 640)])
@pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5])
def test_tiles_cover_the_photo_and_share_what_is_asked(height, width, overlap):
    places = make_tiles(height, width, 100, overlap)
    if max(height, width) <= 100:
        assert places == []
        return
    covered = np.zeros((height, width), bool)
    for top, left, h, w in places:
        assert h <= 100 and w <= 100 and top + h <= height and left + w <= width
        covered[top : top + h, left : left + w] = True
    assert covered.all() and len(set(places)) == len(places)
    for axis in (0, 1):
        starts = sorted({place[axis] for place in places})
        assert all(later - first <= 100 - overlap * 100 + 0.5 for first, later in pairwise(starts))


def test_each_answer_is_the_crop_s_own_in_the_photo_s_pixels(ssd_run, tmp_path):
    predictor = load(ssd_run.folder)
    parts = [np.asarray(Image.open(file)) for file in sorted((ssd_run.data / "val2017").iterdir())[:4]]
    photo = np.zeros((200, 240, 3), np.uint8)
    for part, (top, left) in zip(parts, ((0, 0), (0, 120), (100, 0), (100, 120))):
        part = part[:100, :120]
        photo[top : top + part.shape[0], left : left + part.shape[1]] = part
    file = tmp_path / "photo.png"
    Image.fromarray(photo).save(file)
    result = predictor.predict(file, tile=100, overlap=0.2, batch=1)  # alone as below: sums in the same order
    assert isinstance(result, DetectionResult) and result.file == str(file) and result.pixels().shape == photo.shape
    alone, sources = set(), set()
    for number, (top, left, height, width) in enumerate(
        [(0, 0, *photo.shape[:2]), *make_tiles(*photo.shape[:2], 100, 0.2)]
    ):
        one = predictor.predict(photo[top : top + height, left : left + width])
        assert isinstance(one, DetectionResult)
        for box, label, score in zip((one.boxes_xywh + np.array([left, top, 0, 0])).tolist(), one.class_ids, one.scores):
            alone.add((*box, label, score, number))
    assert len(result.scores) > 3
    for box, label, score in zip(result.boxes_xywh.tolist(), result.class_ids, result.scores):
        (number,) = [row[-1] for row in alone if row[:-1] == (*box, label, score)]
        sources.add(number)
    assert len(sources) > 3  # of several tiles
    small = predictor.predict(file, tile=1000)
    assert isinstance(small, DetectionResult) and (small.boxes_xywh == predictor.predict(file).boxes_xywh).all()


def test_a_piece_at_an_inner_edge_gives_way_to_the_whole_object_and_never_to_a_doubtful_one():
    piece = found((70, 10, 30, 20, 0.9, 1), size=IN_TILE)
    whole = found((10, 10, 40, 20, 0.8, 1), size=IN_TILE)  # 70 to 110 in the photo
    assert merge(NOTHING, piece, whole) == [(70, 10, 40, 20, 0.8)]
    doubtful = found((10, 10, 40, 20, 0.1, 1), size=IN_TILE)
    assert merge(NOTHING, piece, doubtful)[0] == (70, 10, 30, 20, 0.9)
    other_class = found((10, 10, 40, 20, 0.8, 2), size=IN_TILE)
    assert len(merge(NOTHING, piece, other_class)) == 2
    # At an edge of the photo nothing is cut: the same boxes mirrored.
    at_photos_edge = found((0, 10, 30, 20, 0.9, 1), size=IN_TILE)
    assert merge(found((0, 10, 60, 20, 0.8, 1)), at_photos_edge, NOTHING)[0] == (0, 10, 30, 20, 0.9)


def test_an_object_larger_than_a_tile_is_the_whole_photo_s():
    across = found((20, 20, 120, 60, 0.8, 1))
    halves = found((20, 20, 80, 60, 0.9, 1), size=IN_TILE), found((0, 20, 80, 60, 0.85, 1), size=IN_TILE)
    assert merge(across, *halves) == [(20, 20, 120, 60, 0.8)]


def test_the_better_of_two_tiles_boxes_stays_and_boxes_of_one_tile_are_not_suppressed_again():
    in_both = found((70, 40, 20, 20, 0.7, 1), size=IN_TILE), found((11, 41, 20, 20, 0.8, 1), size=IN_TILE)
    assert merge(NOTHING, *in_both) == [(71, 41, 20, 20, 0.8)]
    crowded = found((20, 40, 20, 20, 0.8, 1), (22, 42, 20, 20, 0.7, 1), size=IN_TILE)
    assert len(merge(NOTHING, crowded, NOTHING)) == 2
    assert merge(NOTHING, NOTHING, NOTHING) == []


def test_a_tile_s_mask_has_the_run_lengths_of_the_same_mask_in_the_photo():
    random = np.random.default_rng(0)
    for place in (LEFT, RIGHT, TileWindow(30, 20, 70, 50), TileWindow(0, 110, 100, 50), TileWindow(50, 60, 50, 100)):
        for share in (0.0, 0.3, 0.7, 1.0):
            mask = random.random((place.height, place.width)) < share
            one = found((5, 5, 20, 20, 0.5, 1), size=(place.height, place.width), masks=(mask,))
            result = merge_tiles(found(masks=()), [place], [one])
            photo = np.zeros((H, W), bool)
            photo[place.top : place.top + place.height, place.left : place.left + place.width] = mask
            assert result.masks_rle == (rle(photo),)


def test_photos_in_tiles_come_in_order_with_those_that_cannot_be_read_in_their_places(ssd_run, tmp_path):
    predictor = load(ssd_run.folder)
    good = sorted((ssd_run.data / "val2017").iterdir())[:2]
    (tmp_path / "bad.jpg").write_bytes(b"no photo")
    photos = [good[0], tmp_path / "bad.jpg", tmp_path / "gone.jpg", good[1]]
    results = list(predictor.predict_iter(photos, tile=64))
    assert [isinstance(result, FailedImage) for result in results] == [False, True, True, False]
    assert [result.file for result in results] == [str(photo) for photo in photos]
    masked = list(predictor.predict_iter(iter(photos[:1]), tile=64))
    assert isinstance(masked[0], DetectionResult) and len(masked[0].scores) > 0


def test_tiles_with_masks_are_written_and_tiles_of_classes_or_of_no_size_are_refused(
    maskrcnn_run, resnet_run, tmp_path, capsys
):
    photo = tmp_path / "photo.png"
    tall = [np.asarray(Image.open(file)) for file in sorted((maskrcnn_run.data / "val2017").iterdir())[:2]]
    width = min(pixels.shape[1] for pixels in tall)
    Image.fromarray(np.concatenate([pixels[:, :width] for pixels in tall])).save(photo)
    words = ["predict", maskrcnn_run.folder, photo, "--output-dir", tmp_path / "out", "--score-threshold", 0]
    assert command(capsys, *words, "--tile-size", 64).code == 0
    result = load(maskrcnn_run.folder).predict(photo, tile=64)
    assert isinstance(result, DetectionResult) and result.masks is not None and len(result.masks) == len(result.scores) > 0
    assert result.mask(0).shape == result.pixels().shape[:2]
    refused(command(capsys, *words, "--tile-size", 5), "--tile-size 5")
    refused(command(capsys, *words, "--tile-size", 64, "--tile-overlap", 1), "--tile-overlap 1")
    refused(command(capsys, "predict", resnet_run.folder, photo, "--tile-size", 64), "--tile-size", "detection")

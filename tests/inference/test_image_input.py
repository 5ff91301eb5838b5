"""What counts as a photo in Python, one or several of them, and how results come back."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hotcoco.mask import encode
from messages import check_text, raises
from PIL import Image
from stand_in_predictors import predictor_of

import paceline
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.platform import count_cpus
from paceline.config.recipe import Recipe
from paceline.config.resnet import ImageInput
from paceline.config.ssd import BoxInput, SSDModel
from paceline.data.workers.crew import WORTH_PROCESSES, map_ordered
from paceline.inference import load
from paceline.inference.drawing.boxes import class_color
from paceline.inference.image_input import decode_photo, encode_photo
from paceline.inference.image_paths import FailedImage
from paceline.inference.predictor import to_detections
from paceline.inference.results import ClassificationResult, DetectionResult
from paceline.inference.trained_model import TorchPredictor


class Pixels(torch.nn.Module):
    """Its three "classes" are the means of the three colors, of what it is shown."""

    def predict(self, batch) -> torch.Tensor:
        return batch.images.double().mean(dim=(2, 3)) / 10


@pytest.fixture
def predictor() -> TorchPredictor:
    recipe = Recipe(
        task="classification", model=None, input=ImageInput(eval_crop_size=32, eval_resize_size=36, exif="apply")
    )
    return predictor_of(recipe, Pixels(), classes=("r", "g", "b"))


@pytest.fixture
def scene() -> np.ndarray:
    pixels = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    pixels[..., 2] //= 3
    return pixels


def as_file(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def test_every_kind_of_photo_gives_the_answer_of_its_file(predictor, scene, tmp_path):
    path = tmp_path / "scene.png"
    path.write_bytes(as_file(scene))
    opaque = np.dstack([scene, np.full(scene.shape[:2], 7, np.uint8)])
    chw = torch.from_numpy(scene).permute(2, 0, 1)
    kinds = [
        *(path, str(path), path.read_bytes(), bytearray(path.read_bytes())),
        *(Image.fromarray(scene), Image.open(path), scene, np.asfortranarray(scene), opaque),
        *(chw, chw.float() / 255, chw.double() / 255, (chw.float() / 255).requires_grad_()),
    ]
    wanted = predictor.predict(path).scores
    for photo in (*kinds, chw.half() / 255):
        result = predictor.predict(photo)
        assert result.scores == wanted and (result.pixels() == scene).all(), type(photo)
    assert [result.scores for result in predictor.predict(kinds)] == [wanted] * len(kinds)


def test_grey_photos_are_taken_in_every_form_alike(predictor, scene):
    gray = np.ascontiguousarray(scene[..., 0])
    wanted = predictor.predict(np.dstack([gray] * 3)).scores
    tensor = torch.from_numpy(gray)
    for photo in (gray, gray[..., None], tensor[None], tensor[None].half() / 255, as_file(gray), Image.fromarray(gray)):
        result = predictor.predict(photo)
        assert result.scores == wanted and (result.pixels() == gray[..., None]).all()


def test_an_opened_picture_with_a_note_of_its_camera_or_16_bits_is_read_as_its_file(predictor, scene, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [tmp_path / name for name in ("turned.png", "turned.tif", "deep.png")]
    for file in files[:2]:
        Image.fromarray(scene).save(file, exif=exif)
    Image.fromarray(scene[..., 0].astype(np.uint16) * 100).save(files[2])
    for file in files:
        with Image.open(file) as image:
            assert predictor.predict(image).scores == predictor.predict(file).scores


@pytest.mark.parametrize(
    "photo, said",
    [
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.zeros((0, 4, 3), np.uint8), r"(0, 4, 3)"),
        (np.zeros((3, 5, 5), np.uint8), r"(3, 5, 5)"),
        (np.zeros((2, 4, 4, 3), np.uint8), "a list"),
        (torch.zeros(2, 3, 4, 4), "a list"),
        (torch.zeros(4, 4, 3), "torch.float32 ... (4, 4, 3)"),
        (torch.full((3, 4, 4), 2.5), "from 2.5 to 2.5"),
        (torch.full((3, 4, 4), float("nan")), "nan"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "int64"),
        (Image.new("F", (4, 4)), "mode F"),
        (7, "int"),
        (None, "NoneType"),
        ({"photo": "x.jpg"}, "dict"),
        (io.BytesIO(b"no photo"), "open file ... .read()"),
        ([["x.jpg"]], "list"),
        (b"", "empty"),
        (b"no photo", "image format"),
        ("no such photo.jpg", "no such photo.jpg"),
        ("zero\0byte.jpg", "cannot be read"),
        ("x" * 300, "cannot be read"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_is_no_photo_is_refused_with_what_is_one(predictor, photo, said):
    with raises(DataError, said) as refusal:
        predictor.predict(photo)
    assert isinstance(refusal.value, PacelineError) and "\n" not in str(refusal.value)  # no advice on training sets
    if "is no photo" in str(refusal.value):
        assert "(H, W, 3) uint8 array in RGB order" in str(refusal.value)


def test_one_photo_gives_one_result_and_several_a_list(predictor, scene, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        path.write_bytes(as_file(scene))
    assert isinstance(predictor.predict(paths[0]), ClassificationResult)
    for several in (paths, tuple(paths), iter(paths), (path for path in paths), tmp_path, str(tmp_path), [tmp_path]):
        results = predictor.predict(several)
        assert isinstance(results, list) and [result.file for result in results] == list(map(str, paths))
    assert predictor.predict([paths[0]])[0].file == str(paths[0])
    assert predictor.predict([]) == []
    (tmp_path / "empty").mkdir()
    with raises(DataError, "images", "folder"):
        predictor.predict(tmp_path / "empty")


def test_a_broken_photo_is_named_and_the_stream_goes_on_without_it(predictor, scene, tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(as_file(scene))
    bad.write_bytes(as_file(scene)[:500])
    with raises(DataError, "bad.png", "decoded"):
        predictor.predict([good, bad, good])
    with raises(DataError, "image 2", "decoded"):
        predictor.predict([good, b"text", good])
    first, second, third = predictor.predict_iter([good, bad, good], batch=2)
    assert (
        isinstance(first, ClassificationResult) and isinstance(third, ClassificationResult) and first.scores == third.scores
    )
    assert isinstance(second, FailedImage) and second.file == str(bad) and "truncated" in second.reason
    assert list(predictor.predict_iter([bad])) == [second]


def test_threads_give_the_bits_of_one_photo_after_the_other(predictor, tmp_path):
    random = np.random.default_rng(0)
    paths = []
    for number in range(40):
        size = tuple(random.integers(20, 200, 2))
        paths.append(tmp_path / f"{number:02d}.jpg")
        Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(paths[-1])
    read = predictor.reader()
    one_by_one = [read(path).pixels for path in paths]
    for processes in (False, True):
        many = paths * (WORTH_PROCESSES // len(paths) + 1)
        there = map_ordered(many, read, size=4, ahead=5, processes=processes)
        for seen, alone in zip(there, cycle(one_by_one), strict=False):
            assert (seen.pixels == alone).all()


def test_results_come_in_order_a_few_ahead_and_errors_where_they_belong():
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    gate = threading.Event()

    def work(number: int) -> int:
        gate.wait(5) if number == 0 else None
        if number == 50:
            raise DataError("fifty")
        return 2 * number

    results = map_ordered(items(), work, size=4, ahead=6)
    threading.Timer(0.05, gate.set).start()
    assert next(results) == 0 and len(taken) <= 8
    assert [next(results) for _ in range(49)] == list(range(2, 100, 2))
    with pytest.raises(DataError, match="fifty"):
        next(results)
    assert len(taken) <= 50 + 8
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-crew")]


def test_a_stream_that_is_left_early_reads_no_more_photos(predictor, scene, tmp_path):
    read: list[Path] = []
    path = tmp_path / "x.png"
    path.write_bytes(as_file(scene))
    stream = predictor.predict_iter((read.append(path) or path for _ in range(10_000)), batch=2)
    next(stream)
    stream.close()
    assert len(read) <= count_cpus() + 2 + 3


def test_a_result_draws_saves_and_can_be_pickled(predictor, scene, tmp_path):
    result = predictor.predict(scene)
    picture = result.draw()
    assert isinstance(picture, Image.Image) and picture.mode == "RGB" and picture.width == 480
    result.save(tmp_path / "answer.png")
    with Image.open(tmp_path / "answer.png") as saved:
        assert (np.asarray(saved) == np.asarray(picture)).all()
    again = pickle.loads(pickle.dumps(result))
    assert again.scores == result.scores and (again.pixels() == result.pixels()).all()
    assert (result.pixels() == scene).all()
    assert repr(result) == f"<ClassificationResult in the given image: {result.summary()}>"


def test_a_drawn_photo_is_what_the_file_shows_whole(tmp_path, scene):
    for kind, tolerance in (("PNG", 0), ("JPEG", 0)):
        data = as_file(scene, kind)
        with Image.open(io.BytesIO(data)) as image:
            seen = np.abs(
                np.asarray(image).astype(int) - decode_photo(data, SimpleNamespace(decoder="simplejpeg", exif="ignore"))
            )
        assert seen.max() <= tolerance
    assert encode_photo(data)[0] == data  # bytes are taken as they are


def found(count: int = 4, masks: bool = False) -> DetectionResult:
    return DetectionResult(
        file="x.jpg",
        pixels=lambda: np.full((60, 80, 3), 90, np.uint8),
        width=80,
        height=60,
        boxes_xywh=np.arange(4.0 * count).reshape(count, 4) + 1 / 3,
        class_ids=tuple(i % 2 for i in range(count)),
        names=tuple(("cat", "dog")[i % 2] for i in range(count)),
        scores=tuple(0.9 - 0.2 * i for i in range(count)),
        category_ids=tuple((7, 90)[i % 2] for i in range(count)),
        masks_rle=tuple(b"%d" % i for i in range(count)) if masks else None,
    )


def test_objects_are_chosen_by_class_and_number_best_first():
    assert found().filter(["dog"]).scores == pytest.approx((0.7, 0.3))
    for classes in ("dog", ["dog"], 1, [1], {np.int64(1), "bird"}):
        some = found(masks=True).filter(classes, max_detections=1)
        assert (some.names, some.class_ids, some.category_ids, some.masks_rle) == (("dog",), (1,), (90,), (b"1",))
        assert some.boxes_xywh.tolist() == [found().boxes_xywh[1].tolist()]
    assert found().filter(max_detections=3).names == ("cat", "dog", "cat") and len(found().filter(max_detections=0)) == 0
    with pytest.raises(ValueError, match="got -1"):
        found().filter(max_detections=-1)
    check_text(found().filter([]).summary(), "no detections", "0.3")
    assert found().summary(score_threshold=0.6) == "cat 0.90  dog 0.70"
    assert found(8).summary(-1.0).endswith("cat 0.10  and 3 more")


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (1, [1]),
        (-1, [3]),
        (slice(2), [0, 1]),
        ([3, 0], [3, 0]),
        ([], []),
        (np.array([2, 2]), [2, 2]),
        ([False, True, True, False], [1, 2]),
        (np.array([0.9, 0.7, 0.5, 0.3]) > 0.6, [0, 1]),
    ],
    ids=str,
)
def test_an_index_a_slice_a_list_or_a_boolean_mask_selects_objects(rows, wanted):
    whole = found(masks=True)
    part = whole[rows]
    assert len(part) == len(wanted) and (part.file, part.width, part.height) == (whole.file, 80, 60)
    assert part.boxes_xywh.tolist() == [whole.boxes_xywh[i].tolist() for i in wanted]
    for column in ("class_ids", "names", "scores", "category_ids", "masks_rle"):
        assert getattr(part, column) == tuple(getattr(whole, column)[i] for i in wanted)


def test_objects_are_counted_and_iterated_and_rows_beyond_them_are_refused():
    assert [one.names for one in found(3)] == [("cat",), ("dog",), ("cat",)] and len(found(3)) == 3
    assert len(found(0)) == 0 and found(0).boxes_xyxy.shape == found(0)[[]].boxes_xyxy.shape == (0, 4)
    with pytest.raises(IndexError):
        found(3)[3]


def test_boxes_are_corners_or_corner_and_size_as_their_names_say():
    one = replace(found(1), boxes_xywh=np.array([[10.0, 20.0, 30.0, 5.0]]))
    assert one.boxes_xyxy.tolist() == [[10, 20, 40, 25]] and one.to_coco(1)[0]["bbox"] == [10, 20, 30, 5]
    assert one.to_dict()["detections"][0] == {"category_id": 7, "name": "cat", "bbox": [10, 20, 30, 5], "score": 0.9}
    corners = np.random.default_rng(0).random((9, 4)) * 50
    many = replace(found(9), boxes_xywh=corners)
    left, top, width, height = corners.T
    assert (many.boxes_xyxy == np.column_stack((left, top, left + width, top + height))).all()
    assert not hasattr(many, "boxes") and not hasattr(many, "classes")


def test_class_ids_count_from_0_and_are_places_in_the_predictor_s_classes(ssd_run, resnet_run):
    for run, folder in ((ssd_run, "val2017"), (resnet_run, "val/ant")):
        predictor = load(run.folder)
        result = predictor.predict(next((run.data / folder).iterdir()))
        assert isinstance(result, DetectionResult | ClassificationResult) and len(set(result.class_ids)) > 1
        assert result.names == tuple(predictor.classes[i] for i in result.class_ids)
        if isinstance(result, DetectionResult):
            assert result.category_ids == tuple(predictor.category_ids[i] for i in result.class_ids)
            assert [one["category_id"] for one in result.to_dict()["detections"]] == list(result.category_ids)


def test_the_first_and_the_last_class_of_a_detector_have_the_first_and_the_last_class_id(tmp_path):
    """Networks number classes from 1: 1 is class index 0."""
    rows = np.array([[0.1, 0.2, 0.5, 0.4, 0.9, 1], [0.5, 0.5, 1.0, 1.0, 0.8, 3], [0, 0, 0, 0, 0, 0]])
    recipe = Recipe(task="detection", model=SSDModel(), input=BoxInput(image_size=64))
    stand_in = predictor_of(recipe, Pixels(), classes=("a", "b", "c"), facts={"data": {"category_ids": [1, 18, 90]}})
    file = tmp_path / "x.png"
    Image.new("RGB", (200, 100)).save(file)
    result = to_detections(stand_in.reader()(file), stand_in.trained, rows)
    assert (result.class_ids, result.names, result.category_ids) == ((0, 2), ("a", "c"), (1, 90))
    assert np.allclose(result.boxes_xyxy, [[20, 20, 100, 40], [100, 50, 200, 100]])
    assert np.allclose(result.boxes_xywh, [[20, 20, 80, 20], [100, 50, 100, 50]])


def test_a_result_shows_itself_on_one_line_that_no_terminal_obeys():
    shown = repr(replace(found(2), file="a\nb\x1b[2J.jpg"))
    assert shown == r"<DetectionResult in a\nb\x1b[2J.jpg: cat 0.90  dog 0.70>"


def test_rows_for_coco_have_the_objects_own_numbers():
    rows = found(2).to_coco(139)
    assert rows == [
        {"image_id": 139, "category_id": 7, "bbox": found(2).boxes_xywh[0].tolist(), "score": 0.9},
        {"image_id": 139, "category_id": 90, "bbox": found(2).boxes_xywh[1].tolist(), "score": 0.7},
    ]
    assert found(1, masks=True).to_coco(1)[0]["segmentation"] == {"size": [60, 80], "counts": "0"}
    with pytest.raises(ValueError, match="only boxes"):
        found().mask(0)


def test_a_picture_without_labels_has_boxes_alone():
    boxes = found(2)
    named, bare = np.asarray(boxes.draw()), np.asarray(boxes.draw(labels=False))
    assert named.shape == bare.shape and (named != bare).any()
    assert (np.asarray(boxes.draw(score_threshold=0.95)) == (90, 90, 90)).all()  # nothing of this score
    assert boxes.draw(max_side=160).size == (160, 120)


def test_a_crowd_has_a_legend_with_the_color_of_each_class():
    boxes = np.tile([10.0, 10.0, 20.0, 20.0], (60, 1)) + np.arange(60)[:, None] % 3
    crowd = replace(found(60), boxes_xywh=boxes, scores=(0.9,) * 60)
    picture = np.asarray(crowd.draw())
    alone = crowd.draw(max_side=picture.shape[1])
    assert picture.shape[0] > alone.height and picture.shape[1] == alone.width
    legend = picture[alone.height :].reshape(-1, 3).tolist()
    assert all(list(class_color(label)) in legend for label in (1, 2)) and list(class_color(3)) not in legend


def test_a_stream_of_one_folder_is_its_photos_and_not_the_letters_of_its_name(predictor, scene, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(scene).save(folder / name)
    assert [Path(found.file).name for found in predictor.predict_iter(str(folder))] == ["a.png", "b.png"]
    assert [Path(found.file).name for found in predictor.predict_iter(str(folder / "a.png"))] == ["a.png"]


def test_crops_are_the_boxes_pixels_cut_at_the_photo_s_edges():
    pixels = np.arange(60 * 80 * 3, dtype=np.uint32).reshape(60, 80, 3).astype(np.uint8)
    boxes = np.array([[10.4, 5.0, 20.2, 10.0], [-5.0, 50.0, 15.0, 20.0], [90.0, 10.0, 5.0, 5.0]])
    three = replace(found(3), boxes_xywh=boxes, pixels=lambda: pixels, width=80, height=60)
    first, second, beside = three.crops()
    assert (first == pixels[5:15, 10:31]).all() and (second == pixels[50:60, 0:10]).all() and beside.size == 0
    assert (three.crops(margin=0.5)[0] == pixels[0:20, 0:41]).all()
    assert replace(found(3), boxes_xywh=boxes[:0], pixels=lambda: pixels).crops() == []


def test_objects_for_supervision_are_its_fields_and_without_it_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=dict))  # tried with the real one by hand
    shapes = np.random.default_rng(0).random((3, 60, 80)) < 0.5
    rle = [encode(np.asfortranarray(shape.astype(np.uint8)))["counts"] for shape in shapes]
    three = replace(found(3), masks_rle=tuple(text.encode() if isinstance(text, str) else text for text in rle))
    fields = three.to_supervision()
    left, top, width, height = three.boxes_xywh.T
    assert np.allclose(fields["xyxy"], np.column_stack((left, top, left + width, top + height)))
    assert fields["class_id"].tolist() == [0, 1, 0] == list(three.class_ids)
    assert fields["data"]["class_name"].tolist() == list(three.names)
    assert (fields["mask"] == shapes).all() and fields["mask"].dtype == bool
    assert three.masks is not None and (three.masks == shapes).all() and (three.mask(1) == shapes[1]).all()
    assert found(3).masks is None
    assert found(0, masks=True).to_supervision()["mask"].shape == (0, three.height, three.width)
    monkeypatch.setitem(sys.modules, "supervision", None)
    with raises(PacelineError, "pip install supervision"):
        three.to_supervision()


def test_the_types_of_results_are_at_hand():
    assert (paceline.DetectionResult, paceline.ClassificationResult) == (DetectionResult, ClassificationResult)
    assert paceline.FailedImage is FailedImage and issubclass(TorchPredictor, paceline.Predictor)

"""The built-in data set: what is in it, that it is the same everywhere, and that it appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from by_night import ONE_MORE
from messages import raises
from PIL import Image

from paceline._utils.atomic_write import new_folder_part
from paceline._utils.errors import DataError, PacelineError
from paceline.data.shapes import render as shapes
from paceline.data.shapes.outlines import CLASSES
from paceline.data.shapes.render import annotate, render_shapes, shapes_folder
from paceline.data.shapes.scenes import draw_picture

ROOT = Path(__file__).resolve().parents[2]
SMALL_PX2, LARGE_PX2 = 32**2, 96**2  # COCO's bounds


@pytest.fixture(scope="module")
def boxes(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("shapes") / "boxes"
    render_shapes("boxes", out, train=160, val=60)
    return out


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("shapes") / "classes"
    render_shapes("classes", out, train=800)
    return out


def read(boxes: Path, split: str) -> dict:
    return json.loads((boxes / "annotations" / f"instances_{split}2017.json").read_text())


def by_image(document: dict) -> dict[int, list[dict]]:
    found: dict[int, list[dict]] = {image["id"]: [] for image in document["images"]}
    for annotation in document["annotations"]:
        found[annotation["image_id"]].append(annotation)
    return found


def tree(folder: Path) -> dict[str, str]:
    """Digest of every file below `folder`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def box_ious(rows: list[dict]) -> np.ndarray:
    """IoU of every pair of boxes, 0 of a box with itself."""
    x1, y1, width, height = np.array([row["bbox"] for row in rows]).reshape(-1, 4).T
    x2, y2 = x1 + width, y1 + height
    across = np.clip(np.minimum.outer(x2, x2) - np.maximum.outer(x1, x1), 0, None)
    down = np.clip(np.minimum.outer(y2, y2) - np.maximum.outer(y1, y1), 0, None)
    both = across * down
    ious = both / np.maximum(np.add.outer(width * height, width * height) - both, 1e-9)
    np.fill_diagonal(ious, 0)
    return ious


# --- the set with boxes


@pytest.mark.parametrize("split", ["train", "val"])
def test_sizes_overlaps_and_counts_of_objects_are_as_promised(boxes, split):
    images = by_image(read(boxes, split))
    objects = {image: [row for row in rows if not row["iscrowd"]] for image, rows in images.items()}
    areas = np.array([row["area"] for rows in objects.values() for row in rows])
    overlapping = sum(int((box_ious(rows) > 0.1).any(axis=1).sum()) for rows in objects.values() if rows)
    assert len(areas) / len(images) >= 3
    assert (areas < SMALL_PX2).mean() >= 0.2
    assert (areas > LARGE_PX2).mean() >= 0.2
    assert overlapping / len(areas) >= 0.2
    assert sum(not rows for rows in images.values()) / len(images) == 0.05
    classes = Counter(row["category_id"] for rows in objects.values() for row in rows)
    assert set(classes) == set(range(1, 9))
    assert min(classes.values()) > 0.5 * max(classes.values())


def test_by_default_there_are_enough_pictures_for_training_and_validation():
    assert all(train >= 1500 and val >= 300 for train, val, _ in shapes.DEFAULTS.values())


@pytest.mark.parametrize("split, count", [("train", 160), ("val", 60)])
def test_json_and_files_agree_and_every_box_lies_in_its_picture(boxes, split, count):
    document = read(boxes, split)
    assert [row["name"] for row in document["categories"]] == list(CLASSES)
    assert [row["id"] for row in document["categories"]] == list(range(1, 9))
    assert {image["file_name"] for image in document["images"]} == {p.name for p in (boxes / f"{split}2017").iterdir()}
    assert len(document["images"]) == count
    size = {}
    for image in document["images"]:
        with Image.open(boxes / f"{split}2017" / image["file_name"]) as picture:
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            assert picture.size == (image["width"], image["height"])
            picture.load()
        size[image["id"]] = image["width"], image["height"]
    assert len(set(size.values())) > 3  # several aspects
    ids = [annotation["id"] for annotation in document["annotations"]]
    assert len(set(ids)) == len(ids)
    for annotation in document["annotations"]:
        x, y, width, height = annotation["bbox"]
        assert min(x, y) >= 0 and min(width, height) > 0
        assert x + width <= size[annotation["image_id"]][0] and y + height <= size[annotation["image_id"]][1]
        if not annotation["iscrowd"]:
            assert all(len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in annotation["segmentation"])


def test_ids_of_train_and_val_differ(boxes):
    train, val = read(boxes, "train"), read(boxes, "val")
    for rows in ("images", "annotations"):
        assert not {row["id"] for row in train[rows]} & {row["id"] for row in val[rows]}


def test_crowds_are_run_lengths_over_many_tiny_objects_of_one_class(boxes):
    crowds = [row for split in ("train", "val") for row in read(boxes, split)["annotations"] if row["iscrowd"]]
    assert len(crowds) >= 8
    for crowd in crowds:
        assert sum(crowd["segmentation"]["counts"]) == np.prod(crowd["segmentation"]["size"])
        assert sum(crowd["segmentation"]["counts"][1::2]) == crowd["area"]
    picture = next(p for p in map(picture_number, range(100)) if any(shape.crowd for shape in p.shapes))
    members = [k for k, shape in enumerate(picture.shapes, start=1) if shape.crowd]
    assert len(members) >= 8
    assert len({picture.shapes[k - 1].label for k in members}) == 1
    assert all(np.count_nonzero(picture.owners == k) < 20**2 for k in members)


def picture_number(number: int):
    return draw_picture("boxes", seed=3, split=0, number=number, side=256)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # pycocotools'
def test_polygons_and_boxes_are_those_of_the_pixels_that_were_drawn():
    coco = pytest.importorskip("pycocotools.mask")
    ious, cut, pieces = [], 0, 0
    for number in range(60):
        picture = picture_number(number)
        height, width = picture.owners.shape
        rows = annotate(picture)
        plain = [k for k, shape in enumerate(picture.shapes, start=1) if not shape.crowd]
        crowd = [k for k, shape in enumerate(picture.shapes, start=1) if shape.crowd]
        assert len(rows) == len(plain) + bool(crowd)
        for k, row in zip(plain, rows):
            owned = picture.owners == k
            assert row["category_id"] == picture.shapes[k - 1].label + 1
            mask = coco.decode(coco.merge(coco.frPyObjects(row["segmentation"], height, width))).astype(bool)
            ious.append((mask & owned).sum() / (mask | owned).sum())
            assert row["area"] == pytest.approx(owned.sum(), rel=0.15)
            cut += bool(owned.sum() < 0.9 * np.count_nonzero(picture.shapes[k - 1].whole))
            pieces += len(row["segmentation"]) > 1
            # The box holds the object but for crumbs, and no side of it is further than a pixel from what it holds.
            x, y, w, h = row["bbox"]
            inside = np.zeros_like(owned)
            inside[max(0, round(y - 0.5)) : round(y + h + 0.5), max(0, round(x - 0.5)) : round(x + w + 0.5)] = True
            assert (owned & ~inside).sum() <= max(5, 0.03 * owned.sum())
            ys, xs = np.nonzero(owned & inside)
            assert abs(x - xs.min()) < 2 and abs(y - ys.min()) < 2
            assert abs(x + w - xs.max() - 1) < 2 and abs(y + h - ys.max() - 1) < 2
        if crowd:
            mask = coco.decode(coco.frPyObjects(rows[-1]["segmentation"], height, width)).astype(bool)
            assert np.array_equal(mask, np.isin(picture.owners, crowd))
    assert min(ious) > 0.9 and np.mean(ious) > 0.98
    assert cut > 20 and pieces > 20  # there was something to get wrong


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_pycocotools_loads_it_and_finds_the_same_areas(boxes, capsys):
    coco = pytest.importorskip("pycocotools.coco").COCO(str(boxes / "annotations" / "instances_val2017.json"))
    for row in coco.loadAnns(coco.getAnnIds()):
        assert coco.annToMask(row).sum() == pytest.approx(row["area"], rel=0.12)


# --- the set with class folders


@pytest.mark.nightly("renders hundreds of pictures")
def test_classes_are_balanced_and_the_label_is_clearly_the_largest_shape(classes):
    for split, count in (("train", 100), ("val", 50)):
        assert {p.name: len(list(p.iterdir())) for p in (classes / split).iterdir()} == dict.fromkeys(CLASSES, count)
    others = []
    for number in range(64):
        picture = draw_picture("classes", seed=0, split=0, number=number, side=128)
        seen = Counter(picture.owners[picture.owners > 0].tolist())
        subject = seen.most_common(1)[0][0]
        label = picture.shapes[subject - 1].label
        rest = [shape for k, shape in enumerate(picture.shapes, start=1) if k != subject]
        assert label == number % 8
        assert all(shape.label != label for shape in rest)
        assert seen[subject] > 2 * max([count for k, count in seen.items() if k != subject], default=0)
        others.append(len(rest))
    assert np.mean(others) > 1.2  # one to three are thrown; those that the subject hides are not drawn


def thumbnails(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = [], []
    for label, name in enumerate(CLASSES):
        for path in sorted((folder / name).iterdir()):
            with Image.open(path) as picture:
                picture.draft("RGB", (16, 16))
                pixels.append(np.asarray(picture.resize((16, 16), Image.Resampling.BOX), np.float32).ravel() / 255)
            labels.append(label)
    return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)


@pytest.fixture
def one_thread():
    """Threads that wait for each other on a busy machine take far longer than such small sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.nightly("800 pictures; a property of the set, which changes with its version alone")
def test_a_linear_classifier_on_thumbnails_cannot_learn_it(classes, one_thread):
    train, labels = thumbnails(classes / "train")
    val, truth = thumbnails(classes / "val")
    mean, spread = train.mean(0), train.std(0)
    train, val = (train - mean) / spread, (val - mean) / spread
    torch.manual_seed(0)
    model = torch.nn.Linear(train.shape[1], 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    best = 0.0
    for _ in range(80):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(train), labels).backward()
        optimizer.step()
        best = max(best, (model(val).argmax(1) == truth).float().mean().item())
    assert (model(train).argmax(1) == labels).float().mean() > 0.5  # it did fit what it saw
    assert best < 0.5


# --- the same everywhere


@pytest.mark.parametrize("kind", ["boxes", pytest.param("classes", marks=ONE_MORE)])
def test_the_same_bytes_for_one_and_for_two_processes(kind, tmp_path):
    calls = []
    render_shapes(kind, tmp_path / "one", seed=7, train=70, val=20, side=96, processes=1)
    render_shapes(
        kind, tmp_path / "two", seed=7, train=70, val=20, side=96, processes=2, progress=lambda *done: calls.append(done)
    )
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert len(tree(tmp_path / "one")) == (92 if kind == "boxes" else 90)
    assert calls[-1] == (90, 90) and calls == sorted(calls)


def test_a_picture_depends_on_its_number_split_and_seed_alone(tmp_path):
    def pictures(out, **arguments) -> dict[str, str]:
        render_shapes("boxes", out, side=64, processes=1, **arguments)
        return {name: digest for name, digest in tree(out).items() if name.endswith(".jpg")}

    few = pictures(tmp_path / "few", seed=0, train=12, val=12)
    more = pictures(tmp_path / "more", seed=0, train=30, val=12)
    other = pictures(tmp_path / "other", seed=1, train=12, val=12)
    assert few.items() < more.items()
    digests = [*more.values(), *other.values()]
    assert len(set(digests)) == len(digests)  # train and val, and one seed and another, share no picture


def test_no_picture_is_in_both_splits(classes):
    train, val = set(tree(classes / "train").values()), set(tree(classes / "val").values())
    assert len(train) == 800 and len(val) == 400
    assert not train & val


# --- whole or not at all


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupted_rendering_leaves_nothing_behind(tmp_path, processes):
    def interrupt(done: int, pictures: int) -> None:
        if done >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_shapes("boxes", tmp_path / "set", train=300, val=20, side=64, processes=processes, progress=interrupt)
    assert leftovers(tmp_path) == []


def test_a_rendering_that_was_killed_is_not_taken_for_a_data_set(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    code = "from paceline.data.shapes.render import shapes_folder; shapes_folder('classes')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True) as child:
        deadline = time.monotonic() + 60
        while not any(tmp_path.rglob("*.jpg")):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.02)
        child.kill()
    (half,) = tmp_path.iterdir()
    assert half.name.startswith(".")
    monkeypatch.setitem(shapes.DEFAULTS, "classes", (16, 8, 48))
    whole = shapes_folder("classes")
    assert len(list(whole.rglob("*.jpg"))) == 24


def test_of_two_that_race_both_get_the_whole_set_and_one_copy_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setitem(shapes.DEFAULTS, "classes", (16, 8, 48))
    together = threading.Barrier(2, timeout=60)
    folders: list[Path] = []

    def run() -> None:
        # Both have found no data set and are in the middle of their own before either goes on.
        folders.append(shapes_folder("classes", progress=lambda done, pictures: done == 3 and together.wait()))

    runners = [threading.Thread(target=run) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert len(folders) == 2 and folders[0] == folders[1]
    assert leftovers(tmp_path) == [folders[0].name]
    assert len(list(folders[0].rglob("*.jpg"))) == 24


def test_the_cached_set_is_rendered_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(shapes.DEFAULTS, "boxes", (8, 4, 48))
    calls = []
    first = shapes_folder("boxes", progress=lambda *done: calls.append(done))
    again = shapes_folder("boxes", progress=lambda *done: calls.append(done))
    assert first == again and len(calls) == 12
    assert first.parent == tmp_path / "cache" and f"v{shapes.GENERATOR_VERSION}" in first.name
    monkeypatch.setattr(shapes, "GENERATOR_VERSION", shapes.GENERATOR_VERSION + 1)
    assert shapes_folder("boxes") != first


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").write_text("precious")
    with raises(DataError, "mine", "empty"):
        render_shapes("classes", tmp_path / "mine", train=8, val=8, side=48)
    assert (tmp_path / "mine" / "photo.jpg").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    render_shapes("classes", tmp_path / "empty", train=8, val=8, side=48)
    assert leftovers(tmp_path) == ["empty", "mine"]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PacelineError, match=r"file/cache.*\n.*PACELINE_CACHE"):
        shapes_folder("classes")


def test_a_process_that_cannot_write_passes_the_reason_on(tmp_path):
    def take_away(done: int, pictures: int) -> None:
        # At every call: the first may tell of two pictures at once, and a picture written meanwhile stops a removal.
        for part in tmp_path.iterdir():
            shutil.rmtree(part / "train2017", ignore_errors=True)
            shutil.rmtree(part / "val2017", ignore_errors=True)

    with pytest.raises(FileNotFoundError):
        render_shapes("boxes", tmp_path / "set", train=5000, val=20, side=48, processes=2, progress=take_away)
    assert leftovers(tmp_path) == []


# --- callers of every kind


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from paceline.data.shapes.render import render_shapes\n"
        "print('started')\n"
        f"render_shapes('classes', Path({str(tmp_path / 'set')!r}), train=60, val=30, side=48, processes=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("started\n", "")
    assert len(list((tmp_path / "set").rglob("*.jpg"))) == 90


def test_rendering_does_not_load_torch():
    code = "import sys, paceline.data.shapes.render; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_a_killed_rendering_left_goes_with_the_next_one_and_what_is_rendered_now_stays(tmp_path: Path) -> None:
    dead = tmp_path / ".set.0123abcd.part"
    (dead / "train").mkdir(parents=True)
    (dead / "train" / "0.jpg").write_bytes(b"half")
    (tmp_path / ".set.mine.part").mkdir()
    with new_folder_part(tmp_path / "set") as living:
        render_shapes("classes", tmp_path / "set", train=8, val=8, side=32, processes=1)
        assert living.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"set", ".set.mine.part"}

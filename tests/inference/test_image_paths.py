"""Which photos a folder means, where the answers go, and what becomes of what is there already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path, PurePath

import numpy as np
import pytest
from messages import check_text, raises
from PIL import Image

from paceline._utils.errors import DataError, PacelineError
from paceline.inference.image_paths import FailedImage, find_photos, is_prediction_dir
from paceline.inference.outputs.formats import ResultLocation
from paceline.inference.outputs.prediction_dir import check_prediction_dir, name_rendered_images, open_prediction_dir
from paceline.inference.results import DetectionResult


def photo(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3)).save(path)
    return path


def found(file: str = "a.jpg") -> DetectionResult:
    return DetectionResult(
        file=file,
        pixels=lambda: np.zeros((3, 4, 3), np.uint8),
        width=4,
        height=3,
        boxes_xywh=np.array([[0.0, 1.0, 2.0, 1.5]]),
        class_ids=(0,),
        names=("cat",),
        scores=(1 / 3,),
        category_ids=(7,),
    )


# Photos ----------------------------------------------------------------------------------------------------------------


def test_a_folder_means_the_photos_in_it_and_below_it_in_name_order(tmp_path):
    names = ["b.png", "a.JPG", "below/deeper/z.webp", "below/y.tif", "another/x.gif"]
    for name in names:
        photo(tmp_path / name)
    listing = find_photos([tmp_path])
    wanted = ["a.JPG", "b.png", "another/x.gif", "below/y.tif", "below/deeper/z.webp"]
    assert listing.photos == [tmp_path / name for name in wanted]
    assert listing.places == [PurePath(name) for name in wanted]
    assert listing.skipped() == "" and listing.refused == []
    assert find_photos([tmp_path / "b.png", tmp_path / "below"]).places == [
        *(PurePath("b.png"), PurePath("y.tif"), PurePath("deeper/z.webp"))
    ]


def test_what_is_passed_over_is_counted_with_why(tmp_path):
    photo(tmp_path / "a.jpg")
    photo(tmp_path / ".hidden/b.jpg")
    for name in ("n.txt", "m.txt", "film.MP4", "Makefile", "._a.jpg"):
        (tmp_path / name).write_text("x")
    listing = find_photos([tmp_path])
    assert listing.photos == [tmp_path / "a.jpg"]
    assert listing.skipped() == "4 files: 2 .txt, 1 without suffix, 1 .mp4; 2 hidden"


def test_links_in_a_circle_end_and_a_folder_is_read_once(tmp_path):
    photo(tmp_path / "z real/a.jpg")
    os.symlink(tmp_path, tmp_path / "z real/up")
    os.symlink("z real", tmp_path / "a link")
    os.symlink("loop", tmp_path / "loop")
    listing = find_photos([tmp_path])
    assert listing.photos == [tmp_path / "z real/a.jpg"]
    check_text(listing.skipped(), "2 link")


def test_the_run_and_the_answers_are_no_photos_of_the_folder(tmp_path):
    for name in ("a.jpg", "run/pictures/b.jpg", "answers/c.jpg", "older/d.jpg"):
        photo(tmp_path / name)
    with open_prediction_dir(tmp_path / "older now", {}, coco=False) as answers:
        answers.add(found(), found(), ResultLocation("e.jpg", "e.jpg", None, 1), (tmp_path / "a.jpg").read_bytes(), None)
        answers.finish([])
    assert is_prediction_dir(tmp_path / "older now")
    listing = find_photos([tmp_path], apart_from=(tmp_path / "run", tmp_path / "answers", tmp_path / "not there"))
    assert [path.name for path in listing.photos] == ["a.jpg", "d.jpg"]
    check_text(listing.skipped(), "2 folder")
    check_text(listing.skipped(), "1 folder", "earlier")
    # What is named itself is meant.
    assert [path.name for path in find_photos([tmp_path / "older now"]).photos] == ["e.jpg"]


def test_names_that_no_list_can_hold_are_refused_one_by_one(tmp_path):
    photo(tmp_path / "good.jpg")
    (tmp_path / "two\nlines.jpg").write_bytes(b"x")
    listing = find_photos([tmp_path])
    assert listing.photos == [tmp_path / "good.jpg"]
    ((file, reason),) = listing.refused
    assert "two\nlines.jpg" in file and "line break" in reason


def test_a_path_that_is_not_there_and_a_folder_without_photos_are_refused(tmp_path):
    with raises(DataError, "gone.jpg"):
        find_photos([tmp_path / "gone.jpg"])
    with raises(DataError, "file", "folder"):
        find_photos([tmp_path / ("x" * 300)])
    (tmp_path / "x.txt").write_text("x")
    with raises(DataError, "1 file: 1 .txt"):
        find_photos([tmp_path])
    os.symlink("nowhere", tmp_path / "broken.jpg")  # is named when it is read
    assert find_photos([tmp_path, tmp_path / "broken.jpg"]).photos == [tmp_path / "broken.jpg"]


def test_a_photo_that_is_named_again_is_taken_once_and_counted(tmp_path, monkeypatch):
    photo(tmp_path / "in/a.jpg")
    os.symlink("a.jpg", tmp_path / "in/b.jpg")  # another name is another answer
    os.symlink("in", tmp_path / "linked")
    monkeypatch.chdir(tmp_path)
    listing = find_photos([Path("in/a.jpg"), tmp_path / "in/a.jpg", Path("in"), Path("in/../in/a.jpg"), Path("linked")])
    assert listing.photos == [Path("in/a.jpg"), Path("in/b.jpg")] and len(listing.places) == 2
    check_text(listing.skipped(), "5 given", "once")


# Answers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "places, names",
    [
        (["a.png", "b.jpeg"], ["a.jpg", "b.jpg"]),
        (["a.bmp", "a.tiff", "b.png"], ["a.bmp.jpg", "a.tiff.jpg", "b.jpg"]),
        (["A.png", "a.png"], ["A.png.jpg", "a.png-2.jpg"]),  # some file systems take them for one
        (["x/a.png", "y/a.png"], ["x/a.jpg", "y/a.jpg"]),
        (["a.jpg", "a.jpg", "a.jpg"], ["a.jpg.jpg", "a.jpg-2.jpg", "a.jpg-3.jpg"]),
        (["a.bmp.png", "a.bmp", "a.gif"], ["a.bmp.jpg", "a.bmp-2.jpg", "a.gif.jpg"]),
        (["predictions.json/a.png", "predictions.png"], ["a.jpg", "predictions.jpg"]),
        (["Grüße aus Köln.png"], ["Grüße aus Köln.jpg"]),
    ],
)
def test_pictures_are_called_as_their_photos_and_no_two_alike(places, names):
    assert name_rendered_images([PurePath(place) for place in places]) == names


def test_the_longest_name_that_a_photo_can_have_leaves_room_for_a_suffix():
    (name,) = name_rendered_images([PurePath("ä" * 125 + ".jpg")])
    assert len(os.fsencode(name)) <= 204


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def answer(folder: Path, *names: str, coco: bool = False, finish: bool = True) -> None:
    with open_prediction_dir(folder, {"run": "r"}, coco=coco) as answers:
        for name in names:
            answers.add(found(name), found(name), ResultLocation(name, name, None, 5), b"pixels", 5)
        if finish:
            answers.finish([FailedImage("bad.jpg", "why")])


def test_answers_name_photo_and_picture_and_what_has_none(tmp_path):
    answer(tmp_path / "out", "a.jpg", "below/b.jpg", coco=True)
    assert written(tmp_path / "out") == {"a.jpg", "below/b.jpg", "predictions.json", "coco_results.json"}
    facts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert (facts["paceline"], facts["run"], facts["coco_results"]) == ("predictions", "r", True)
    assert [(one["file"], one["annotated_image"], one["image_id"]) for one in facts["images"]] == [
        *(("a.jpg", "a.jpg", 5), ("below/b.jpg", "below/b.jpg", 5))
    ]
    assert facts["skipped"] == [{"file": "bad.jpg", "reason": "why"}]
    assert json.loads((tmp_path / "out" / "coco_results.json").read_text()) == 2 * found().to_coco(5)


def test_no_answers_at_all_are_empty_lists(tmp_path):
    answer(tmp_path, coco=True)
    assert json.loads((tmp_path / "predictions.json").read_text())["images"] == []
    assert json.loads((tmp_path / "coco_results.json").read_text()) == []


@pytest.mark.parametrize("finish", [True, False], ids=["finished", "broken off"])
def test_earlier_answers_are_replaced_whole(tmp_path, finish):
    answer(tmp_path / "out", "old.jpg", "gone/deeper/b.jpg", coco=True, finish=finish)
    assert (tmp_path / "out" / "predictions.json").exists() == finish  # a folder that looks finished is finished
    check_prediction_dir(tmp_path / "out")
    answer(tmp_path / "out", "new.jpg")
    assert written(tmp_path / "out") == {"new.jpg", "predictions.json"}
    assert not (tmp_path / "out" / "gone").exists()


def test_answers_that_a_kill_cut_inside_a_line_are_replaced_too(tmp_path):
    answer(tmp_path, "a.jpg", "b.jpg", finish=False)
    part = tmp_path / "predictions.json.part"
    part.write_text(part.read_text()[:-20])
    (tmp_path / "b.jpg").unlink()  # a picture is named before it is written
    answer(tmp_path, "c.jpg")
    assert written(tmp_path) == {"c.jpg", "predictions.json"}


@pytest.mark.parametrize("after", [0, 1, 3, 6, 7])
def test_what_a_kill_leaves_at_any_moment_is_replaced_by_the_same_prediction(tmp_path, after):
    """Killed where it opens its Nth file to write to, or renames one."""
    code = f"""
import os, sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
from pathlib import Path
from test_image_paths import answer
left = {after}
def dying(event, args):
    global left
    if (event == "open" and isinstance(args[1], str) and args[1][0] in "wax") or event == "os.rename":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(dying)
answer(Path(sys.argv[1]), "a.jpg", "below/b.jpg", coco=True)
"""
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], check=False)
    assert ended.returncode in (-9, 0)
    answer(tmp_path / "out", "a.jpg", "below/b.jpg", coco=True)
    answer(tmp_path / "other", "a.jpg", "below/b.jpg", coco=True)
    assert written(tmp_path / "out") == written(tmp_path / "other")


def test_an_empty_list_that_a_killed_earlier_version_left_is_replaced_and_a_text_of_this_name_is_not(tmp_path):
    (tmp_path / "predictions.json.part").touch()
    answer(tmp_path, "a.jpg")
    assert written(tmp_path) == {"a.jpg", "predictions.json"}
    (tmp_path / "predictions.json.part").write_text("mine")
    with raises(PacelineError, "predictions.json.part"):
        answer(tmp_path, "a.jpg")


@pytest.mark.parametrize(
    "strange, before",
    [
        *((name, before) for name in ("notes.txt", "below/mine.jpg", ".hidden", "link") for before in (True, False)),
        *((name, False) for name in ("coco_results.json", "predictions.json")),
    ],
)
def test_a_folder_with_anything_else_is_refused_and_left_as_it_is(tmp_path, strange, before):
    if before:
        answer(tmp_path / "out", "a.jpg", "below/b.jpg")
    precious = photo(tmp_path / "elsewhere" / "a.jpg").parent
    (tmp_path / "out" / strange).parent.mkdir(parents=True, exist_ok=True)
    if strange == "link":
        os.symlink(precious, tmp_path / "out" / "link")
    else:
        (tmp_path / "out" / strange).write_text("precious")
    kept = written(tmp_path)
    with raises(PacelineError, "--output-dir", strange):
        answer(tmp_path / "out", "a.jpg")
    assert written(tmp_path) == kept


def test_a_forged_list_of_pictures_takes_nothing_outside_the_folder(tmp_path):
    precious = photo(tmp_path / "precious.jpg")
    answer(tmp_path / "out", "a.jpg")
    file = tmp_path / "out" / "predictions.json"
    file.write_text(file.read_text().replace('"annotated_image": "a.jpg"', '"annotated_image": "../precious.jpg"'))
    with raises(PacelineError, "a.jpg"):
        answer(tmp_path / "out")
    (tmp_path / "out" / "a.jpg").unlink()
    answer(tmp_path / "out", "b.jpg")
    assert precious.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PacelineError, match="--output-dir"):
            answer(out, "a.jpg")
    (tmp_path / "in the way").mkdir()
    with raises(PacelineError, "a.jpg", "written"), open_prediction_dir(tmp_path / "o", {}, coco=False) as new:
        (tmp_path / "o" / "a.jpg").mkdir()
        new.add(found(), found(), ResultLocation("a.jpg", "a.jpg", None, 1), b"pixels", None)


def test_a_pattern_names_photos_as_a_shell_does_and_leaves_out_other_files_and_earlier_answers(tmp_path):
    for name in ("b.jpg", "a.jpg", "notes.txt", "deep/er/c.png", "deep/d.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with open_prediction_dir(tmp_path / "deep" / "answers", {}, coco=False) as answers:
        (tmp_path / "deep" / "answers" / "picture.jpg").write_bytes(b"x")
        answers.finish([])

    def names(*patterns: str) -> tuple[list[str], str]:
        found = find_photos([tmp_path / pattern for pattern in patterns])
        return [str(photo.relative_to(tmp_path)) for photo in found.photos], found.skipped()

    assert names("*.jpg") == (["a.jpg", "b.jpg"], "")
    assert names("**/*.jpg", "b.jpg")[0] == ["a.jpg", "b.jpg", "deep/d.jpg"]
    check_text(names("**/*.jpg", "b.jpg")[1], "1 given")
    check_text(names("**/*.jpg")[1], "1 in folders", "earlier")
    assert names("[ab].*") == (["a.jpg", "b.jpg"], "")
    whole = names("*")  # a folder that it names counts as its photos
    assert whole[0] == ["a.jpg", "b.jpg", "deep/d.jpg", "deep/er/c.png"] and "1 .txt" in whole[1]
    with raises(DataError, "1 .txt"):
        names("*.txt")
    with raises(DataError, "no image"):
        names("*.gone")
    (tmp_path / "x[1].jpg").write_bytes(b"x")
    assert names("x[1].jpg")[0] == ["x[1].jpg"]  # what is there is no pattern

"""coco_results.json: what pycocotools scores is what `paceline eval` scores, and no photo gets another one's id."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from messages import check_line, check_text, raises
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tiny_runs import Said, command, refused

from paceline._utils.errors import PacelineError
from paceline.config.run import RunRecord, read_run
from paceline.inference.outputs.coco_ids import find_image_ids, read_image_ids

# pycocotools itself does what numpy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
KINDS = {"bbox": "box", "segm": "mask"}


def judged(annotations: Path, results: Path, kind: str) -> list[float]:
    """pycocotools' twelve numbers."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth: Any = COCO(str(annotations))
        score = COCOeval(truth, truth.loadRes(str(results)), kind)
        score.evaluate()
        score.accumulate()
        score.summarize()
    return score.stats.tolist()


def scored(capsys, run: Path) -> dict[str, float]:
    said = command(capsys, "eval", run, "--checkpoint", "last", "--json")
    return json.loads(said.out.splitlines()[-1])


@pytest.mark.parametrize("kinds", [("bbox",), ("bbox", "segm")], ids=["ssd", "maskrcnn"])
def test_pycocotools_scores_the_answers_as_paceline_eval_does(kinds, request, tmp_path, capsys):
    run = request.getfixturevalue("maskrcnn_run" if "segm" in kinds else "ssd_run")
    photos, out = run.data / "val2017", tmp_path / "out"
    said = command(capsys, "predict", run.folder, photos, "--output-dir", out, "--checkpoint", "last", "--no-save-images")
    assert said.code == 0 and check_text(said.out, "coco_results.json", "ids")
    own = scored(capsys, run.folder)
    for kind in kinds:
        found = judged(run.data / "annotations" / "instances_val2017.json", out / "coco_results.json", kind)
        names = (f"{KINDS[kind]}_ap", f"{KINDS[kind]}_ap50", f"{KINDS[kind]}_ap75")
        assert found[:3] == pytest.approx([own[name] for name in names], abs=2e-3)
    rows = json.loads((out / "coco_results.json").read_text())
    assert rows and all(("segmentation" in row) == ("segm" in kinds) for row in rows)


def test_real_coco_photos_anywhere_are_known_by_their_file_or_by_their_names(ssd_run, shared_data, tmp_path, capsys):
    photos = tmp_path / "copied"
    photos.mkdir()
    for photo in sorted((shared_data / "coco_mini" / "val2017").iterdir())[:5]:
        shutil.copy(photo, photos)
    # The photos' own annotations under the run's categories: a file with others is refused.
    record = json.loads((shared_data / "coco_mini" / "annotations" / "instances_val2017.json").read_text())
    facts = json.loads((ssd_run.folder / "run.json").read_text())
    ids = facts["data"]["category_ids"]
    record["categories"] = [{"id": number, "name": name} for number, name in zip(ids, facts["classes"])]
    for entry in record["annotations"]:
        entry["category_id"] = ids[entry["category_id"] % len(ids)]
    annotations = tmp_path / "listed.json"
    annotations.write_text(json.dumps(record))
    asked = ["predict", ssd_run.folder, photos, "--no-save-images", "--output-dir", tmp_path / "out"]
    said = command(capsys, *asked)
    check_text(said.out, "coco_results.json", "ids")
    by_name = json.loads((tmp_path / "out" / "coco_results.json").read_text())
    shutil.copy(next(photos.iterdir()), photos / "not listed.jpg")
    check_text(command(capsys, *asked).out, "coco_results.json", "ids")
    assert not (tmp_path / "out" / "coco_results.json").exists()
    said = command(capsys, *asked, "--image-ids", annotations)
    assert said.code == 0 and check_line(said.out, "coco_results.json", "1"), said
    assert json.loads((tmp_path / "out" / "coco_results.json").read_text()) == by_name != []
    assert len(judged(annotations, tmp_path / "out" / "coco_results.json", "bbox")) == 12


# Ids ----------------------------------------------------------------------------------------------------------------------


def listed(file: Path, *images: tuple[str, int], categories: tuple[tuple[str, int], ...] = ()) -> Path:
    record = {
        "images": [{"file_name": name, "id": number} for name, number in images],
        "categories": [{"name": name, "id": number} for name, number in categories],
    }
    file.write_text(json.dumps(record))
    return file


def test_a_photo_is_the_image_whose_whole_name_ends_its_path(tmp_path):
    file = listed(tmp_path / "x.json", ("a.jpg", 1), ("val/a.jpg", 2), ("./b.jpg", 3), ("test/b.jpg", 4))
    photos = [Path(name) for name in ("/set/a.jpg", "/set/val/a.jpg", "/set/val/b.jpg", "c.jpg", "/x/ab.jpg")]
    assert read_image_ids(photos, file, {}) == {photos[0]: 1, photos[1]: 2, photos[2]: 3}


@pytest.mark.parametrize(
    "content, said",
    [
        ("no json", "JSON"),
        ("[]", "lists"),
        ('{"images": [], "categories": []}', "none of"),
        ('{"images": [{"id": 1}], "categories": []}', "image 0.*file_name"),
        ('{"images": [{"id": "1", "file_name": "a.jpg"}], "categories": []}', "integer"),
        (
            '{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "a.jpg"}], "categories": []}',
            r"two images.*'a\.jpg'",
        ),
        ('{"images": [{"id": 1, "file_name": "a.jpg"}], "categories": [{"name": "cat", "id": 9}]}', "'cat'.*9.*7"),
        ('{"images": [{"id": 1, "file_name": "a.jpg"}], "categories": [{"name": "dog", "id": 7}]}', "id 7.*'dog'.*'cat'"),
    ],
)
def test_a_file_that_cannot_tell_ids_is_refused(tmp_path, content, said):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(PacelineError, match=r"--image-ids .*x\.json: .*" + said):
        read_image_ids([Path("a.jpg")], tmp_path / "x.json", {"cat": 7})
    with raises(PacelineError, "gone.json"):
        read_image_ids([Path("a.jpg")], tmp_path / "gone.json", {})


def test_names_that_are_numbers_are_ids_only_where_all_are_and_no_two_alike():
    photos = [Path("val/000000000139.jpg"), Path("val/7.png")]
    assert find_image_ids(photos, RunRecord())[0] == {photos[0]: 139, photos[1]: 7}
    for more in (Path("x.jpg"), Path("other/007.jpg"), Path("val/²3.jpg")):
        assert find_image_ids([*photos, more], RunRecord())[0] == {}


def test_the_data_sets_own_ids_go_before_names_that_are_numbers(maskrcnn_run):
    photos = sorted((maskrcnn_run.data / "val2017").iterdir())
    facts = read_run(maskrcnn_run.folder)
    ids, whence = find_image_ids(photos, facts)
    assert [ids[photo] for photo in photos] == [10 + int(photo.stem) for photo in photos] and "dataset" in whence
    other = [photo for folder in ("train2017", "val2017") for photo in (maskrcnn_run.data / folder).iterdir()]
    assert find_image_ids(other, facts)[0] == {}  # of two splits: their ids may be the same


def test_a_file_of_annotations_is_refused_before_anything_is_written(ssd_run, tmp_path, capsys):
    photos = ssd_run.data / "val2017"

    def asked(file: Path) -> Said:
        return command(capsys, "predict", ssd_run.folder, photos, "--output-dir", tmp_path / "out", "--image-ids", file)

    refused(asked(tmp_path / "gone.json"), "--image-ids", "gone.json")
    refused(asked(listed(tmp_path / "x.json", ("other.jpg", 1))), "none of", "other.jpg")
    assert not (tmp_path / "out").exists()

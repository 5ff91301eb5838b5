"""The service's answers are `paceline predict`'s, and its description is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from messages import check_text
from serving import Served, served
from tiny_runs import command

import paceline


@pytest.fixture(scope="module", params=["ssd", "maskrcnn", "resnet"])
def run(request) -> Any:
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="module")
def service(run) -> Any:
    with served(paceline.load(run.folder), max_batch_size=1, batch_timeout_ms=0) as one:
        yield one


@pytest.fixture(scope="module")
def photos(run) -> list[Path]:
    return [path for path in sorted(run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png")][:3]


def is_as_described(service: Served, name: str, answer: Any) -> None:
    """The answer fits the schema of this name in /openapi.json."""
    from openapi_schema_validator import OAS31Validator

    known = service.ask("/openapi.json").json["components"]
    OAS31Validator({"$ref": f"#/components/schemas/{name}", "components": known}).validate(answer)


def test_they_are_those_of_predict_on_the_same_bytes_digit_for_digit(run, service, photos, tmp_path, capsys):
    said = command(capsys, "predict", run.folder, *photos, "--no-save-images", "--output-dir", tmp_path / "answers")
    assert said.code == 0, said
    each = []
    for photo in photos:  # one by one: `predict` had them in one batch, where sums may come in another order
        command(capsys, "predict", run.folder, photo, "--no-save-images", "--output-dir", tmp_path / "answers")
        (image,) = json.loads((tmp_path / "answers" / "predictions.json").read_text())["images"]
        each.append({key: image[key] for key in image if key not in ("file", "annotated_image", "image_id")})
    assert any(image.get("detections", image.get("names")) for image in each)
    kind = "Objects" if "detections" in each[0] else "Classes"
    for photo, expected in zip(photos, each):
        answer = service.ask("/predict", photo.read_bytes(), Content_Type="image/jpeg").json
        assert answer == expected
        is_as_described(service, kind, answer)
    form = service.form(*((photo.name, photo.read_bytes()) for photo in photos)).json
    assert form == {"images": [{"file": photo.name, **one} for photo, one in zip(photos, each)], "skipped": []}
    is_as_described(service, "Several", form)


def test_what_is_no_photo_costs_a_form_one_line_and_a_single_photo_its_answer(service, photos):
    form = service.form(("note.txt", b"no photo"), (photos[0].name, photos[0].read_bytes())).json
    assert [one["file"] for one in form["images"]] == [photos[0].name]
    assert form["skipped"][0]["file"] == "note.txt" and check_text(form["skipped"][0]["reason"], "image format")
    service.ask("/predict", b"no photo").refused(422, "photo", "b'no photo' ... image format")
    none = service.form(("a.jpg", b"no photo"), ("b.jpg", photos[0].read_bytes()[:200]))
    none.refused(422, "None of")
    assert [one["file"] for one in none.json["skipped"]] == ["a.jpg", "b.jpg"]
    is_as_described(service, "Error", none.json)


def test_the_model_says_what_it_is_and_nothing_of_this_machine(run, service):
    model = service.ask("/model").json
    is_as_described(service, "Model", model)
    predictor = paceline.load(run.folder)
    assert model["classes"] == list(predictor.classes)
    assert model["size"]["parameters"] == sum(one.numel() for one in predictor.trained.model.parameters())
    assert model["provenance"]["checkpoint"] == predictor.trained.checkpoint
    assert str(run.folder.parent) not in json.dumps(model)


def test_the_description_is_openapi_and_names_every_address(service):
    from openapi_spec_validator import validate

    described = service.ask("/openapi.json").json
    validate(described)
    assert described["info"]["version"] == paceline.__version__
    for path, verbs in described["paths"].items():
        for verb in verbs:
            assert service.ask(path, b"" if verb == "post" else None).status not in (404, 405), (verb, path)


def test_a_threshold_leaves_what_predict_would_show(ssd_run):
    photo = next(iter(sorted(ssd_run.data.rglob("*.png")) or sorted(ssd_run.data.rglob("*.jpg")))).read_bytes()
    with served(paceline.load(ssd_run.folder), max_batch_size=1) as service:
        whole = service.ask("/predict", photo).json["detections"]
        scores = [one["score"] for one in whole]
        least = scores[len(scores) // 2]
        part = service.ask(f"/predict?score_threshold={least}", photo).json["detections"]
        assert 0 < len(part) < len(whole) and part == [one for one in whole if one["score"] >= least]
        for wrong in ("2", "-1", "nan", "much"):
            service.ask(f"/predict?score_threshold={wrong}", photo).refused(400, "score_threshold", "0 and 1")


def test_a_threshold_for_whole_photos_is_refused(resnet_run):
    with served(paceline.load(resnet_run.folder)) as service:
        service.ask("/predict?score_threshold=0.5", b"x").refused(400, "score_threshold", "classifiers")


def test_an_exported_file_answers_as_its_run(resnet_run, tmp_path, capsys):
    assert command(capsys, "export", resnet_run.folder, "--output", tmp_path / "pets.safetensors").code == 0
    photo = next(iter(sorted(resnet_run.data.rglob("*.jpg")))).read_bytes()
    with served(paceline.load(resnet_run.folder)) as run, served(paceline.load(tmp_path / "pets.safetensors")) as file:
        assert file.ask("/predict", photo).json == run.ask("/predict", photo).json
        model = file.ask("/model").json
        assert model["name"] == "pets.safetensors" and model["classes"] == run.ask("/model").json["classes"]

"""A workload of one's own, as docs/how-to/extend/task.md shows it, through every verb."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from messages import check_line
from tiny_runs import NET, command, refused, without_report

import paceline

ROOT = Path(paceline.__file__).parents[1]
SMALL = [*NET[4:], "--global-batch-size", 8, "--bn-batch-size", 8, "--optim.lr", 0.02]  # the input's, without a ResNet's


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The Python file that the page shows."""
    text = (ROOT / "docs/how-to/extend/task.md").read_text()
    file = tmp_path_factory.mktemp("own") / "my_net.py"
    file.write_text(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)[0])
    return file


def test_the_page_s_workload_trains_resumes_and_answers(page, class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    run, named = tmp_path / "run", ("--task-file", f"{page}:MINE")
    train = ["train", f"{page}:recipe", "--data", class_photos, "--output-dir", run, *SMALL, "--model.depth", 2]
    assert command(capsys, *train, "--max-steps", 2).code == 0
    said = command(capsys, *train, "--max-steps", 4)
    assert said.code == 0 and check_line(said.out, "resumed", "step-000002")
    assert "top1" in command(capsys, "eval", run, *named).out
    said = command(capsys, "predict", run, class_photos / "val" / "ant", "--output-dir", tmp_path / "found", *named)
    assert said.code == 0 and "images/s" in said.out
    assert re.search(r"\bwidth +16\b.*\bdepth +2\b", command(capsys, "plan", run, *named, "--verbose").out)
    preview = ["preview", f"{page}:recipe", "--output", tmp_path / "a.png", "--data", class_photos]
    assert command(capsys, *preview).code == 0
    refused(
        command(capsys, *train[:4], *SMALL, "--model.depth", 2, "--input.mixup-alpha", 0.2, "--output-dir", tmp_path / "b"),
        "mix",
    )
    with pytest.raises(paceline.PacelineError, match=r"paceline.load\(.*task_file="):
        paceline.load(run)
    assert paceline.load(run, checkpoint="last", task_file=f"{page}:MINE").finds_objects is False
    file, photos = tmp_path / "mine.safetensors", class_photos / "val" / "ant"
    assert command(capsys, "export", run, "--output", file, *named).code == 0
    refused(command(capsys, "predict", file, photos), "by default", f"--task-file {page}:MINE")
    refused(command(capsys, "compare", run, run, "--bisect"), "by default", f"--bisect --task-file {page}:MINE")
    assert "No difference" in command(capsys, "compare", run, run, "--bisect", *named).out
    there = paceline.load(run, task_file=f"{page}:MINE").predict(photos)
    here = paceline.load(file, task_file=f"{page}:MINE").predict(photos)
    assert [found.to_dict() for found in here] == [found.to_dict() for found in there]
    weights = ["--weights", run / "checkpoints" / "last", "--output-dir", tmp_path / "again"]
    said = command(capsys, *train[:4], *SMALL, "--model.depth", 2, *weights, "--max-steps", 1)
    assert said.code == 0 and "tensors used" in said.out
    assert "paceline report RUN --task-file" in _report(capsys, run)
    assert "Confused classes" in _report(capsys, run, *named)


def _report(capsys, run: Path, *named: str) -> str:
    assert command(capsys, "report", run, *named).code == 0
    return (run / "report.html").read_text()


def test_a_workload_without_a_recipe_takes_a_recipe_s_defaults(page, class_photos, capsys):
    said = command(capsys, "plan", f"{page}:MINE", "--data", class_photos, *SMALL, "--epochs", 3, "--verbose")
    assert said.code == 0 and re.search(r"\bwidth +16\b", said.out) and "3 epochs" in said.out
    refused(command(capsys, "plan", f"{page}:MINE", "--data", class_photos, *SMALL), "--epochs")
    refused(command(capsys, "plan", f"{page}:MyModel", "--data", class_photos), "returned MyModel, not a Recipe")


OWN_KIND = '''
"""The page's network with a score, a section and a template of its own kind."""
from dataclasses import replace
from pathlib import Path

from my_net import MINE, MyModel, MyNetwork, recipe
from paceline.models.workload import Reporting


class KindNetwork(MyNetwork):
    def check(self, recipe):
        assert isinstance(recipe.model, MyModel), type(recipe.model)


class KindReporting(Reporting):
    def section(self, predictions, data, exif):
        return {"answer": len(predictions["images"])}


REPORTING = KindReporting("top1", ("top1", "top5"), str(Path(__file__).with_name("kind.html.jinja")))
KIND = replace(MINE, network=KindNetwork(), reporting=REPORTING)


def kind():
    return replace(recipe(), task=f"{__file__}:KIND")
'''


@pytest.fixture
def own_kind(page, tmp_path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    (tmp_path / "my_net.py").write_text(page.read_text())
    (tmp_path / "kind.html.jinja").write_text("<p>my own section: {{ pictures.answer }} photos</p>")
    (tmp_path / "kind.py").write_text(OWN_KIND)
    return tmp_path / "kind.py"


def test_a_workload_with_a_section_of_its_own_is_reported_by_it_and_its_classes_are_its_recipe_s(
    own_kind, class_photos, capsys
):
    run = own_kind.parent / "run"
    words = ["train", f"{own_kind}:kind", "--data", class_photos, "--output-dir", run, *SMALL]
    said = command(capsys, *words, "--model.depth", 2, "--max-steps", 1)
    assert said.code == 0, said
    assert re.search(r"my own section: \d+ photos", (run / "report.html").read_text())
    assert '"submission_benchmark", "value": ""' in (run / "mllog.txt").read_text()
    (own_kind.parent / "kind.html.jinja").write_text("{{ pictures.nothing }}")
    refused(command(capsys, "report", run, "--task-file", f"{own_kind}:KIND"), "kind.html.jinja", "rendering")
    own_kind.write_text(OWN_KIND.replace('len(predictions["images"])', "1 / 0"))
    (own_kind.parent / "kind.html.jinja").write_text("unused")
    assert "ZeroDivisionError" in _report(capsys, run, "--task-file", f"{own_kind}:KIND")
    own_kind.write_text(OWN_KIND.replace('KindReporting("top1"', 'KindReporting("nothing"'))
    refused(command(capsys, "eval", run, "--task-file", f"{own_kind}:KIND"), "headline 'nothing' ... metrics")
    # A method would be hidden by the field of its name.
    own_kind.write_text(OWN_KIND.replace("def section(self, predictions, data, exif)", "def log_facts(self, run)"))
    refused(command(capsys, "eval", run, "--task-file", f"{own_kind}:KIND"), "log_facts=...")


def test_a_run_goes_on_through_its_run_json_from_wherever_its_file_lies_now(
    page, class_photos, tmp_path, capsys, monkeypatch
):
    without_report(monkeypatch)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "my_net.py").write_text(page.read_text())
    monkeypatch.chdir(here)
    words = ["--data", class_photos, "--output-dir", tmp_path / "run", *SMALL, "--model.depth", 2]
    assert command(capsys, "train", "./my_net.py:recipe", *words, "--max-steps", 2).code == 0
    (here / "my_net.py").rename(there / "moved.py")
    monkeypatch.chdir(there)
    go_on = ["train", tmp_path / "run" / "run.json", "--output-dir", tmp_path / "run", "--max-steps", 3]
    said = command(capsys, *go_on, "--task-file", "./moved.py:MINE")
    assert said.code == 0 and check_line(said.out, "resumed", "step-000002"), said
    refused(command(capsys, *go_on, "--task-file", "./moved.py"), "--task-file './moved.py'", "./file.py:name")
    refused(command(capsys, *go_on, "--task-file"), "--task-file ./file.py:name")


def test_two_files_of_one_name_are_two_modules(page, class_photos, tmp_path, capsys):
    """The recipe from one my_net.py, the workload from another, whose settings have a field more."""
    other = tmp_path / "my_net.py"
    other.write_text(page.read_text().replace("    depth: ", "    height: Literal[7] = 7\n    depth: "))
    late = "from __future__ import annotations\nfrom typing import Literal\nfrom dataclasses import"
    other.write_text(other.read_text().replace("from dataclasses import", late, 1))
    said = command(capsys, "plan", f"{other}:recipe", "--data", class_photos, *SMALL, "--verbose")
    assert said.code == 0 and re.search(r"\bheight +7\b", said.out)
    assert "height" not in command(capsys, "plan", f"{page}:recipe", "--data", class_photos, *SMALL, "--verbose").out
    said = command(capsys, "plan", f"{other}:recipe", "--data", class_photos, *SMALL, "--model.height", 8)
    assert said.code == 2  # its type hints are looked up in its own module
    said = command(capsys, "plan", f"{page}:recipe", "--data", class_photos, *SMALL, "--task", f"{other}:MINE")
    refused(said, "MyModel")


def test_a_recipe_of_another_workload_is_refused_before_anything_is_opened(capsys):
    for verb in ("train", "plan", "preview"):
        refused(command(capsys, verb, "ssd-demo", "--task", "classification"), "ResNetModel", "SSDModel")

"""Pickled arrays: `paceline weights` alone reads them, and what it writes is as good as the pickle was."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from messages import check_line, check_text, raises
from pickled_weights import caffe2_arrays, detectron2_content, gluon_arrays, pickled
from safetensors.torch import load_file, save_file
from tiny_runs import TINY, command, refused, train

import paceline
from paceline._utils.errors import CheckpointError
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec, init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.ssd.model import SSD, init_ssd
from paceline.models.weights.classes import Labels
from paceline.models.weights.load import load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights
from paceline.models.weights.weight_file import open_weights

pytestmark = pytest.mark.usefixtures("no_report")
LABELS = Labels(("dog", "helmet", "person"))
READER = "paceline.models.weights.formats.array_pickle"


def resnet(seed: int, classes: int = 3, depth: int = 50, **built: str) -> ResNet:
    model = ResNet(depth, classes, width=4, **built)  # type: ignore[arg-type]
    init_weights(model, "torchvision", torch.Generator().manual_seed(seed))
    return model


def mask_rcnn(seed: int, classes: int = 3, **built: str) -> MaskRCNN:
    settings = MaskRCNNModel(
        depth=50, width=4, fpn_channels=8, roi=RoI(fc_channels=16), mask=MaskHead(num_convs=1), **built
    )  # type: ignore[arg-type]
    model = MaskRCNN(settings, classes)
    init_mask_rcnn(model, torch.Generator().manual_seed(seed))
    return model


def ssd(seed: int) -> SSD:
    settings = SSDModel(depth=34, width=4, extra_channels=8)
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), 3, settings, grid_sizes(96))
    init_ssd(model, torch.Generator().manual_seed(seed))
    return model


def msra(folder: Path) -> Path:
    return pickled({"blobs": caffe2_arrays(resnet(1, 1000))}, folder / "R-50.pkl")


def zoo(folder: Path) -> Path:
    return pickled(detectron2_content(mask_rcnn(1, 80)), folder / "model_final.pkl")


def mxnets(folder: Path) -> Path:
    return pickled(gluon_arrays(resnet(1, depth=34)), folder / "resnet34.pickle")


def safetensors_of(file: Path) -> list[object]:
    return ["weights", "convert", file, "--format", "paceline", "--output", file.with_suffix(".safetensors")]


@dataclass(frozen=True)
class Loaded:
    """What became of a model, or why nothing did; names are sorted, because a .safetensors has them so."""

    said: tuple[str, ...]
    refusal: str
    state: dict[str, torch.Tensor]


def loaded(file, make, load) -> Loaded:
    model = make(2)
    try:
        report = load(model, file, LABELS)
    except CheckpointError as problem:
        return Loaded((), re.sub(r" \([^)]*, \.\.\.\)", "", str(problem).partition(": ")[2]), model.state_dict())
    names = sorted((*report.reinitialised, *report.missing, *report.unexpected))
    return Loaded((*report.said, *names), "", model.state_dict())


# the pickle, the network that it is loaded into, its loader, what is said or refused then
CASES = {
    "MSRA's": (msra, partial(resnet, stride_in="1x1"), load_weights, "the stem was converted to RGB"),
    "MSRA's in another network": (msra, resnet, load_weights, "--model.stride-in 1x1"),
    "MSRA's in another depth": (msra, partial(resnet, depth=18, stride_in="1x1"), load_weights, "weights of another model"),
    "detectron2's": (zoo, mask_rcnn, load_mask_rcnn_weights, "class rows matched by name: 2 of 3; the file has 80"),
    "the MXNet SSD's backbone": (mxnets, ssd, load_ssd_weights, "heads.0.conf.weight"),
    "the MXNet SSD's in another network": (mxnets, mask_rcnn, load_mask_rcnn_weights, "weights of another model"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_converted_first_they_give_the_same_tensors_notes_and_refusals_as_the_pickle_itself(case, tmp_path, capsys):
    write, make, load, says = CASES[case]
    file = write(tmp_path)
    at_once = loaded(open_weights(file, pickles=True), make, load)
    assert command(capsys, *safetensors_of(file)).code == 0
    converted = loaded(file.with_suffix(".safetensors"), make, load)
    assert converted.said == at_once.said and converted.refusal == at_once.refusal
    assert any(says in line for line in (*converted.said, converted.refusal)), converted.said
    assert at_once.state.keys() == converted.state.keys()
    assert all(torch.equal(tensor, converted.state[name]) for name, tensor in at_once.state.items())


def test_a_new_file_knows_what_the_pickle_did(tmp_path, capsys):
    for write in (msra, zoo, mxnets):
        file = write(tmp_path)
        before = open_weights(file, pickles=True)
        assert command(capsys, *safetensors_of(file)).code == 0
        after = open_weights(file.with_suffix(".safetensors"))
        assert (after.ours.needs, after.ours.notes) == (before.ours.needs, before.ours.notes)
        assert (after.classes, after.certain) == (before.classes, False)
        assert load_file(after.path).keys() == before.ours.tensors.keys()
    assert before.classes == () and not before.ours.notes


def test_a_list_of_class_names_is_certain_where_published_ones_were_not(tmp_path, capsys):
    (tmp_path / "names.txt").write_text("".join(f"thing {number}\n" for number in range(1000)))
    assert command(capsys, *safetensors_of(msra(tmp_path)), "--class-names-file", tmp_path / "names.txt").code == 0
    file = open_weights(tmp_path / "R-50.safetensors")
    assert file.certain and file.classes[-1] == ("thing 999",)
    again = safetensors_of(tmp_path / "R-50.safetensors")[:-1]
    assert command(capsys, *again, tmp_path / "again.safetensors").code == 0
    assert open_weights(tmp_path / "again.safetensors").certain


def test_msras_trains_in_two_steps_and_in_its_own_network_alone(photos, tmp_path, capsys):
    file, out = msra(tmp_path), tmp_path / "R-50.safetensors"
    words = ["--model.depth", 50, "--model.width", 4, "--system.compile", "off"]
    refused(
        train(capsys, photos, tmp_path / "run", *words, "--model.stride-in", "1x1", "--weights", file),
        f"{file}: pickled arrays must be converted. Pass the output of  "
        f"paceline weights convert {file} --format paceline --output {out}",
    )
    said = command(capsys, "weights", "convert", file, "--format", "paceline", "--output", out)
    assert said.code == 0 and check_line(said.out, "weights", "--model.stride-in 1x1")
    refused(train(capsys, photos, tmp_path / "run", *words, "--weights", out), f"{out}: ", "--model.stride-in 1x1")
    assert not (tmp_path / "run").exists()
    said = train(capsys, photos, tmp_path / "run", *words, "--model.stride-in", "1x1", "--weights", out)
    assert said.code == 0, said
    assert check_line(said.out, out) and check_text(said.out, "stem", "RGB")


def test_training_scoring_and_python_refuse_them_before_their_reader_is_loaded(photos, tmp_path):
    file = msra(tmp_path)
    net = ["--model.depth", "50", "--model.width", "4", "--model.stride-in", "1x1"]
    tiny = ["train", "classify-demo", "--data", str(photos), "--output-dir", str(tmp_path / "run"), *TINY, *net]
    script = f"""
import sys
from pathlib import Path
import paceline
from paceline.cli.main import main
from paceline._utils.errors import CheckpointError
from paceline.models.backbones.resnet import ResNet
from paceline.models.weights.load import load_same_network, load_weights
file = {str(file)!r}
assert main([*{tiny!r}, "--weights", file]) == 2
assert main(["eval", file, "--recipe", "classify-demo", "--data", {str(photos)!r}]) == 2
for load in (lambda: load_weights(ResNet(50, 3, width=4), file), lambda: load_same_network(ResNet(50, 3, width=4), Path(file), None),
             lambda: paceline.train("classify-demo", data={str(photos)!r}, output_dir={str(tmp_path / "py")!r}, weights=file,
             max_steps=1)):
    try:
        load()
    except paceline.PacelineError as refusal:
        print(refusal, file=sys.stderr)
assert {READER!r} not in sys.modules
assert main(["weights", "inspect", file]) in (0, 1)
assert {READER!r} in sys.modules
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(paceline.__file__).parents[1]
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr.count("pickled arrays") == 5, said.stderr
    assert "kind      pickled arrays\n" in said.stdout
    assert f"next      {' '.join(map(str, ['paceline', *safetensors_of(file)]))}\n" in said.stdout


def test_the_command_that_converts_them_is_to_be_pasted_from_check_and_from_training(photos, tmp_path, capsys):
    folder = tmp_path / "my weights"
    folder.mkdir()
    file = msra(folder)
    checked = command(capsys, "weights", "inspect", file).out.partition("next      paceline ")[2].splitlines()[0]
    refused_in = command(capsys, "train", "classify-demo", "--data", photos, *TINY, "--weights", file).err
    for printed in (checked, refused_in.partition("Pass the output of  paceline ")[2].splitlines()[0]):
        file.with_suffix(".safetensors").unlink(missing_ok=True)
        assert command(capsys, *shlex.split(printed)).code == 0
        assert file.with_suffix(".safetensors").is_file()


def test_get_says_that_a_pickle_is_converted_before_it_is_trained_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("paceline.data.download.fetch.fetch", lambda *_, **__: None)
    said = command(capsys, "weights", "download", "resnet50-msra", "--output-dir", tmp_path).out
    file = tmp_path / "R-50.pkl"
    assert f"then:  {' '.join(map(str, ['paceline', *safetensors_of(file)]))}\n" in said
    assert f"--weights {file.with_suffix('.safetensors')}\n" in said and f"--weights {file}" not in said


NOTES = {
    "a line break": ["a\nforged"],
    "an escape sequence": ["a\x1b]0;owned\x07"],
    "a megabyte": ["a" * 2**20],
    "a thousand": ["a"] * 1000,
    "no text": [3],
    "no list": 3,
}


@pytest.mark.parametrize("notes", NOTES.values(), ids=NOTES)
def test_notes_that_we_never_write_are_refused(notes, tmp_path):
    save_file({"conv1.weight": torch.ones(3)}, tmp_path / "w.safetensors", {"paceline": json.dumps({"notes": notes})})
    with raises(CheckpointError, "metadata", "damaged"):
        open_weights(tmp_path / "w.safetensors")

"""Which pixels and strides a detectron2 file is for: by its author, its pixel_std, or the norms of its trunk."""

from __future__ import annotations

import shlex

import pytest
import torch
import torch.nn.functional as F
from messages import check_text
from safetensors.torch import load_file
from tiny_runs import command, refused

from paceline.models.weights.formats.detectron2 import from_detectron2
from paceline.models.weights.formats.paceline_format import WeightFormatError

MEAN, STD = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])  # of R, G, B
STEM = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(0))


def file(*, statistics: bool, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """The first tensors of a trunk as detectron2 names them."""
    mean, var = (torch.rand(4), 1 + torch.rand(4)) if statistics else (torch.zeros(4), torch.full((4,), 1 - 1e-5))
    norm = "stem.conv1.norm."
    names = {
        f"{norm}weight": torch.ones(4),
        f"{norm}bias": torch.ones(4),
        f"{norm}running_mean": mean,
        f"{norm}running_var": var,
    }
    return {"stem.conv1.weight": STEM, "res2.0.conv3.weight": torch.ones(4, 4, 1, 1), **names, **more}


# pixel_mean, pixel_std -> order and deviation of its pixels
SAYS = {
    "rgb": (MEAN, STD, False, STD),
    "bgr and a deviation": (MEAN.flip(0), STD.flip(0), True, STD.flip(0)),
    "bgr by its mean": (MEAN.flip(0), torch.full((3,), 60.0), True, torch.full((3,), 60.0)),
    "rgb and another deviation": (MEAN, torch.full((3,), 127.5), False, torch.full((3,), 127.5)),
    "MSRA's": (MEAN.flip(0), torch.ones(3), True, torch.ones(3)),
}


@pytest.mark.parametrize("case", SAYS)
@pytest.mark.parametrize("statistics", [True, False], ids=["statistics", "none"])
def test_its_pixel_std_decides_and_the_stem_answers_our_pixels_as_it_did_its_own(case, statistics):
    mean, std, bgr, deviation = SAYS[case]
    ours = from_detectron2(file(statistics=statistics, pixel_mean=mean, pixel_std=std), {})
    pixels = 255 * torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    theirs = ((pixels - MEAN.view(3, 1, 1)).flip(1) if bgr else pixels - MEAN.view(3, 1, 1)) / deviation.view(3, 1, 1)
    found = F.conv2d((pixels - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1), ours.tensors["conv1.weight"], None, 2, 3)
    torch.testing.assert_close(found, F.conv2d(theirs, STEM, None, 2, 3), rtol=1e-4, atol=1e-3)
    assert ours.needs == ({"stride_in": "1x1"} if case == "MSRA's" else {})
    assert ours.converted == (() if case == "rgb" else ("conv1.weight",))
    assert any("BGR" in note for note in ours.notes) == bgr


def test_without_pixel_std_the_norms_decide_and_it_is_said():
    msra = from_detectron2(file(statistics=False), {})
    assert msra.needs == {"stride_in": "1x1"} and msra.converted == ("conv1.weight",)
    check_text(msra.notes[0], "norms", "Caffe2's")
    named = from_detectron2(file(statistics=False), {"__author__": "torchvision"})
    assert torch.equal(named.tensors["conv1.weight"], STEM) and not (named.needs or named.notes)


@pytest.mark.parametrize("marks", [{}, {"pixel_mean": torch.full((3,), 127.5), "pixel_std": torch.full((3,), 60.0)}])
def test_a_file_that_does_not_say_its_colours_is_refused_with_both_commands_and_each_of_them_gives_its_outputs(
    marks, tmp_path, capsys
):
    source = tmp_path / "my model.pth"
    torch.save({"model": file(statistics=True, **marks)}, source)
    for words in (["inspect", source], ["convert", source, "--format", "paceline", "--output", tmp_path / "o.safetensors"]):
        refusal = command(capsys, "weights", *words)
        refused(refusal, "RGB or BGR", "--color-order rgb", "--color-order bgr")
    pixels = 255 * torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)) - MEAN.view(3, 1, 1)
    for printed, bgr in zip(refusal.err.splitlines()[1:], (False, True), strict=True):
        words = shlex.split(printed)[1:]
        assert command(capsys, *words).code == 0
        stem = load_file(words[words.index("--output") + 1])["conv1.weight"]
        deviation = marks.get("pixel_std", STD.flip(0) if bgr else STD).view(3, 1, 1)
        theirs = F.conv2d((pixels.flip(1) if bgr else pixels) / deviation, STEM, None, 2, 3)
        torch.testing.assert_close(F.conv2d(pixels / STD.view(3, 1, 1), stem, None, 2, 3), theirs, rtol=1e-4, atol=1e-3)


def test_colours_of_a_file_that_says_them_are_not_overruled(tmp_path, capsys):
    source = tmp_path / "model.pth"
    torch.save({"model": file(statistics=True, pixel_mean=MEAN, pixel_std=STD)}, source)
    words = [
        "weights",
        "convert",
        source,
        "--format",
        "paceline",
        "--output",
        tmp_path / "o.safetensors",
        "--color-order",
        "bgr",
    ]
    refused(command(capsys, *words), "Remove --color-order")


def test_a_deviation_of_nothing_is_refused():
    with pytest.raises(WeightFormatError, match="standard deviation"):
        from_detectron2(file(statistics=True, pixel_std=torch.zeros(3)), {})

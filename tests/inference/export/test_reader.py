"""The program beside an ONNX file gives the network an evaluation's very pixels, and pastes masks as an evaluation does."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hotcoco.mask import decode
from messages import check_text
from PIL import Image

from paceline.config.recipes import RECIPES
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.inference.export.onnx_export import READER
from paceline.inference.graph import onnx_reader
from paceline.inference.graph.onnx_reader import paste_mask, to_input
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.registry import get_workload


def photos() -> Iterator[tuple[str, bytes]]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (151, 203, 3), dtype=np.uint8)
    large = Image.fromarray(np.kron(coarse, np.ones((5, 5, 1), np.uint8)))
    for name, picture in (("large", large.crop((0, 0, 1009, 749))), ("small", large.crop((9, 4, 410, 337)))):
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            yield f"{name}, held as {orientation}", encoded(picture, "JPEG", exif=exif)
    yield "grey", encoded(large.convert("L"), "JPEG")
    yield "CMYK", encoded(large.convert("CMYK"), "JPEG")
    yield "PNG", encoded(large, "PNG")
    yield "palette", encoded(large.quantize(64), "PNG")
    yield "16 bits", encoded(Image.fromarray(random.integers(0, 65535, (300, 200)).astype(np.uint16)), "PNG")


def encoded(picture: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


# The rules of all recipes, and those that recipes can be given.
RULES = {
    "resnet50": {}, "classify-demo": {"exif": "apply"}, "ssd": {}, "ssd-gaudi": {"exif": "apply"}, "ssd-demo": {"decoder": "pillow"},
    "ssd-finetune": {"resize": "bilinear"}, "maskrcnn-demo": {}, "maskrcnn-finetune": {"min_size": (128,), "max_size": 224},
    "maskrcnn-gluoncv": {"min_size": (128,), "max_size": 224},
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_every_pixel_is_that_of_an_evaluation(name):
    recipe = RECIPES[name]()
    recipe = replace(recipe, input=replace(recipe.input, **RULES[name]))
    workload = get_workload(recipe.task)
    side = -(-recipe.input.max_size // 32) * 32 if recipe.task == "instance-segmentation" else 0
    for about, data in photos():
        header = read_header(data, about, recipe.input.exif)
        shape = (side, side) if side else workload.network.eval_shape(recipe, header.height, header.width)
        draw = workload.data().draw_eval(recipe, header, about, shape)
        wanted = np.empty((*shape, 3), np.uint8)
        decode_and_transform(data, draw, wanted)
        facts = {"task": recipe.task, "height": shape[0], "width": shape[1], "input": asdict(recipe.input)}
        pixels, size, photo = to_input(data, facts)
        assert photo == (header.height, header.width), about
        assert size == ((draw.window.resized_height, draw.window.resized_width) if side else shape), about
        assert np.array_equal(pixels, wanted), (about, np.abs(pixels.astype(int) - wanted).max())


def test_a_portrait_is_made_smaller_for_the_input_of_landscapes():
    recipe = RECIPES["maskrcnn-demo"]()
    data = encoded(Image.new("RGB", (300, 600), (9, 99, 199)), "PNG")
    facts = {"task": "instance-segmentation", "height": 256, "width": 352, "input": asdict(recipe.input)}
    pixels, size, photo = to_input(data, facts)
    assert (size, photo) == ((256, 128), (600, 300))
    assert (pixels[:256, :128] == (9, 99, 199)).all() and not pixels[:, 128:].any()


@pytest.mark.parametrize("law", ["torchvision", "gluoncv"])
def test_masks_are_pasted_to_the_same_pixels(law):
    random = np.random.default_rng(1)
    masks = random.random((40, 28, 28), dtype=np.float32)
    boxes = np.sort(random.uniform(-20, 130, (40, 2, 2)), axis=1).reshape(40, 4)
    boxes[0] = boxes[0, [0, 1, 0, 1]]  # without area
    runs = paste_to_rle(torch.from_numpy(masks), torch.from_numpy(boxes), 90, 110, law=law)
    differing = 0
    for place in range(len(masks)):
        wanted = decode({"size": [90, 110], "counts": runs[place].decode()}).astype(bool)
        differing += int((paste_mask(masks[place], boxes[place], 90, 110, 0.5, law) != wanted).sum())
    assert differing <= 1, differing  # a probability of 0.5 but for its last bit


def test_the_program_stands_alone():
    tree = ast.parse(READER.read_text())
    modules = {one.module if isinstance(one, ast.ImportFrom) else one.names[0].name
               for one in ast.walk(tree) if isinstance(one, ast.Import | ast.ImportFrom)}  # fmt: skip
    assert not any((name or "").startswith(("paceline", "torch")) for name in modules), modules


def test_the_program_reports_an_image_without_a_detection_above_the_threshold(monkeypatch, capsys):
    found = {"name": "cat", "score": 0.2, "box": (0.0, 0.0, 4.0, 4.0)}
    monkeypatch.setattr(onnx_reader, "ONNXModel", lambda file: lambda photo: [found])
    assert onnx_reader.main(["a.jpg"]) == 0
    out = capsys.readouterr().out
    assert check_text(out, "a.jpg", "0.3", "--score-threshold") and "cat" not in out
    assert onnx_reader.main(["a.jpg", "--score-threshold", "0.1"]) == 0
    assert check_text(capsys.readouterr().out, "a.jpg", "cat", "0.200")

"""Habana's TensorFlow SSD: its own functions' outputs, recorded by scripts/originals/ssd_gaudi.py, beside recipe ssd-gaudi's."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from two_samples import differ

from paceline.config.recipes.ssd import gaudi
from paceline.config.ssd import BoxInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import ColorJitter, apply_color_jitter
from paceline.data.transforms.crop import IOU_ABOVE, CropWindow, ssd_crop
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.ops.boxes import SSD_CODER, to_cxcywh
from paceline.models.ops.matching import match
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.transforms import clip_boxes_to_crop, evaluation_box_spec
from paceline.models.weights.formats.tensorflow import from_tensorflow

RECIPE = gaudi()


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "recorded" / "ssd_gaudi.npz") as file:
        return dict(file)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_is_crop_and_resizes_to_half_a_level(theirs, flip) -> None:
    data = png(theirs["photo"])
    header = read_header(data, "it")
    for (top, left, bottom, right), wanted in zip(theirs["crops"].tolist(), theirs["crop_pixels"]):
        window, out = CropWindow(top, left, bottom - top, right - left, 20, 20), np.zeros((20, 20, 3), np.uint8)
        decode_crop(data, SampleSpec("it", header, window, None, flip, decoder="simplejpeg", law="tensorflow-crop"), out)
        assert np.abs(out - (wanted[:, ::-1] if flip else wanted)).max() <= 0.501


@pytest.mark.parametrize("size", [20, 44])
def test_a_photo_is_evaluated_as_resize_images_makes_it_to_half_a_level(theirs, size) -> None:
    data, out = png(theirs["photo"]), np.zeros((size, size, 3), np.uint8)
    settings = BoxInput(image_size=size, resize=RECIPE.input.resize)
    decode_and_transform(data, evaluation_box_spec(read_header(data, "it"), "it", settings), out)
    assert np.abs(out - theirs[f"evaluation_{size}"]).max() <= 0.501


def test_colours_are_color_jitters_to_half_a_level(theirs) -> None:
    for number, (added, contrast, saturation, turns) in enumerate(theirs["amounts"].tolist()):
        out = theirs["pictures"][number % 2].copy()
        apply_color_jitter(out, ColorJitter("tensorflow", (), 1.0, 255 * added, contrast, saturation, turns))
        # Theirs go on past black and white, ours end there: pixels are bytes.
        assert np.abs(out - (255 * theirs["jittered"][number]).clip(0, 255)).max() <= 0.505


def test_the_recipe_draws_what_color_jitter_draws() -> None:
    photo = RECIPE.input
    assert (photo.color_jitter, photo.parity.brightness_mode, photo.resize) == ("tensorflow", "add", "tensorflow")
    assert (photo.brightness, photo.contrast, photo.saturation, photo.hue) == (0.125, 0.5, 0.5, 0.05)


@pytest.mark.parametrize("name", ["one", "three"])
def test_crops_have_its_distribution_and_boxes_are_cut_as_its_own(theirs, name) -> None:
    """Theirs are top, left, bottom, right in fractions; a photo of 4000 pixels makes our whole pixels fine enough."""
    side = 4000
    objects, bounds, stays = (theirs[f"crop_{part}_{name}"] for part in ("objects", "bounds", "stays"))
    ltrb = side * objects[:, [1, 0, 3, 2]].astype(np.float64)
    photo, ours = RECIPE.input, []
    for draw in range(1000):
        window, keep = ssd_crop(side, side, ltrb, SampleRng(0, 0, draw), photo)
        ours.append((window.top, window.left, window.top + window.height, window.left + window.width, keep.sum()))
    mine = np.array(ours, np.float64) / (side, side, side, side, 1)
    whole = [(rows[:, :4] == (0, 0, 1, 1)).all(1) for rows in (bounds, mine)]
    assert abs(whole[0].mean() - whole[1].mean()) < 0.06
    for column in range(4):
        assert not differ(bounds[~whole[0], column], mine[~whole[1], column])
    assert abs(stays.sum(1).mean() - mine[:, 4].mean()) < 0.12
    kept, place = [], 0
    for (top, left, bottom, right), keep in zip(bounds.astype(np.float64) * side, stays):
        window = CropWindow(top, left, bottom - top, right - left, 300, 300)  # type: ignore[arg-type]
        kept.append(clip_boxes_to_crop(window, ltrb, keep, False)[0][keep])
        place += keep.sum()
        if place >= 300:
            break
    wanted = theirs[f"crop_boxes_{name}"][:, [1, 0, 3, 2]]
    np.testing.assert_allclose(np.concatenate(kept)[:300].clip(0, 1), wanted[:300], atol=2e-6)


@pytest.mark.parametrize("name", ["one", "three"])
def test_each_of_its_crops_passes_our_rules(theirs, name) -> None:
    objects, bounds, stays = (theirs[f"crop_{part}_{name}"].astype(np.float64) for part in ("objects", "bounds", "stays"))
    for (top, left, bottom, right), keep in zip(bounds, stays):
        centers = (objects[:, :2] + objects[:, 2:]) / 2
        inside = ((centers > (top, left)) & (centers < (bottom, right))).all(1)
        assert (inside == keep.astype(bool)).all() and inside.any()
        assert 0.5 <= (right - left) / (bottom - top) <= 2
        shared = np.minimum(objects[:, 2:], (bottom, right)) - np.maximum(objects[:, :2], (top, left))
        assert (shared > 0).all(), f"the loosest of {IOU_ABOVE} and 0 wants it to touch every object"


@pytest.mark.parametrize("number", range(5))
def test_matching_is_encode_labels(theirs, number) -> None:
    """Small objects in boxes of one shape, coarse ones of equal overlap, equal objects: to the last default box."""
    model, detector = RECIPE.model, WORKLOADS["detection"].network.build(RECIPE, 1)
    assert detector.corners is not None and detector.order is not None
    boxes = torch.from_numpy(theirs[f"objects_{number}"][:, [1, 0, 3, 2]].copy())[None]
    labels = torch.arange(1, boxes.shape[1] + 1)[None]
    rules = {"match_rule": model.match_rule, "tie": model.parity.tie, "order": detector.order}
    slots, positives = (part[0, detector.order] for part in match(boxes, labels, detector.corners, **rules))
    assert positives.nonzero().flatten().tolist() == theirs[f"positive_{number}"].tolist()
    assert labels[0, slots[positives]].tolist() == theirs[f"class_{number}"].tolist()
    targets = SSD_CODER.encode(to_cxcywh(boxes[0, slots[positives]]), detector.anchors[detector.order][positives])
    np.testing.assert_allclose(targets.numpy(), theirs[f"target_{number}"][:, [1, 0, 3, 2]], atol=2e-5)


def test_new_layers_start_as_its_own(theirs) -> None:
    """Glorot's uniform law for kernels, each level's classes and boxes apart, and biases of zero."""
    model = WORKLOADS["detection"].network.build(RECIPE, 80)
    WORKLOADS["detection"].network.initialize(RECIPE, model, torch.Generator().manual_seed(0))
    first, ours = json.loads(str(theirs["first_values"])), model.network.state_dict()
    made = json.loads(str(theirs["variables"]))
    # Each variable full of its own number: under our names the numbers tell which it was.
    numbered = {name: torch.tensor(float(number)).expand(shape) for number, (name, *shape) in enumerate(made)}
    compared = 0
    for key, values in from_tensorflow(numbered, {}).tensors.items():
        name = made[int(values.flatten()[0])][0]
        if name not in first:
            continue
        low, high, mean, deviation = first[name][-4:]
        compared += 1
        if name.endswith("bias"):
            assert (low, high) == (0, 0) and not ours[key].any()
            continue
        # The smallest kernel has 36,864 values; its extremes are within a thousandth of the bound, its deviation within a hundredth.
        assert float(ours[key].abs().max()) == pytest.approx(max(-low, high), rel=2e-3)
        assert float(ours[key].std()) == pytest.approx(deviation, rel=0.02)
        assert abs(float(ours[key].mean()) - mean) < 0.03 * deviation
    assert compared == 2 * (2 * 5 + 2 * 6)


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """As scripts/originals/ssd_gaudi.py draws it."""
    values = np.random.RandomState(sum(map(ord, name))).standard_normal(shape)
    if name.endswith("kernel"):
        return (values * (2 / np.prod(shape[:3])) ** 0.5).astype(np.float32)
    scale = {"gamma": 1 + 0.1 * values, "moving_variance": 1 + 0.1 * np.abs(values)}
    return scale.get(name.rsplit("/", maxsplit=1)[-1], 0.1 * values).astype(np.float32)


def test_the_network_gives_its_outputs_for_its_weights(theirs) -> None:
    """All of it, SAME padding of the max-pool and of the extra layers above all."""
    saved = {name: torch.from_numpy(drawn(name, tuple(shape))) for name, *shape in json.loads(str(theirs["variables"]))}
    network = WORKLOADS["detection"].network.build(RECIPE, 80).network.eval()
    network.load_state_dict(from_tensorflow(saved, {}).tensors, strict=False)
    photo = np.random.RandomState(6).standard_normal((1, 300, 300, 3)).astype(np.float32)
    with torch.no_grad():
        logits, deltas = network(torch.from_numpy(photo).permute(0, 3, 1, 2))
    deltas, start = deltas[..., [1, 0, 3, 2]], 0
    for level, (grid, boxes) in enumerate(zip((38, 19, 10, 5, 3, 1), (4, 6, 6, 6, 4, 4))):
        rows = slice(start, start := start + grid * grid * boxes)
        for kind, values in (("class", logits), ("box", deltas)):
            wanted, flat = theirs[f"output_{kind}_{level}"], values[0, rows].flatten().numpy()
            flat = flat[:: max(1, len(flat) // 500)]
            assert np.abs(flat - wanted).max() < 1e-4 * np.abs(wanted).max()

"""Write down what Habana's TensorFlow SSD computes: crops, pixels, colors, matching, first weights, one pass of its network.

    TF_USE_LEGACY_KERAS=1 python scripts/originals/ssd_gaudi.py --habana MODEL_REFERENCES --out tests/oracle/recorded/ssd_gaudi.npz

MODEL_REFERENCES: a checkout of github.com/HabanaAI/Model-References at 1.5.0 (cf420d00), whose own functions are called: dataloader's
`ssd_crop`, `color_jitter` and `encode_labels`, architecture's `ssd`. Needs tensorflow-cpu, tf_keras and tf_slim. Inputs are drawn
here, by numbered generators, and kept beside the outputs.
Letters: K cases   N draws   n objects   A default boxes
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import tensorflow.compat.v1 as tf

DRAWS = 1000
# Amounts that color_jitter draws, in its order: brightness to add (of 1), then factors, then hue in turns.
LOW, HIGH = (-0.125, 0.5, 0.5, -0.05), (0.125, 1.5, 1.5, 0.05)


def pixels(found: dict[str, np.ndarray]) -> None:
    """The training crop as `ssd_crop` calls for it, for given crops, and the evaluation's resize."""
    photo = np.random.RandomState(1).randint(0, 256, (37, 53, 3)).astype(np.uint8)
    crops = np.array([(0, 0, 37, 53), (5, 9, 30, 41), (12, 20, 24, 38), (0, 30, 37, 53), (26, 0, 37, 16)])
    boxes = (crops / (37, 53, 37, 53)).astype(np.float32)
    cut = tf.image.crop_and_resize(photo[None], boxes, np.zeros(len(crops), np.int32), (20, 20))
    found.update(photo=photo, crops=crops, crop_pixels=cut.numpy())
    for size in (20, 44):
        found[f"evaluation_{size}"] = tf.image.resize_images(photo, (size, size)).numpy()


def colours(found: dict[str, np.ndarray], dataloader) -> None:
    """`color_jitter` with given amounts, for noise, pale noise and pure colors in 0..1."""
    random = np.random.RandomState(2)
    noise = random.randint(0, 256, (12, 16, 3))
    corners = 255 * np.stack(np.meshgrid((0, 1), (0, 1), (0, 1)), -1).reshape(-1, 3)
    noise[0, :8], noise[1, :8] = corners, corners // 2
    pictures = np.stack([noise, 100 + noise // 5]).astype(np.uint8)
    amounts = random.uniform(LOW, HIGH, (20, 4)).astype(np.float32)
    amounts[:2] = LOW, HIGH
    rows = []
    for number, (added, contrast, saturation, hue) in enumerate(amounts):
        given = {
            "random_brightness": lambda image, max_delta, by=added: tf.image.adjust_brightness(image, by),
            "random_contrast": lambda image, lower, upper, by=contrast: tf.image.adjust_contrast(image, by),
            "random_saturation": lambda image, lower, upper, by=saturation: tf.image.adjust_saturation(image, by),
            "random_hue": lambda image, max_delta, by=hue: tf.image.adjust_hue(image, by),
        }
        with patch.multiple(dataloader.tf.image, **given):
            picture = tf.constant(pictures[number % 2], tf.float32) / 255.0
            rows.append(dataloader.color_jitter(picture, brightness=0.125, contrast=0.5, saturation=0.5, hue=0.05).numpy())
    found.update(pictures=pictures, amounts=amounts, jittered=np.stack(rows))


def crops(found: dict[str, np.ndarray], dataloader) -> None:
    """N draws of `ssd_crop` for one object and for three: the crop, as top, left, bottom, right, and which objects stay."""
    sets = {
        "one": [(0.3, 0.25, 0.8, 0.6)],
        "three": [(0.1, 0.1, 0.55, 0.45), (0.4, 0.5, 0.95, 0.9), (0.35, 0.3, 0.65, 0.75)],
    }
    # Between two pixels that are 0 and 1, a corner's value is where the crop begins or ends.
    down, across = np.meshgrid((0.0, 1.0), (0.0, 1.0), indexing="ij")
    ramp = tf.constant(np.stack([down, across, 0 * down], -1), tf.float32)
    tf.random.set_random_seed(3)
    signature = [tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32)]
    once = tf.function(lambda boxes, names: dataloader.ssd_crop(ramp, boxes, names), input_signature=signature)
    for name, boxes in sets.items():
        ours = tf.constant(boxes, tf.float32)
        names = tf.constant(np.arange(len(boxes))[:, None], tf.float32)
        bounds, stays, cut = np.zeros((DRAWS, 4), np.float32), np.zeros((DRAWS, len(boxes)), bool), []
        for draw in range(DRAWS):
            image, kept, classes = (part.numpy() for part in once(ours, names))
            bounds[draw] = *image[0, 0, :2], *image[-1, -1, :2]
            stays[draw, classes[:, 0].astype(int)] = True
            cut.append(kept)
        found.update({f"crop_objects_{name}": np.array(boxes, np.float32), f"crop_bounds_{name}": bounds})
        found.update({f"crop_stays_{name}": stays, f"crop_boxes_{name}": np.concatenate(cut)[:300]})


def matching(found: dict[str, np.ndarray], dataloader) -> None:
    """`encode_labels` for small, coarse, equal and sharing objects: class and target of each positive default box."""
    double = dataloader.DefaultBoxes.__call__
    random = np.random.RandomState(4)
    corner = random.uniform(0, 0.9, (12, 2))
    small = np.concatenate([corner, np.minimum(corner + random.uniform(0.01, 0.08, (12, 2)), 1)], 1)
    edge = random.randint(0, 9, (10, 2, 2)) / 8
    coarse = np.concatenate([edge.min(1), edge.max(1)], 1)
    coarse = coarse[(coarse[:, 2:] > coarse[:, :2]).all(1)]
    corner = random.uniform(0, 0.5, (5, 2))
    large = np.concatenate([corner, corner + random.uniform(0.2, 0.5, (5, 2))], 1)
    equal = np.repeat(large[:2], 2, 0)
    for number, boxes in enumerate((small, coarse, large, equal, large[:1])):
        boxes = boxes.astype(np.float32)
        labels = (1 + np.arange(len(boxes)))[:, None].astype(np.float32)
        # TensorFlow 2.9 made float32 of the default boxes' numpy scalars; later ones make float64 of them and refuse it.
        single = lambda made, order: np.array(double(made, order), np.float32)  # noqa: E731
        with patch.object(dataloader.DefaultBoxes, "__call__", single):
            coded = dataloader.encode_labels(tf.constant(boxes), tf.constant(labels))
        classes, targets, count = (part.numpy() for part in coded)
        positive = classes[:, 0].nonzero()[0]
        assert len(positive) == count
        found.update({f"objects_{number}": boxes, f"positive_{number}": positive.astype(np.int16)})
        found.update({f"class_{number}": classes[positive, 0].astype(np.int8), f"target_{number}": targets[positive]})


def network(found: dict[str, np.ndarray], architecture) -> None:
    """First values of the extra layers and heads, and the outputs of the whole network for weights by `drawn`."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        photo = np.random.RandomState(6).standard_normal((1, 300, 300, 3)).astype(np.float32)
        classes, boxes = architecture.ssd(tf.constant(photo), {"distributed_bn": False}, False)[:2]
        session.run(tf.global_variables_initializer())
        first, made = {}, []
        for variable in tf.global_variables():
            name = variable.name.removesuffix(":0")
            values = session.run(variable)
            if name.startswith("ssd/"):
                first[name] = [*values.shape, *(float(f(values)) for f in (np.min, np.max, np.mean, np.std))]
            made.append([name, *values.shape])
            variable.load(drawn(name, values.shape), session)
        outputs = session.run([[outputs[level] for level in sorted(outputs)] for outputs in (classes, boxes)])
    found["first_values"], found["variables"] = np.array(json.dumps(first)), np.array(json.dumps(made))
    for kind, levels in zip(("class", "box"), outputs):
        for level, values in enumerate(levels):
            flat = values.ravel()
            found[f"output_{kind}_{level}"] = flat[:: max(1, len(flat) // 500)]


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values for a variable that both sides can make: tests/oracle/test_ssd_gaudi.py has the same lines."""
    values = np.random.RandomState(sum(map(ord, name))).standard_normal(shape)
    if name.endswith("kernel"):
        return (values * (2 / np.prod(shape[:3])) ** 0.5).astype(np.float32)
    scale = {"gamma": 1 + 0.1 * values, "moving_variance": 1 + 0.1 * np.abs(values)}
    return scale.get(name.rsplit("/", maxsplit=1)[-1], 0.1 * values).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--habana", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.habana))
    tf.disable_v2_tensorshape()
    from TensorFlow.computer_vision.SSD_ResNet34 import architecture, dataloader

    found: dict[str, np.ndarray] = {"tensorflow": np.array(tf.__version__)}
    pixels(found)
    colours(found, dataloader)
    crops(found, dataloader)
    matching(found, dataloader)
    network(found, architecture)
    np.savez_compressed(asked.out, **found)
    print(asked.out, asked.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

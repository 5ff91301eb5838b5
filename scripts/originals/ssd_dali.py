"""Write down what DALI's own operators compute in System A's input: colors, random crops, matching, resizing.

    python scripts/originals/ssd_dali.py --out tests/oracle/recorded/ssd_dali.npz

Needs nvidia-dali-cuda120 (2.4.0 was used); everything runs on its CPU backend, with the arguments of the submission's
input_pipeline.py (mlcommons/training_results_v0.7, DellEMC, mxnet). Inputs are drawn here, by numbered generators.
Letters: K cases   N draws   n objects   A default boxes
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import nvidia.dali as dali
from nvidia.dali import fn, types

DRAWS = 1000


def once(graph, **options) -> list[np.ndarray]:
    """One batch of one sample through a graph of DALI operators."""
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None, exec_dynamic=True, **options)
    with pipeline:
        pipeline.set_outputs(*graph())
    pipeline.build()
    return [np.array(output.at(0)) for output in pipeline.run()]


def colours(found: dict[str, np.ndarray]) -> None:
    """Hsv, then BrightnessContrast, for noise and pure colors: of uint8, rounded and cut after each, as there.

    ColorTwist, which NVIDIA's PyTorch submission had in their place, with the same amounts.
    """
    random = np.random.RandomState(2)
    noise = random.randint(0, 256, (12, 16, 3))
    corners = 255 * np.stack(np.meshgrid((0, 1), (0, 1), (0, 1)), -1).reshape(-1, 3)
    noise[0, :8], noise[1, :8] = corners, corners // 2
    pictures = np.stack([noise, 100 + noise // 5]).astype(np.uint8)
    # saturation, hue in degrees, contrast, brightness; the last ones turn further than System A did.
    amounts = random.uniform((0.5, -0.5, 0.5, 0.875), (1.5, 0.5, 1.5, 1.125), (20, 4)).astype(np.float32)
    amounts[-6:, 1] = (-18, 18, -90, 60, 120, 180)
    middle, rows, twisted = [], [], []
    for number, (saturation, hue, contrast, brightness) in enumerate(amounts.tolist()):
        picture = pictures[number % 2]

        def graph(picture=picture, saturation=saturation, hue=hue, contrast=contrast, brightness=brightness):
            turned = fn.hsv(types.Constant(picture, device="cpu"), saturation=saturation, hue=hue)
            changed = fn.brightness_contrast(turned, contrast=contrast, brightness=brightness)
            data = types.Constant(picture, device="cpu")
            twist = {"saturation": saturation, "hue": hue, "contrast": contrast, "brightness": brightness}
            return turned, changed, fn.color_twist(data, **twist)

        turned, changed, by_one = once(graph)
        twisted.append(by_one)
        middle.append(turned)
        rows.append(changed)
    found.update(pictures=pictures, amounts=amounts, turned=np.stack(middle), jittered=np.stack(rows))
    found["twisted"] = np.stack(twisted)


def crops(found: dict[str, np.ndarray]) -> None:
    """N draws of RandomBBoxCrop for one object and for three: the crop, which objects stay, and their boxes in it."""
    sets = {
        "one": [(0.25, 0.3, 0.6, 0.8)],
        "three": [(0.1, 0.1, 0.45, 0.55), (0.5, 0.4, 0.9, 0.95), (0.3, 0.35, 0.75, 0.65)],
    }
    for name, boxes in sets.items():
        pipeline = dali.Pipeline(batch_size=DRAWS, num_threads=1, device_id=None, seed=3, exec_dynamic=True)
        with pipeline:
            objects = types.Constant(np.array(boxes, np.float32), device="cpu")
            labels = types.Constant(np.arange(len(boxes), dtype=np.int32), device="cpu")
            pipeline.set_outputs(
                *fn.random_bbox_crop(
                    objects, labels, aspect_ratio=[0.5, 2.0], thresholds=[0, 0.1, 0.3, 0.5, 0.7, 0.9],
                    scaling=[0.3, 1.0], bbox_layout="xyXY", allow_no_crop=True, num_attempts=1,
                )
            )  # fmt: skip
        pipeline.build()
        begins, sizes, kept, names = pipeline.run()
        bounds, stays = np.zeros((DRAWS, 4), np.float32), np.zeros((DRAWS, len(boxes)), bool)
        for draw in range(DRAWS):
            begin, size = np.array(begins.at(draw)), np.array(sizes.at(draw))
            bounds[draw] = *begin, *(begin + size)
            stays[draw, np.array(names.at(draw))] = True
        found.update({f"crop_objects_{name}": np.array(boxes, np.float32), f"crop_bounds_{name}": bounds})
        cut = np.concatenate([np.array(kept.at(draw)) for draw in range(DRAWS)])
        found.update({f"crop_stays_{name}": stays, f"crop_boxes_{name}": cut[:300]})


def edges(found: dict[str, np.ndarray]) -> None:
    """Whether an overlap of just the threshold is enough: the one crop that there is, of half its only object."""
    pipeline = dali.Pipeline(batch_size=64, num_threads=1, device_id=None, seed=4, exec_dynamic=True)
    with pipeline:
        objects = types.Constant(np.array([(0, 0, 1, 0.5)], np.float32), device="cpu")
        labels = types.Constant(np.array([1], np.int32), device="cpu")
        pipeline.set_outputs(
            *fn.random_bbox_crop(
                objects, labels, aspect_ratio=[0.5, 2.0], thresholds=[0.5], scaling=[1.0, 1.0],
                bbox_layout="xyXY", allow_no_crop=False, num_attempts=1, total_num_attempts=4,
            )
        )  # fmt: skip
    pipeline.build()
    begins, sizes, _, names = pipeline.run()
    found["edge_bounds"] = np.stack([np.concatenate((begins.at(k), sizes.at(k))) for k in range(64)])
    found["edge_stays"] = np.array([len(names.at(k)) for k in range(64)])


def matching(found: dict[str, np.ndarray]) -> None:
    """BoxEncoder on the submission's default boxes, cell by cell: class and target of each positive one."""
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
        labels = 1 + np.arange(len(boxes), dtype=np.int32)

        def graph(boxes=boxes, labels=labels):
            return fn.box_encoder(
                types.Constant(boxes, device="cpu"), types.Constant(labels, device="cpu"), criteria=0.5,
                anchors=anchors().flatten().tolist(), offset=True, stds=[0.1, 0.1, 0.2, 0.2], scale=300.0,
            )  # fmt: skip

        targets, classes = once(graph)
        positive = classes.nonzero()[0]
        found.update({f"objects_{number}": boxes, f"positive_{number}": positive.astype(np.int16)})
        found.update({f"class_{number}": classes[positive].astype(np.int8), f"target_{number}": targets[positive]})


def anchors() -> np.ndarray:
    """(A, 4) left, top, right, bottom: the published default boxes cell by cell, in double precision as there."""
    rows = []
    sizes, steps, grids = (21, 45, 99, 153, 207, 261, 315), (8, 16, 32, 64, 100, 300), (38, 19, 10, 5, 3, 1)
    for level, (grid, step) in enumerate(zip(grids, steps)):
        size, between = sizes[level], np.sqrt(sizes[level] * sizes[level + 1])
        shapes = [(size, size), (between, between)]
        for ratio in (2, 3) if 1 <= level <= 3 else (2,):
            long, short = size * np.sqrt(ratio), size / np.sqrt(ratio)
            shapes += [(long, short), (short, long)]
        for row in range(grid):
            for column in range(grid):
                rows += [((column + 0.5) * step, (row + 0.5) * step, *shape) for shape in shapes]
    boxes = np.clip(np.array(rows), 0, 300) / 300
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def resizing(found: dict[str, np.ndarray]) -> None:
    """Resize with System A's filter, smaller and larger."""
    photo = np.random.RandomState(1).randint(0, 256, (37, 53, 3)).astype(np.uint8)
    found["photo"] = photo
    for size in (20, 44):

        def graph(size=size):
            data = types.Constant(photo, device="cpu", layout="HWC")
            return (fn.resize(data, resize_x=size, resize_y=size, min_filter=types.INTERP_TRIANGULAR),)

        found[f"resized_{size}"] = once(graph)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, np.ndarray] = {"dali": np.array(dali.__version__)}
    for part in (colours, crops, edges, matching, resizing):
        part(found)
    np.savez_compressed(asked.out, **found)
    print(asked.out, asked.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

"""Write down what the MLPerf reference SSD computes: default boxes, matching, loss, detections, on inputs that are drawn here.

    python scripts/originals/ssd_reference.py --reference training/retired_benchmarks/ssd-v1/ssd \\
        --out tests/oracle/recorded/ssd_reference.npz

--reference: the folder of train.py in a checkout of github.com/mlcommons/training (Apache-2.0; recorded at aa344c7f), whose own
`DefaultBoxes`, `Encoder` and `Loss` are called. Names in the file:
gt_boxes_ltrb_k, gt_labels_k -> encoded_labels_k, matched_index_k, matched_boxes_xywh_k   of image k = 0..6
loss, loss_per_image     of these and of an image without objects; predictions follow from loss_seed
decoded_*_k              of two images' predictions, which follow from decode_seed, in ascending order of scores
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor

LOSS_SEED, DECODE_SEED = 11, 12
COUNTS = (1, 3, 8, 36, 12, 5)
SMALL = 3  # its objects are smaller than any default box, and some overlap a wide and a tall one equally
# Two objects that want the same default box.
SHARED = [(0.30, 0.30, 0.72, 0.70), (0.31, 0.29, 0.73, 0.71)]
FEATURES, STEPS = [38, 19, 10, 5, 3, 1], [8, 16, 32, 64, 100, 300]
SCALES, RATIOS = [21, 45, 99, 153, 207, 261, 315], [[2], [2, 3], [2, 3], [2, 3], [2], [2]]


def objects() -> list[tuple[Tensor, Tensor]]:
    """Boxes (n, 4) as fractions ltrb, and labels 1..80, of each image."""
    random = np.random.RandomState(10)
    drawn = []
    for image, count in enumerate(COUNTS):
        sides = random.uniform(0.004, 0.04, (count, 2)) if image == SMALL else random.uniform(0.03, 0.8, (count, 2))
        low = random.uniform(0, 1, (count, 2)) * (1 - sides)
        drawn.append(np.concatenate((low, low + sides), axis=1))
    drawn.append(np.array(SHARED))
    return [
        (torch.from_numpy(boxes.astype(np.float32)), torch.from_numpy(random.randint(1, 81, len(boxes)))) for boxes in drawn
    ]


def record(utils, base_model) -> dict[str, np.ndarray]:
    """Everything that the file holds."""
    boxes = utils.DefaultBoxes(300, FEATURES, STEPS, SCALES, RATIOS)
    encoder, loss_of = utils.Encoder(boxes), base_model.Loss(boxes)
    found: dict[str, np.ndarray] = {f"default_boxes_{order}": boxes(order=order).numpy() for order in ("ltrb", "xywh")}
    places, labels = [], []
    for image, (given, classes) in enumerate(objects()):
        matched, of = encoder.encode(given, classes)
        index = of.nonzero().squeeze(1)
        found |= {
            f"gt_boxes_ltrb_{image}": given.numpy(),
            f"gt_labels_{image}": classes.numpy(),
            f"encoded_labels_{image}": of.numpy(),
            f"matched_index_{image}": index.numpy(),
            f"matched_boxes_xywh_{image}": matched[index].numpy(),
        }
        places.append(matched)
        labels.append(of)
    places.append(boxes(order="xywh"))
    labels.append(torch.zeros(len(places[0]), dtype=torch.long))
    random = np.random.RandomState(LOSS_SEED)
    count = len(places)
    deltas = torch.from_numpy(random.standard_normal((count, 4, 8732)).astype(np.float32))
    logits = torch.from_numpy(random.standard_normal((count, 81, 8732)).astype(np.float32))
    true = torch.stack(places).transpose(1, 2).contiguous(), torch.stack(labels)
    found["loss"] = loss_of(deltas, logits, *true).numpy()
    parts = (deltas, logits, *true)
    each = [float(loss_of(*(part[image : image + 1] for part in parts))) for image in range(count)]
    found |= {"loss_per_image": np.array(each, np.float32), "loss_seed": np.array(LOSS_SEED)}
    random = np.random.RandomState(DECODE_SEED)
    deltas = torch.from_numpy((0.5 * random.standard_normal((2, 4, 8732))).astype(np.float32))
    logits = torch.from_numpy((2.2 * random.standard_normal((2, 81, 8732))).astype(np.float32))
    for image, rows in enumerate(encoder.decode_batch(deltas, logits, 0.5, 200)):
        for name, values in zip(("boxes_ltrb", "labels", "scores"), rows):
            found[f"decoded_{name}_{image}"] = values.numpy()
    return found | {"decode_seed": np.array(DECODE_SEED)}


def main() -> None:
    """Record and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.reference))
    sys.modules["mlperf_logger"] = MagicMock()  # writes log lines, which nobody asked for
    import base_model
    import utils

    found = record(utils, base_model)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(asked.out, **found)  # pyright: ignore[reportArgumentType]
    print(f"{asked.out}: {asked.out.stat().st_size} bytes, torch {torch.__version__}, loss {float(found['loss']):.6f}")


if __name__ == "__main__":
    main()

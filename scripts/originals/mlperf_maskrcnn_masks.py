"""How far the mask head's targets from a canvas of C points are from the MLPerf reference's, over real objects.

    PYTHONPATH=. python scripts/originals/mlperf_maskrcnn_masks.py --reference maskrcnn/pytorch --coco coco [--canvases 112 224]

The reference cuts the polygon to the region, scales it to 28 x 28 and rasterizes it there (its own code runs, see
mlperf_maskrcnn.py). Ours rasterize it once at the input's resolution, or coarser where the object has more than C points along a
side, take RoIAlign of that, and a half as the threshold. Each object of the training annotations is seen at 800/1333 through
two regions: its own box with every edge moved by up to 12 % of its side. The last row is a canvas that holds every object whole:
what is left there is the difference between the two ways to rasterize, not the canvas's. Soft targets (GluonCV, torchvision) are
compared with those of the whole canvas. Prints a line a canvas: objects above C; share of the 784 points that differ from the
reference's, of all objects and of those above 112 points, and where soft targets (half a pixel off) are cut at a half instead;
mean absolute difference of soft targets; what a photo's canvases with 128 slots take.
Letters: C canvas side   n regions
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from mlperf_maskrcnn import import_reference
from mlperf_maskrcnn_inputs import MASK_SIDE, stream

from paceline.data.transforms.crop import CropWindow
from paceline.models.batch_shapes import resized_size
from paceline.models.maskrcnn.mask_targets import make_canvases
from paceline.models.ops.roi_align import mask_targets

LARGE = 112
WHOLE = 1344
SLOTS = 128


class Masks:
    """One photo's polygons, as models/maskrcnn/mask_targets.py reads them."""

    def __init__(self, objects: list[list[list[float]]]) -> None:
        parts = [part for polygons in objects for part in polygons]
        self.polygon_points = np.concatenate([np.array(part, np.float32) for part in parts])
        self.polygon_starts = np.cumsum([0, *(len(part) for part in parts)])
        self.object_polygons = np.cumsum([0, *(len(polygons) for polygons in objects)])
        self.rle_counts, self.object_rles = np.zeros(0, np.uint32), np.zeros(len(objects) + 1, np.int64)


def compare(ref, coco: Path, canvases: list[int], most: int) -> dict[int, np.ndarray]:
    """Of each canvas (n, 4): the object's longer side in the input, share of points that differ, mean soft difference, and the
    share where soft targets were cut at a half: there a coordinate is a pixel's middle."""
    data = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    rows: dict[int, list[tuple[float, ...]]] = {side: [] for side in canvases}
    for image in data["images"][:most]:
        found = [
            entry
            for entry in data["annotations"]
            if entry["image_id"] == image["id"] and isinstance(entry["segmentation"], list) and min(entry["bbox"][2:]) > 1
        ]
        if not found:
            continue
        height, width = resized_size(image["height"], image["width"], 800, 1333)
        window = CropWindow(0, 0, image["height"], image["width"], height, width)
        size = (image["width"], image["height"])
        theirs = ref.SegmentationMask([entry["segmentation"] for entry in found], size).resize((width, height))
        boxes = np.array([entry["bbox"] for entry in found])
        boxes = np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), axis=1)
        moved = boxes * ([width / image["width"], height / image["height"]] * 2)
        regions = np.repeat(moved, 2, axis=0)
        regions += stream(str(image["id"])).uniform(-0.12, 0.12, regions.shape) * np.tile(
            regions[:, 2:] - regions[:, :2], 2
        )
        regions = torch.from_numpy(np.clip(regions, 0, [width, height] * 2).astype(np.float32))
        of = np.repeat(np.arange(len(found)), 2)
        exact = ref.mask_loss.project_masks_on_boxes(
            theirs[torch.from_numpy(of)], ref.BoxList(regions, (width, height)), MASK_SIDE
        ).numpy()
        longest = (moved[:, 2:] - moved[:, :2]).max(axis=1)[of]
        soft, binary = {}, {}
        for side in [WHOLE, *canvases]:
            drawn, frames = make_canvases(
                Masks([entry["segmentation"] for entry in found]), np.arange(len(found)), boxes,
                photo=(image["height"], image["width"]), window=window, flip=False, side=side,
            )  # fmt: skip
            drawn, frames = torch.from_numpy(drawn)[of], torch.from_numpy(frames)[of]
            soft[side], binary[side] = (
                mask_targets(drawn, frames, regions, side=MASK_SIDE, target=target).numpy() for target in ("soft", "binary")
            )
        for side in canvases:
            middles = ((soft[side] >= 0.5) != exact.astype(bool)).mean(axis=(1, 2))
            differ = (binary[side] != exact).mean(axis=(1, 2))
            rows[side] += zip(longest, differ, np.abs(soft[side] - soft[WHOLE]).mean(axis=(1, 2)), middles)
    return {side: np.array(found) for side, found in rows.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("reference", "coco"):
        arguments.add_argument(f"--{name}", type=Path, required=True)
    arguments.add_argument("--canvases", type=int, nargs="+", default=[56, 112, 224, 448])
    arguments.add_argument("--photos", type=int, default=100, help="of the training annotations, the first so many")
    given = arguments.parse_args()
    found = compare(import_reference(given.reference.resolve()), given.coco, [*given.canvases, WHOLE], given.photos)
    for side, rows in found.items():
        large = rows[:, 0] > LARGE
        print(f"canvas {side:5}: {(rows[:, 0] > side).mean():.1%} of {len(rows)} regions have a larger object", end="; ")
        print(
            f"points that differ from the reference's {rows[:, 1].mean():.3%}, {rows[large, 1].mean():.3%} above {LARGE}",
            end="; ",
        )
        print(f"soft ones cut at a half {rows[:, 3].mean():.3%}", end="; ")
        print(f"soft targets differ by {rows[:, 2].mean():.5f}, {rows[large, 2].mean():.5f} above {LARGE}", end="; ")
        print(f"{SLOTS * (side + 2) ** 2 / 2**20:.1f} MiB a photo")


if __name__ == "__main__":
    main()

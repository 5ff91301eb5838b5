"""What the deviations of docs/reference/known-differences.md from the MLPerf reference's Mask R-CNN are worth, in numbers; its own
code runs.

    PYTHONPATH=. python scripts/originals/mlperf_maskrcnn_effects.py --reference maskrcnn/pytorch --coco coco

On the training annotations of --coco, at 800/1333 (see mlperf_maskrcnn.py for what is put in place of the reference's kernels):
    pixel       boxes by their edges, and anchors of both --model.parity.anchor-rounding, against the reference's last pixels and
                widths + 1:
                anchors whose kind differs, the reference's positives that are none here; deltas of the positives of both
    best        objects that go without an anchor because their best one crosses the photo's border, in both
    polygons    a flipped photo's polygons lie a pixel further left in the reference than its pixels: mask points that it changes
    size        photos that come out a pixel larger or smaller
    small       objects left out because their box is narrower or lower than a pixel in the input, and boxes of theirs left out
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from mlperf_maskrcnn import anchors_of, import_reference
from mlperf_maskrcnn_inputs import MASK_SIDE, STRIDES

from paceline.config.recipes import RECIPES
from paceline.models.batch_shapes import resized_size
from paceline.models.ops.anchors import BEYOND_LAST, Rounding, make_pyramid_anchors
from paceline.models.ops.boxes import BoxCoder
from paceline.models.ops.matching import is_inside_image, match_anchors


def grids_of(height: int, width: int) -> list[tuple[int, int]]:
    """Maps of a photo padded to multiples of 32."""
    tall, wide = -(-height // 32) * 32, -(-width // 32) * 32
    found = [(tall // stride, wide // stride) for stride in STRIDES[:4]]
    return [*found, (-(-found[3][0] // 2), -(-found[3][1] // 2))]


def objects_of(data: dict[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Photos with their objects that are no crowds."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for entry in data["annotations"]:
        if not entry["iscrowd"]:
            rows.setdefault(entry["image_id"], []).append(entry)
    return [(image, rows[image["id"]]) for image in data["images"] if image["id"] in rows]


def first_stage(ref, photos, rounding: Rounding) -> dict[str, float]:
    """The pixel's effect on anchors; sums over photos."""
    rpn = RECIPES["maskrcnn"]().model.rpn
    evaluator = ref.rpn.RPNLossComputation(
        ref.matcher(0.7, 0.3, allow_low_quality_matches=True), None, ref.coder(weights=(1.0, 1.0, 1.0, 1.0)),
        ref.rpn.generate_rpn_labels,
    )  # fmt: skip
    join = joining()
    names = ("anchors", "kind", "positive", "lost", "new", "objects", "reference_without", "ours_without")
    sums, apart = dict.fromkeys(names, 0), []
    for image, found in photos:
        size = (image["width"], image["height"])
        height, width = resized_size(size[1], size[0], 800, 1333)
        xywh = torch.tensor([entry["bbox"] for entry in found])
        target = ref.BoxList(xywh, size, mode="xywh").convert("xyxy").clip_to_image(remove_empty=True)
        if not len(target):
            continue
        target = target.resize((width, height))
        grids = grids_of(height, width)
        anchors = join(anchors_of(ref, grids, [(height, width)])[0])
        labels, deltas = evaluator.prepare_targets([anchors], [target])
        theirs = labels[0].to(torch.int8)
        boxes = torch.cat((xywh[:, :2], xywh[:, :2] + xywh[:, 2:]), 1) * torch.tensor(
            [width / size[0], height / size[1]] * 2
        )
        mine = torch.cat(
            make_pyramid_anchors(
                grids, 4 * grids[0][0], 4 * grids[0][1], sizes=rpn.anchor_sizes, ratios=rpn.aspect_ratios, rounding=rounding
            )
        )
        slots, kind = match_anchors(
            boxes[None], torch.ones(1, len(boxes), dtype=torch.int64), mine, fg_iou=rpn.fg_iou,
            bg_iou=rpn.bg_iou, allow_low_quality_matches=rpn.allow_low_quality_matches, eligible=None,
        )  # fmt: skip
        kind = kind[0].masked_fill(~is_inside_image(mine, torch.tensor([[height, width]]), BEYOND_LAST[rounding])[0], -1)
        both = (kind == 1) & (theirs == 1)
        matched = evaluator.match_targets_to_anchors(anchors, target).get_field("matched_idxs")
        sums["anchors"] += int(((theirs >= 0) | (kind >= 0)).sum())
        sums["kind"] += int((theirs != kind).sum())
        sums["positive"] += int((theirs == 1).sum())
        sums["lost"] += int(((theirs == 1) & (kind != 1)).sum())
        sums["new"] += int(((theirs != 1) & (kind == 1)).sum())
        sums["objects"] += len(boxes)
        sums["reference_without"] += len(boxes) - len(matched[theirs == 1].unique())
        sums["ours_without"] += len(boxes) - len(slots[0][kind == 1].unique())
        own = BoxCoder().encode(boxes[slots[0][both]], mine[both])
        apart.append((own - deltas[0][both]).abs())
    every = torch.cat(apart)
    return {**sums, "delta": float(every.mean()), "delta_99": float(every.flatten().quantile(0.99))}


def joining():
    """The reference's function that joins boxes of all levels."""
    return sys.modules["maskrcnn_benchmark.structures.boxlist_ops"].cat_boxlist


def flipped_polygons(ref, photos) -> float:
    """Share of the mask head's points that change with the polygons' pixel, in objects' own boxes."""
    differ = []
    for image, found in photos[:100]:
        size = (image["width"], image["height"])
        drawn = [entry for entry in found if isinstance(entry["segmentation"], list) and min(entry["bbox"][2:]) > 1]
        if not drawn:
            continue
        height, width = resized_size(size[1], size[0], 800, 1333)
        masks = ref.SegmentationMask([entry["segmentation"] for entry in drawn], size).resize((width, height)).transpose(0)
        xywh = torch.tensor([entry["bbox"] for entry in drawn])
        boxes = torch.cat((xywh[:, :2], xywh[:, :2] + xywh[:, 2:]), 1) * torch.tensor(
            [width / size[0], height / size[1]] * 2
        )
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        as_it_is, moved = (
            ref.mask_loss.project_masks_on_boxes(masks, ref.BoxList(boxes - shift, (width, height)), MASK_SIDE)
            for shift in (torch.zeros(4), torch.tensor([1.0, 0.0, 1.0, 0.0]))
        )
        differ.append((as_it_is != moved).float().mean(dim=(1, 2)))
    return float(torch.cat(differ).mean())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("reference", "coco"):
        arguments.add_argument(f"--{name}", type=Path, required=True)
    arguments.add_argument("--photos", type=int, default=100, help="for pixel and best: the first so many")
    given = arguments.parse_args()
    ref = import_reference(given.reference.resolve())
    data = json.loads((given.coco / "annotations" / "instances_train2017.json").read_text())
    photos = objects_of(data)
    for rounding in ("legacy", "legacy-edges"):
        for name, value in first_stage(ref, photos[: given.photos], rounding).items():
            print(
                f"pixel    {rounding:13} {name:18} {value:,}"
                if isinstance(value, int)
                else f"pixel    {rounding:13} {name:18} {value:.4f}"
            )
    print(f"polygons share of points   {flipped_polygons(ref, photos):.4f}")
    resize = ref.transforms.Resize((800,), 1333)
    sizes = [(image["height"], image["width"]) for image in data["images"]]
    off = [resize.get_size((width, height)) != resized_size(height, width, 800, 1333) for height, width in sizes]
    print(f"size     photos off by one  {sum(off)} of {len(off)}")
    sides = [
        min(entry["bbox"][2:]) * 800 / min(image["height"], image["width"]) for image, found in photos for entry in found
    ]
    print(
        f"small    objects            {sum(side < 1 for side in sides)} of {len(sides)}; narrowest {min(sides):.2f} pixels"
    )
    print(f"small    below 2 pixels     {sum(side < 2 for side in sides)}")


if __name__ == "__main__":
    main()

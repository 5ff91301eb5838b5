"""Run the MLPerf reference's own Mask R-CNN code on inputs of ours and record what it says, for tests/oracle.

    python scripts/originals/mlperf_maskrcnn.py --reference MASKRCNN --coco COCO --out tests/oracle/recorded/mlperf_maskrcnn.npz

MASKRCNN is retired_benchmarks/maskrcnn/pytorch of a checkout of github.com/mlcommons/training (Apache-2.0; recorded at commit
aa344c7), --coco a folder with annotations/instances_train2017.json (COCO's annotations are CC BY 4.0; boxes and polygons of a few
photos are kept). No line of the reference is kept: its package is imported from where it lies. What it needs and no longer finds
is put in its place before the import, in `import_reference`:
    maskrcnn_benchmark._C   its compiled kernels: nms is torchvision's on boxes whose right and bottom edges are moved by the
                            pixel that the reference counts along (`>`, as its CUDA kernel); roi_align is torchvision's, not aligned
    numpy.float             Python's float, which numpy had under that name until 1.24
    torch._six              says that Python is 3.7 or newer
Needs torch, torchvision, numpy and pycocotools, and nothing of paceline. Some seconds on a CPU.
Letters: A anchors   P proposals   R regions   G objects
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import mlperf_maskrcnn_inputs as inputs
import numpy as np
import torch
import torchvision

Arrays = dict[str, np.ndarray]

# Of the annotations: the first photos whose objects are so many, all with polygons.
OBJECTS = ((3, 5), (8, 12), (14, 18), (2, 2))


def import_reference(folder: Path) -> Any:
    """The modules of the reference that are run."""
    np.float = float  # type: ignore[attr-defined]
    torch._six = types.SimpleNamespace(PY37=True)  # type: ignore[attr-defined]
    sys.path.insert(0, str(folder))
    import maskrcnn_benchmark  # pyright: ignore[reportMissingImports]

    def nms(boxes, scores, threshold):
        wider = boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
        # In float32, as its kernels compare.
        return torchvision.ops.nms(wider, scores, float(torch.tensor(threshold, dtype=boxes.dtype)))

    def roi_align(features, regions, scale, height, width, ratio):
        return torchvision.ops.roi_align(features, regions, (height, width), scale, ratio, aligned=False)

    kernels: Any = types.ModuleType("maskrcnn_benchmark._C")
    kernels.__dict__.update(nms=nms, roi_align_forward=roi_align)
    kernels.__getattr__ = lambda name: None
    sys.modules["maskrcnn_benchmark._C"] = maskrcnn_benchmark._C = kernels
    from maskrcnn_benchmark.data.datasets import coco  # pyright: ignore
    from maskrcnn_benchmark.data.datasets.evaluation.coco import coco_eval  # pyright: ignore
    from maskrcnn_benchmark.data.transforms import transforms  # pyright: ignore
    from maskrcnn_benchmark.modeling import balanced_positive_negative_sampler, box_coder, matcher, poolers  # pyright: ignore
    from maskrcnn_benchmark.modeling.roi_heads.box_head import inference as box_inference  # pyright: ignore
    from maskrcnn_benchmark.modeling.roi_heads.box_head import loss as box_loss  # pyright: ignore
    from maskrcnn_benchmark.modeling.roi_heads.mask_head import inference as mask_inference  # pyright: ignore
    from maskrcnn_benchmark.modeling.roi_heads.mask_head import loss as mask_loss  # pyright: ignore
    from maskrcnn_benchmark.modeling.rpn import anchor_generator, inference, loss  # pyright: ignore
    from maskrcnn_benchmark.solver import lr_scheduler  # pyright: ignore
    from maskrcnn_benchmark.structures import bounding_box, segmentation_mask  # pyright: ignore

    return types.SimpleNamespace(
        coco=coco, results=coco_eval, transforms=transforms, matcher=matcher.Matcher, coder=box_coder.BoxCoder, poolers=poolers,
        anchors=anchor_generator.AnchorGenerator, sampler=balanced_positive_negative_sampler.BalancedPositiveNegativeSampler,
        proposals=inference.RPNPostProcessor, rpn=loss, box_inference=box_inference.PostProcessor, box_loss=box_loss,
        mask_loss=mask_loss, paste=mask_inference, scheduler=lr_scheduler.WarmupMultiStepLR, BoxList=bounding_box.BoxList,
        SegmentationMask=segmentation_mask.SegmentationMask,
    )  # fmt: skip


def rates(ref) -> Arrays:
    """Learning rates of weights and of biases, as the trainer sets them: the scheduler steps before an iteration's forward.

    lr_reference: the configuration's, iterations 0..600 and five around each decay. lr_nvidia_96: the ramp of NVIDIA's batch
    of 96 ("mlperf_linear", base 0.12, 625 steps of 1.92e-4), whose method the reference's scheduler knows too.
    """
    out: Arrays = {}
    for name, base, milestones, ramp in (
        ("lr_reference", 0.02, (60_000, 80_000), {"warmup_factor": 1 / 3, "warmup_iters": 500, "warmup_method": "linear"}),
        ("lr_nvidia_96", 0.12, (12_000, 16_000), {"warmup_factor": 1.92e-4, "warmup_iters": 625, "warmup_method": "mlperf_linear"}),
    ):  # fmt: skip
        weight, bias = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = torch.optim.SGD([{"params": [weight], "lr": base}, {"params": [bias], "lr": 2 * base}], base)
        scheduler = ref.scheduler(optimizer, milestones, 0.1, **ramp)
        near = {step for boundary in milestones for step in range(boundary - 5, boundary + 6)}
        found = {}
        for iteration in sorted({*range(700), *near}):
            scheduler.last_epoch = iteration  # after so many calls of `step`; the loop calls it once more first
            scheduler.step()
            found[iteration] = [group["lr"] for group in optimizer.param_groups]
        out[f"{name}_iterations"], out[name] = np.array(list(found)), np.array(list(found.values()))
    return out


def photos(ref, coco: Path) -> tuple[Arrays, list[Any]]:
    """Annotations of a few photos as its data set and transforms leave them, every second one flipped; -> also as BoxLists."""
    data = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    labels = {category: 1 + place for place, category in enumerate(sorted(entry["id"] for entry in data["categories"]))}
    out, targets, taken = {}, [], set()
    for number, (low, high) in enumerate(OBJECTS):
        for image in sorted(data["images"], key=lambda entry: entry["id"]):
            found = [entry for entry in data["annotations"] if entry["image_id"] == image["id"]]
            plain = all(entry["iscrowd"] == 0 and isinstance(entry["segmentation"], list) for entry in found)
            if low <= len(found) <= high and plain and image["id"] not in taken:
                break
        taken.add(image["id"])
        size = (image["width"], image["height"])
        boxes = torch.as_tensor([entry["bbox"] for entry in found]).reshape(-1, 4)
        target = ref.BoxList(boxes, size, mode="xywh").convert("xyxy")
        target.add_field("labels", torch.tensor([labels[entry["category_id"]] for entry in found]))
        target.add_field("masks", ref.SegmentationMask([entry["segmentation"] for entry in found], size))
        target = target.clip_to_image(remove_empty=True)
        assert len(target) == len(found)
        height, width = ref.transforms.Resize((800,), 1333).get_size(size)
        target = target.resize((width, height))
        if number % 2:
            target = target.transpose(0)
        polygons = [part for entry in found for part in entry["segmentation"]]
        out[f"photo{number}_size"] = np.array([image["height"], image["width"], height, width])
        out[f"photo{number}_xywh"] = np.array([entry["bbox"] for entry in found])
        out[f"photo{number}_labels"] = target.get_field("labels").numpy()
        out[f"photo{number}_points"] = np.concatenate([np.array(part, np.float32) for part in polygons])
        out[f"photo{number}_lengths"] = np.array([len(part) for part in polygons])
        out[f"photo{number}_polygons"] = np.array([len(entry["segmentation"]) for entry in found])
        out[f"photo{number}_boxes"] = target.bbox.numpy()
        targets.append(target)
    sizes = np.array(sorted({(entry["height"], entry["width"]) for entry in data["images"]}))
    resize = ref.transforms.Resize((800,), 1333)
    out["sizes"] = sizes
    out["resized"] = np.array([resize.get_size((width, height)) for height, width in sizes.tolist()])
    kept = [
        image["id"]
        for image in sorted(data["images"], key=lambda entry: entry["id"])
        if ref.coco.has_valid_annotation([entry for entry in data["annotations"] if entry["image_id"] == image["id"]])
    ]
    out["kept"] = np.array(kept)
    return out, targets


def anchors_of(ref, grids, sizes) -> Any:
    """BoxLists of each image of each level; sizes are height and width of the photos."""
    make = ref.anchors((32, 64, 128, 256, 512), (0.5, 1.0, 2.0), inputs.STRIDES, 0)
    return make(types.SimpleNamespace(image_sizes=sizes), [torch.zeros(1, 1, *grid) for grid in grids])


def first_stage(ref, targets) -> Arrays:
    """Anchors, their labels and targets on the photos' objects, proposals and losses of random maps."""
    found = anchors_of(ref, inputs.grids(), inputs.PHOTOS)
    out: Arrays = {"anchors": torch.cat([level.bbox for level in found[0]]).numpy()}
    evaluator = ref.rpn.RPNLossComputation(
        ref.matcher(0.7, 0.3, allow_low_quality_matches=True), ref.sampler(256, 0.5),
        ref.coder(weights=(1.0, 1.0, 1.0, 1.0)), ref.rpn.generate_rpn_labels,
    )  # fmt: skip
    concatenate = sys.modules["maskrcnn_benchmark.structures.boxlist_ops"].cat_boxlist
    for number, target in enumerate(targets):
        width, height = target.size
        grids = [(-(-height // 32) * 32 // stride, -(-width // 32) * 32 // stride) for stride in inputs.STRIDES[:4]]
        grids.append((-(-grids[3][0] // 2), -(-grids[3][1] // 2)))
        anchors = concatenate(anchors_of(ref, grids, [(height, width)])[0])
        labels, deltas = evaluator.prepare_targets([anchors], [target])
        matched = evaluator.match_targets_to_anchors(anchors, target.copy_with_fields(["labels"]))
        positive = (labels[0] == 1).nonzero().squeeze(1)
        out[f"photo{number}_grids"] = np.array(grids)
        out[f"photo{number}_anchor_kinds"] = labels[0].numpy().astype(np.int8)
        out[f"photo{number}_anchor_deltas"] = deltas[0][positive].numpy()
        out[f"photo{number}_anchor_slots"] = matched.get_field("matched_idxs")[positive].numpy().astype(np.int16)
    logits, moves = ([torch.from_numpy(part) for part in parts] for parts in inputs.head_maps())
    for mode, training in (("train", True), ("test", False)):
        select = ref.proposals(inputs.PROPOSALS, inputs.PROPOSALS, 0.7, 0, fpn_post_nms_top_n=2 * inputs.PROPOSALS // 3)
        boxes = select.train(training)(found, logits, moves)
        for image, some in enumerate(boxes):
            out[f"{mode}_proposals{image}"] = some.bbox.numpy()
            out[f"{mode}_chances{image}"] = some.get_field("objectness").numpy()
    objects = [ref.BoxList(torch.from_numpy(inputs.boxes_in(f"objects {image}", 5, height, width)), (width, height))
               for image, (height, width) in enumerate(inputs.PHOTOS)]  # fmt: skip
    torch.manual_seed(inputs.SEED)
    keep: list[Any] = []
    draw = evaluator.fg_bg_sampler
    evaluator.fg_bg_sampler = lambda labels: keep.append(draw(labels)) or keep[-1]
    loss = evaluator(found, logits, moves, objects)
    out["anchor_losses"] = np.array([float(part) for part in loss])
    for image in range(2):
        out[f"sampled_positive{image}"], out[f"sampled_negative{image}"] = (
            part[image].nonzero().squeeze(1).numpy() for part in keep[0]
        )
    return out


def second_stage(ref) -> Arrays:
    """Regions' classes and targets, their losses, levels, pooling and detections, on random boxes."""
    out: Arrays = {}
    evaluator = ref.box_loss.FastRCNNLossComputation(
        ref.matcher(0.5, 0.5), ref.sampler(32, 0.25), ref.coder(weights=(10.0, 10.0, 5.0, 5.0))
    )
    targets, proposals = [], []
    for image, (height, width) in enumerate(inputs.PHOTOS):
        objects = inputs.boxes_in(f"objects {image}", 5, height, width)
        target = ref.BoxList(torch.from_numpy(objects), (width, height))
        target.add_field("labels", torch.arange(1, 6) * 7)
        near = inputs.around(f"regions {image}", objects, inputs.REGIONS, height, width)
        targets.append(target)
        proposals.append(ref.BoxList(torch.from_numpy(near), (width, height)))
    labels, deltas = evaluator.prepare_targets(proposals, targets)
    torch.manual_seed(inputs.SEED)
    sampled = evaluator.subsample([some.copy_with_fields([]) for some in proposals], targets)
    rows = sum(len(some) for some in sampled)
    logits, moves = (torch.from_numpy(part) for part in inputs.box_head_output("training", rows))
    out["region_losses"] = np.array([float(part) for part in evaluator([logits], [moves])])
    for image in range(2):
        out[f"region_labels{image}"], out[f"region_deltas{image}"] = labels[image].numpy(), deltas[image].numpy()
        out[f"sampled_regions{image}"] = sampled[image].bbox.numpy()
        out[f"sampled_labels{image}"] = sampled[image].get_field("labels").numpy()
    scales = [1 / stride for stride in inputs.STRIDES[: inputs.LEVELS]]
    pooler = ref.poolers.Pooler((7, 7), scales, 2)
    out["levels"] = np.concatenate([pooler.map_levels([some]).numpy() for some in (*proposals, *large(ref))])
    out["pooled"] = pooler(
        [torch.from_numpy(part) for part in inputs.feature_maps()], [some[:10] for some in proposals]
    ).numpy()
    select = ref.box_inference(0.05, 0.5, 100)
    logits, moves = (torch.from_numpy(part) for part in inputs.box_head_output("testing", 2 * inputs.REGIONS))
    for image, some in enumerate(select((logits, moves), proposals)):
        order = some.get_field("scores").argsort(descending=True)
        out[f"found{image}"] = some.bbox[order].numpy()
        out[f"found_scores{image}"] = some.get_field("scores")[order].numpy()
        out[f"found_labels{image}"] = some.get_field("labels")[order].numpy()
    return out


def large(ref) -> list[Any]:
    """Boxes up to a whole input of 800 x 1333."""
    return [ref.BoxList(torch.from_numpy(inputs.boxes_in("large", 200, 800, 1333)), (1333, 800))]


def masks(ref, targets) -> Arrays:
    """Targets of the mask head for proposals around the photos' objects, and pasted masks."""
    out: Arrays = {}
    for number, target in enumerate(targets):
        width, height = target.size
        regions = target.bbox.repeat(2, 1).numpy()
        jitter = inputs.stream(f"mask regions {number}").uniform(-0.12, 0.12, regions.shape)
        regions = regions + jitter * np.tile(regions[:, 2:] - regions[:, :2] + 1, 2)
        regions = np.clip(regions, 0, [width - 1, height - 1] * 2).astype(np.float32)
        places = torch.arange(len(target)).repeat(2)
        found = ref.mask_loss.project_masks_on_boxes(
            target.get_field("masks")[places], ref.BoxList(torch.from_numpy(regions), target.size), inputs.MASK_SIDE
        )
        out[f"photo{number}_regions"], out[f"photo{number}_targets"] = regions, np.packbits(found.numpy().astype(bool))
    height, width = inputs.PHOTOS[0]
    boxes = torch.from_numpy(inputs.boxes_in("pasted", inputs.PASTED, height, width))
    chances = torch.from_numpy(inputs.normal("chances", inputs.PASTED, 1, inputs.MASK_SIDE, inputs.MASK_SIDE)).sigmoid()
    pasted = [ref.paste.paste_mask_in_image(mask[0], box, height, width, 0.5, 1) for mask, box in zip(chances, boxes)]
    out["pasted"] = np.packbits(torch.stack(pasted).numpy().astype(bool))
    data = types.SimpleNamespace(id_to_img_map={0: 1}, get_img_info=lambda _: {"width": 3 * width // 4, "height": 3 * height // 4},
                                 contiguous_category_id_to_json_id={1: 1})  # fmt: skip
    result = ref.BoxList(boxes, (width, height))
    result.add_field("scores", torch.ones(len(boxes)))
    result.add_field("labels", torch.ones(len(boxes), dtype=torch.int64))
    out["result_boxes"] = np.array([entry["bbox"] for entry in ref.results.prepare_for_coco_detection([result], data)])
    return out


def record(reference: Path, coco: Path) -> Arrays:
    """Everything, by name."""
    ref = import_reference(reference)
    found, targets = photos(ref, coco)
    return found | rates(ref) | first_stage(ref, targets) | second_stage(ref) | masks(ref, targets)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("reference", "coco", "out"):
        arguments.add_argument(f"--{name}", type=Path, required=True)
    given = arguments.parse_args()
    found = record(given.reference.resolve(), given.coco)
    np.savez_compressed(given.out, **found)  # pyright: ignore[reportArgumentType]
    print(f"{len(found)} arrays, {given.out.stat().st_size:,} bytes in {given.out}")


if __name__ == "__main__":
    main()

"""Mask R-CNN: objects by their boxes and masks."""

from __future__ import annotations

from paceline.config.instances import InstanceInput, MaskRCNNModel, check_instances
from paceline.config.lazily import lazily
from paceline.config.recipe import Recipe
from paceline.tasks.workload import Workload
from paceline.tasks.workloads.ssd import BOXES
from paceline.tasks.workloads.ssd import METRICS as OF_BOXES


def widest_input(recipe: Recipe[MaskRCNNModel, InstanceInput]) -> tuple[int, int]:
    """The widest photo's. A forward that has to mix portraits with landscapes is larger still, and rare: the first, discarded
    step of a run tries the largest that its order brings.
    """
    photo = recipe.input
    short, long, multiple = max(photo.short), photo.long, photo.multiple
    return -(-short // multiple) * multiple, -(-long // multiple) * multiple


WORKLOAD = Workload(
    about="Mask R-CNN: objects by their boxes and masks",
    start="maskrcnn-tiny",
    data=f"{BOXES}, with polygons or run lengths",
    model=MaskRCNNModel(),
    input=InstanceInput(),
    check=check_instances,
    check_plan=lazily("paceline.tasks.maskrcnn:check_loss_groups"),
    kind="boxes",
    open=lazily("paceline.tasks.maskrcnn:InstanceSegmentation"),
    build=lazily("paceline.tasks.maskrcnn:build_segmenter"),
    initialise=lazily("paceline.tasks.maskrcnn:initialise_segmenter"),
    load_weights=lazily("paceline.tasks.maskrcnn:load_segmenter"),
    no_compile="it is not compiled as a whole; each of its input shapes would take minutes",
    no_exact="torchvision's RoIAlign falls back to plain operations there, at many times its memory and time",
    largest=widest_input,
    made_up=lazily("paceline.tasks.maskrcnn:crowded_photos"),
    batch=lazily("paceline.batch:instance_batch"),
    eval_shape=lazily("paceline.tasks.maskrcnn:eval_shape"),
    draw_eval=lazily("paceline.tasks.maskrcnn:draw_for_evaluation"),
    headline="mask_ap",
    metrics=(*OF_BOXES, *(name.replace("box", "mask", 1) for name in OF_BOXES)),
    benchmark="maskrcnn",
    ruleset="3.1.0",
    log_facts=lazily("paceline.tasks.mlperf_detection:maskrcnn_facts"),
    log_accuracy=lazily("paceline.tasks.mlperf_detection:box_and_mask"),
    finds_objects=True,
    photos_at_once=4,
    answers=lazily("paceline.predict.found:instances_found"),
    picture=lazily("paceline.pages.samples:instances_sample"),
    section=lazily("paceline.pages.sections:detected_section"),
    template="detected.html.jinja",
    bench={
        "step": lazily("paceline.cli.bench_step:maskrcnn"),
        "input": lazily("paceline.bench.input:maskrcnn"),
    },
)

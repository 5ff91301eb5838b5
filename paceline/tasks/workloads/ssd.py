"""SSD: objects by their boxes. A detector of boxes of your own is this workload with another network:

WORKLOAD = dataclasses.replace(ssd.WORKLOAD, about=..., model=MyModel(), build=..., initialise=..., check=...)
"""

from __future__ import annotations

from paceline.config.detection import BoxInput, SSDModel, check_detection
from paceline.config.lazily import lazily
from paceline.tasks.workload import Workload

BOXES = (
    "annotations in COCO's, Pascal VOC's or YOLO's form beside its images (annotations/instances_train2017.json and "
    "train2017/, data.yaml, or Annotations/ and JPEGImages/)"
)
METRICS = (
    "box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large",
    "box_ar1", "box_ar10", "box_ar100", "box_ar_small", "box_ar_medium", "box_ar_large",
)  # fmt: skip

WORKLOAD = Workload(
    about="SSD: objects by their boxes",
    start="ssd-tiny",
    data=BOXES,
    model=SSDModel(),
    input=BoxInput(),
    check=check_detection,
    kind="boxes",
    open=lazily("paceline.tasks.ssd:ObjectDetection"),
    build=lazily("paceline.tasks.ssd:build_detector"),
    initialise=lazily("paceline.tasks.ssd:initialise_detector"),
    load_weights=lazily("paceline.tasks.ssd:load_detector"),
    largest=lambda recipe: (recipe.input.size, recipe.input.size),
    made_up=lazily("paceline.tasks.ssd:crowded_photos"),
    batch=lazily("paceline.batch:detection_batch"),
    eval_shape=lambda recipe, *_: (recipe.input.size, recipe.input.size),
    draw_eval=lazily("paceline.tasks.ssd:draw_for_evaluation"),
    headline="box_ap",
    metrics=METRICS,
    benchmark="ssd",
    ruleset="1.1.0",
    log_facts=lazily("paceline.tasks.mlperf_detection:ssd_facts"),
    log_tensors=lazily("paceline.tasks.mlperf_detection:ssd_tensor_names"),
    finds_objects=True,
    answers=lazily("paceline.predict.found:boxes_found"),
    picture=lazily("paceline.pages.samples:boxes_sample"),
    section=lazily("paceline.pages.sections:detected_section"),
    template="detected.html.jinja",
    bench={
        "step": lazily("paceline.cli.bench_step:ssd"),
        "input": lazily("paceline.bench.input:ssd"),
    },
)

"""ResNet: classes of photos."""

from __future__ import annotations

from paceline.config.classification import PhotoInput, ResNetModel, check_classification
from paceline.config.lazily import lazily
from paceline.tasks.workload import Workload

WORKLOAD = Workload(
    about="ResNet: classes of photos",
    start="resnet50-tiny",
    data="train/CLASS/*.jpg and val/CLASS/*.jpg",
    model=ResNetModel(),
    input=PhotoInput(),
    check=check_classification,
    kind="class-folder",
    open=lazily("paceline.tasks.classification:Classification"),
    build=lazily("paceline.tasks.classification:build_classifier"),
    initialise=lazily("paceline.tasks.classification:initialise_classifier"),
    load_weights=lazily("paceline.tasks.classification:load_classifier"),
    classes=1000,
    largest=lambda recipe: (recipe.input.size, recipe.input.size),
    made_up=lazily("paceline.tasks.classification:black_photos"),
    batch=lazily("paceline.batch:labelled_batch"),
    eval_shape=lambda recipe, *_: (recipe.input.eval_size, recipe.input.eval_size),
    draw_eval=lazily("paceline.tasks.classification:draw_for_evaluation"),
    headline="top1",
    metrics=("top1", "top5"),
    benchmark="resnet",
    ruleset="4.0.0",
    finds_objects=False,
    photos_at_once=32,
    answers=lazily("paceline.predict.found:best_five"),
    picture=lazily("paceline.pages.samples:photo_sample"),
    section=lazily("paceline.pages.sections:classified_section"),
    template="classification.html.jinja",
    bench={
        "step": lazily("paceline.cli.bench_step:classification"),
        "input": lazily("paceline.bench.input:classification"),
    },
)

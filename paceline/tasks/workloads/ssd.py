"""SSD: objects by their boxes. A detector of boxes of your own is a subclass with another network: its `about`, `model`, `build`,
`initialise` and `check`.
"""

from __future__ import annotations

from paceline.config.detection import BoxInput, SSDModel, check_detection
from paceline.config.recipe import Recipe
from paceline.tasks.workload import Workload

BoxRecipe = Recipe[SSDModel, BoxInput]


class SSD(Workload):
    """Methods have the types and the meaning of `Workload`'s."""

    about = "SSD: objects by their boxes"
    start = "ssd-tiny"
    data = (
        "annotations in COCO's, Pascal VOC's or YOLO's form beside its images (annotations/instances_train2017.json and "
        "train2017/, data.yaml, or Annotations/ and JPEGImages/)"
    )
    model = SSDModel()
    input = BoxInput()
    kind = "boxes"
    headline = "box_ap"
    metrics = (
        "box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large",
        "box_ar1", "box_ar10", "box_ar100", "box_ar_small", "box_ar_medium", "box_ar_large",
    )  # fmt: skip
    benchmark = "ssd"
    ruleset = "1.1.0"
    finds_objects = True
    template = "detected.html.jinja"

    def check(self, recipe):
        check_detection(recipe)

    def open(self, recipe: BoxRecipe, manifest, **limits):
        from paceline.tasks.ssd import ObjectDetection

        return ObjectDetection(self, recipe, manifest, **limits)

    def build(self, recipe: BoxRecipe, classes):
        from paceline.tasks.ssd import build_detector

        return build_detector(recipe, classes)

    def initialise(self, recipe: BoxRecipe, model, generator):
        from paceline.models.ssd import initialise_ssd

        zeros, bias = recipe.model.zero_init_last_gamma, recipe.model.new_bias
        initialise_ssd(model.network, generator, zero_init_last_gamma=zeros, new_bias=bias)

    def load_weights(self, model, path, labels):
        """A classifier for the trunk, or an SSD of any form; classes that the file has too, by name, keep their rows."""
        from paceline.weights.load_ssd import load_ssd_weights

        return load_ssd_weights(model.network, path, labels)

    def made_up(self, recipe: BoxRecipe, images, shape, slots):
        from paceline.tasks.ssd import crowded_photos

        return crowded_photos(images, shape, slots)

    def batch(self, images, labels, indices, *, least=0):
        from paceline.batch.detection import detection_batch

        return detection_batch(images, labels, indices, least=least)

    def draw_eval(self, recipe: BoxRecipe, header, name, shape):
        """The whole photo; its objects are not needed there."""
        from paceline.input.box_sample import draw_evaluation_sample

        return draw_evaluation_sample(header, name, recipe.input)

    def log_facts(self, run):
        from paceline.tasks.mlperf_detection import ssd_facts

        return ssd_facts(run)

    def log_tensors(self, parameters):
        from paceline.tasks.mlperf_detection import ssd_tensor_names

        return ssd_tensor_names(parameters)

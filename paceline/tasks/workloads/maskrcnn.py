"""Mask R-CNN: objects by their boxes and masks."""

from __future__ import annotations

from paceline.config.errors import RecipeError
from paceline.config.instances import InstanceInput, MaskRCNNModel, check_instances
from paceline.config.recipe import Recipe
from paceline.tasks.workload import Workload
from paceline.tasks.workloads.ssd import SSD

InstanceRecipe = Recipe[MaskRCNNModel, InstanceInput]


class MaskRCNN(Workload):
    """Methods have the types and the meaning of `Workload`'s."""

    about = "Mask R-CNN: objects by their boxes and masks"
    start = "maskrcnn-tiny"
    data = f"{SSD.data}, with polygons or run lengths"
    model = MaskRCNNModel()
    input = InstanceInput()
    kind = "boxes"
    no_compile = "it is not compiled as a whole; each of its input shapes would take minutes"
    no_exact = "torchvision's RoIAlign falls back to plain operations there, at many times its memory and time"
    headline = "mask_ap"
    metrics = (*SSD.metrics, *(name.replace("box", "mask", 1) for name in SSD.metrics))
    benchmark = "maskrcnn"
    ruleset = "3.1.0"
    finds_objects = True
    photos_at_once = 4
    template = "detected.html.jinja"

    def check(self, recipe):
        check_instances(recipe)

    def check_plan(self, recipe: InstanceRecipe, plan):
        """Raises RecipeError where the best proposals of a loss group would be chosen from a part of it."""
        if recipe.model.rpn.post_of == "batch" and plan.loss_forwards * plan.loss_join > 1:
            raise RecipeError(
                f"--model.rpn.post-of batch: the best proposals of {plan.loss_group} images are kept together, but a "
                f"forward holds {plan.images_per_forward} of them. Give forwards room for the group "
                f"(--system.images-per-forward {plan.loss_group}), or count proposals by image: --model.rpn.post-of image"
            )

    def open(self, recipe: InstanceRecipe, manifest, **limits):
        from paceline.tasks.maskrcnn import InstanceSegmentation

        return InstanceSegmentation(self, recipe, manifest, **limits)

    def build(self, recipe: InstanceRecipe, classes):
        from paceline.tasks.maskrcnn import build_segmenter

        return build_segmenter(recipe, classes)

    def initialise(self, recipe: InstanceRecipe, model, generator):
        from paceline.models.initialise_mask_rcnn import initialise_mask_rcnn

        initialise_mask_rcnn(model.network, generator, recipe.model.init)

    def load_weights(self, model, path, labels):
        """A classifier for the trunk, or a Mask R-CNN of any form; classes that the file has too, by name, keep their rows."""
        from paceline.weights.load_maskrcnn import load_mask_rcnn_weights

        return load_mask_rcnn_weights(model.network, path, labels)

    def largest(self, recipe: InstanceRecipe):
        """The widest photo's. A forward that has to mix portraits with landscapes is larger still, and rare: the first, discarded
        step of a run tries the largest that its order brings.
        """
        photo = recipe.input
        short, long, multiple = max(photo.short), photo.long, photo.multiple
        return -(-short // multiple) * multiple, -(-long // multiple) * multiple

    def made_up(self, recipe: InstanceRecipe, images, shape, slots):
        from paceline.tasks.maskrcnn import crowded_photos

        return crowded_photos(recipe, images, shape, slots)

    def batch(self, images, labels, indices, *, least=0):
        from paceline.batch.instances import instance_batch

        return instance_batch(images, labels, indices, least=least)

    def eval_shape(self, recipe: InstanceRecipe, height, width):
        """What one photo is padded to."""
        from paceline.input.buckets import padded_shape, resized

        photo, short = recipe.input, recipe.input.short[-1]
        return padded_shape(*resized(height, width, short, photo.long, photo.sides), photo, short)

    def draw_eval(self, recipe: InstanceRecipe, header, name, shape):
        """The whole photo in the left upper corner of the input; its objects are not needed there."""
        from paceline.input.instance_sample import draw_evaluation_sample

        return draw_evaluation_sample(header, name, recipe.input, recipe.input.short[-1], shape)

    def log_facts(self, run):
        from paceline.tasks.mlperf_detection import maskrcnn_facts

        return maskrcnn_facts(run)

    def log_accuracy(self, metrics):
        """Both APs, of which each has a target."""
        return {"BBOX": metrics["box_ap"], "SEGM": metrics["mask_ap"]}

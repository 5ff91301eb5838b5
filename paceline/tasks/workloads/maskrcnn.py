"""Mask R-CNN: objects by their boxes and masks; without its mask head Faster R-CNN, by boxes alone.

MLPerf's keys are those of rules 3.1.0 (mlperf_logging/compliance_checker/training_3.1.0/closed_maskrcnn.yaml), with values as the
v3.0 submissions (NVIDIA) log them.
"""

from __future__ import annotations

from paceline._utils.errors import RecipeError
from paceline.config.instances import InstanceInput, InstanceRecipe, MaskRCNNModel, check_instances
from paceline.tasks.mlperf import base_facts, whole
from paceline.tasks.workload import Workload
from paceline.tasks.workloads.ssd import SSD

# A warm-up that starts below this share of the rate starts at about 0: the published ones start at 0, 0.0025, 0.03 or 1/3.
AT_REST = 0.01


class MaskRCNN(Workload):
    """Methods have the types and the meaning of `Workload`'s."""

    about = "Mask R-CNN: objects by their boxes and masks"
    start = "maskrcnn-tiny"
    data = f"{SSD.data}, with polygons or run lengths"
    model = MaskRCNNModel()
    input = InstanceInput()
    kind = "boxes"
    no_compile = "it is not compiled as a whole; each of its input shapes would take minutes"
    no_exact = "the gradient of torchvision's RoIAlign and RoIPool is added up in any order there"
    headline = "mask_ap"
    metrics = (*SSD.metrics, *(name.replace("box", "mask", 1) for name in SSD.metrics))
    benchmark = "maskrcnn"
    ruleset = "3.1.0"
    finds_objects = True
    photos_at_once = 4
    template = "detected.html.jinja"

    def check(self, recipe):
        check_instances(recipe)

    def exact_in_triton(self, recipe: InstanceRecipe):
        """RoIAlign; of RoIPool we have no kernel."""
        return recipe.model.roi.mode == "align"

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
        from paceline.models.mask_rcnn import MaskRCNN
        from paceline.models.segmenter import Segmenter

        photo = recipe.input
        return Segmenter(MaskRCNN(recipe.model, classes), mean=photo.mean, std=photo.std, settings=recipe.model)

    def initialise(self, recipe: InstanceRecipe, model, generator):
        from paceline.models.mask_rcnn import initialise_mask_rcnn

        initialise_mask_rcnn(model.network, generator, recipe.model.init)

    def load_weights(self, model, path, labels):
        """A classifier for the trunk, or a Mask R-CNN of any form; classes that the file has, by name, keep their rows."""
        from paceline.weights.load_detectors import load_mask_rcnn_weights

        return load_mask_rcnn_weights(model.network, path, labels)

    def largest(self, recipe: InstanceRecipe):
        """The widest photo's. A forward that has to mix portraits with landscapes is larger still, and rare: a run's discarded first
        step tries the largest of its order.
        """
        photo = recipe.input
        short, long, multiple = max(photo.short), photo.long, photo.multiple
        return -(-short // multiple) * multiple, -(-long // multiple) * multiple

    def made_up(self, recipe: InstanceRecipe, images, shape, slots):
        """Grey photos full of objects."""
        import torch

        from paceline.batch import InstanceBatch, plain_images, raster_boxes, slots_for

        side = (recipe.model.mask.canvas if recipe.model.masks else 0) + 2
        (height, width), slots = shape, slots_for(slots)
        # Each object has its own region.
        boxes = (raster_boxes(slots) * torch.tensor([width, height] * 2)).expand(images, -1, -1).contiguous()
        return InstanceBatch(
            images=plain_images(images, shape, level=128),
            labels=torch.ones(images, slots, dtype=torch.int64),
            indices=torch.zeros(images, dtype=torch.int64),
            boxes=boxes,
            sizes=torch.tensor([[height, width]]).expand(images, -1).contiguous(),
            keys=torch.arange(images),
            canvases=torch.ones(images, slots, side, side, dtype=torch.uint8),
            frames=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(images, slots, -1).contiguous(),
        )

    def batch(self, images, labels, indices, *, least=0):
        from paceline.batch import instance_batch

        return instance_batch(images, labels, indices, least=least)

    def eval_shape(self, recipe: InstanceRecipe, height, width):
        """The padded shape of one photo."""
        from paceline.input.buckets import padded_shape, resized

        photo, short = recipe.input, recipe.input.short[-1]
        return padded_shape(*resized(height, width, short, photo.long, photo.sides), photo, short)

    def draw_eval(self, recipe: InstanceRecipe, header, name, shape):
        """The whole photo in the left upper corner of the input; its objects are not needed there."""
        from paceline.input.instance_sample import draw_evaluation_sample

        return draw_evaluation_sample(header, name, recipe.input, recipe.input.short[-1], shape)

    def log_facts(self, run):
        """All keys between init_start and init_stop by Mask R-CNN's rules.

        num_image_candidates is the number of proposals that a device keeps, as the submissions log it: of all images of a loss group
        where these share one limit, else of each image. opt_learning_rate_warmup_factor has two meanings in published logs: the
        reference's, the fraction of the rate at which the warm-up starts; and NVIDIA's, whose warm-ups start at about 0 and whose
        rules require a number above it: the growth of the rate in a step.
        """
        recipe, plan = run.recipe, run.plan
        optim, schedule, rpn = recipe.optim, recipe.schedule, recipe.model.rpn
        shared = rpn.post_of == "batch"
        factor = schedule.warmup_from
        if factor < AT_REST:
            factor = optim.lr * (1 - factor) / plan.warmup_steps if plan.warmup_steps else 1.0
        facts = {
            **base_facts(run),
            "num_image_candidates": rpn.post_group
            or rpn.post_train * (max(1, recipe.model.loss_group) if shared else 1),
            "opt_name": "sgd_with_momentum" if optim.kind == "sgd" else optim.kind,
            "opt_base_learning_rate": optim.lr,
            "opt_weight_decay": optim.weight_decay,
            "opt_learning_rate_warmup_steps": whole(plan.warmup_steps),
            "opt_learning_rate_warmup_factor": factor,
            "min_image_size": min(recipe.input.short),
            "max_image_size": recipe.input.long,
        }
        if plan.boundaries:
            facts["opt_learning_rate_decay_factor"] = schedule.factor
            facts["opt_learning_rate_decay_steps"] = [whole(boundary) for boundary in plan.boundaries]
        return facts

    def measured(self, recipe: InstanceRecipe):
        """Of boxes alone where no masks are found."""
        return super().measured(recipe) if recipe.model.masks else SSD.metrics

    def rules(self, recipe: InstanceRecipe):
        """None without masks: MLPerf has no Faster R-CNN."""
        return super().rules(recipe) if recipe.model.masks else ("", "")

    def log_accuracy(self, metrics):
        """Both APs, each with a target; of boxes alone where no masks are found."""
        return {name: metrics[key] for name, key in (("BBOX", "box_ap"), ("SEGM", "mask_ap")) if key in metrics}

"""Mask R-CNN: objects by their boxes and masks; without its mask head Faster R-CNN, by boxes alone.

MLPerf's keys are those of rules 3.1.0 (mlperf_logging/compliance_checker/training_3.1.0/closed_maskrcnn.yaml), with values as the
v3.0 submissions (NVIDIA) log them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import InstanceInput, InstanceRecipe, MaskRCNNModel, check_instances
from paceline.config.plan import BatchPlan
from paceline.models.mllog_keys import base_log_entries, round_to_int
from paceline.models.ssd.workload import SSD
from paceline.models.workload import NetworkFactory, Reporting, WorkloadSpec

if TYPE_CHECKING:
    import torch

    from paceline.config.run import RunSpec
    from paceline.models.datamodule import DataModule
    from paceline.models.maskrcnn.module import MaskRCNNWithLoss
    from paceline.models.weights.classes import Labels
    from paceline.models.weights.load import WeightReport


# A warm-up that starts below this share of the rate starts at about 0: the published ones start at 0, 0.0025, 0.03 or 1/3.
AT_REST = 0.01


class MaskRCNNNetwork(NetworkFactory):
    """Builds Mask R-CNNs and Faster R-CNNs."""

    no_compile = "it is not compiled, because each of its input shapes would take minutes"
    no_exact = "torchvision adds the gradients of RoIAlign and RoIPool in a random order"

    def check(self, recipe: InstanceRecipe) -> None:
        check_instances(recipe)

    def exact_in_triton(self, recipe: InstanceRecipe) -> bool:
        """RoIAlign; of RoIPool we have no kernel."""
        return recipe.model.roi.pool_type == "align"

    def check_plan(self, recipe: InstanceRecipe, plan: BatchPlan) -> None:
        """Raises RecipeError where the best proposals of a loss group would be chosen from a part of it."""
        if recipe.model.parity.post_nms_per == "batch" and plan.loss_micro_batches * plan.loss_ranks > 1:
            raise RecipeError(
                f"--model.parity.post-nms-per batch: selects proposals over {plan.loss_normalizer_images} images, but a "
                f"micro-batch has {plan.micro_batch_size}. Use larger micro-batches (--system.micro-batch-size "
                f"{plan.loss_normalizer_images}), or select proposals per image: --model.parity.post-nms-per image"
            )

    def largest(self, recipe: InstanceRecipe) -> tuple[int, int]:
        """The widest photo's. A forward that has to mix portraits with landscapes is larger still, and rare: a run's discarded first
        step tries the largest of its order.
        """
        photo = recipe.input
        short, long, multiple = max(photo.min_size), photo.max_size, photo.size_divisor
        return -(-short // multiple) * multiple, -(-long // multiple) * multiple

    def eval_shape(self, recipe: InstanceRecipe, height: int, width: int) -> tuple[int, int]:
        """The padded shape of one photo."""
        from paceline.models.batch_shapes import padded_shape, resized_size

        photo, short = recipe.input, recipe.input.min_size[-1]
        return padded_shape(*resized_size(height, width, short, photo.max_size, photo.parity.side_rounding), photo, short)

    def build(self, recipe: InstanceRecipe, classes: int) -> MaskRCNNWithLoss:
        from paceline.models.maskrcnn.model import MaskRCNN
        from paceline.models.maskrcnn.module import MaskRCNNWithLoss

        photo = recipe.input
        return MaskRCNNWithLoss(MaskRCNN(recipe.model, classes), mean=photo.mean, std=photo.std, settings=recipe.model)

    def initialize(self, recipe: InstanceRecipe, model: Any, generator: torch.Generator) -> None:
        from paceline.models.maskrcnn.model import init_mask_rcnn

        init_mask_rcnn(model.network, generator, recipe.model.init)

    def load_weights(self, model: Any, path: Path, labels: Labels) -> WeightReport:
        """A classifier for the trunk, or a Mask R-CNN of any form; classes that the file has, by name, keep their rows."""
        from paceline.models.weights.load_detectors import load_mask_rcnn_weights

        return load_mask_rcnn_weights(model.network, path, labels)


def instance_data() -> type[DataModule]:
    """The data module's class, imported when it is used: it needs torch."""
    from paceline.models.maskrcnn.task import InstanceData

    return InstanceData


def log_facts(run: RunSpec) -> dict[str, Any]:
    """All keys between init_start and init_stop by Mask R-CNN's rules.

    num_image_candidates is the number of proposals that a device keeps, as the submissions log it: of all images of a loss group
    where these share one limit, else of each image. opt_learning_rate_warmup_factor has two meanings in published logs: the
    reference's, the fraction of the rate at which the warm-up starts; and NVIDIA's, whose warm-ups start at about 0 and whose
    rules require a number above it: the growth of the rate in a step.
    """
    recipe, plan = run.recipe, run.plan
    optim, schedule, rpn, parity = recipe.optim, recipe.schedule, recipe.model.rpn, recipe.model.parity
    shared = parity.post_nms_per == "batch"
    factor = schedule.warmup_start_factor
    if factor < AT_REST:
        factor = optim.lr * (1 - factor) / plan.warmup_steps if plan.warmup_steps else 1.0
    facts = {
        **base_log_entries(run),
        "num_image_candidates": parity.post_nms_batch
        or rpn.post_nms_topk_train * (max(1, recipe.model.loss_normalizer_images) if shared else 1),
        "opt_name": "sgd_with_momentum" if optim.name == "sgd" else optim.name,
        "opt_base_learning_rate": optim.lr,
        "opt_weight_decay": optim.weight_decay,
        "opt_learning_rate_warmup_steps": round_to_int(plan.warmup_steps),
        "opt_learning_rate_warmup_factor": factor,
        "min_image_size": min(recipe.input.min_size),
        "max_image_size": recipe.input.max_size,
    }
    if plan.milestones:
        facts["opt_learning_rate_decay_factor"] = schedule.gamma
        facts["opt_learning_rate_decay_steps"] = [round_to_int(boundary) for boundary in plan.milestones]
    return facts


class MaskRCNNReporting(Reporting):
    """A recipe without masks has only the metrics of boxes."""

    def measured(self, recipe: InstanceRecipe) -> Sequence[str]:
        """A recipe without masks has only the metrics of boxes."""
        return super().measured(recipe) if recipe.model.masks else SSD.reporting.metrics

    def rules(self, recipe: InstanceRecipe) -> tuple[str, str]:
        """None without masks: MLPerf has no Faster R-CNN."""
        return super().rules(recipe) if recipe.model.masks else ("", "")

    def log_accuracy(self, metrics: Mapping[str, float]) -> Any:
        """Both APs, each with a target; of boxes alone where no masks are found."""
        return {name: metrics[key] for name, key in (("BBOX", "box_ap"), ("SEGM", "mask_ap")) if key in metrics}


MASK_RCNN = WorkloadSpec(
    about="Mask R-CNN: instance segmentation",
    start="maskrcnn-demo",
    layout=f"{SSD.layout}, with polygons or run lengths",
    kind="boxes",
    finds_objects=True,
    photos_at_once=4,
    model=MaskRCNNModel(),
    input=InstanceInput(),
    network=MaskRCNNNetwork(),
    data=instance_data,
    reporting=MaskRCNNReporting(
        headline="mask_ap",
        metrics=(*SSD.reporting.metrics, *(name.replace("box", "mask", 1) for name in SSD.reporting.metrics)),
        template="detected.html.jinja",
        benchmark="maskrcnn",
        ruleset="3.1.0",
        log_facts=log_facts,
    ),
)

"""SSD: objects by their boxes. A detector of boxes of your own has the same data and another network: `replace(SSD, ...)` with its
`about`, `model` and `network`.

MLPerf's keys are those of rules 1.1.0 (mlperf_logging/compliance_checker/training_1.1.0/closed_ssd.yaml), with values as the v0.7
submissions (Dell, NVIDIA) log them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.ssd import BoxInput, BoxRecipe, SSDModel, check_detection, grid_sizes
from paceline.models.mllog_keys import base_log_entries, round_to_int, ssd_tensor_names, steps_to_epochs
from paceline.models.workload import NetworkFactory, Reporting, WorkloadSpec

if TYPE_CHECKING:
    import torch

    from paceline.config.run import RunSpec
    from paceline.models.datamodule import DataModule
    from paceline.models.ssd.loss import SSDWithLoss
    from paceline.models.weights.classes import Labels
    from paceline.models.weights.load import WeightReport


class SSDNetwork(NetworkFactory):
    """Builds SSDs."""

    def check(self, recipe: BoxRecipe) -> None:
        check_detection(recipe)

    def build(self, recipe: BoxRecipe, classes: int) -> SSDWithLoss:
        import torch

        from paceline.models.backbones import build_backbone
        from paceline.models.backbones.base import BackboneSpec
        from paceline.models.ops.anchors import default_boxes, default_corners, tie_order
        from paceline.models.ssd.loss import SSDWithLoss
        from paceline.models.ssd.model import SSD

        settings, photo = recipe.model, recipe.input
        cells = grid_sizes(photo.image_size)
        network = SSD(
            build_backbone(settings, BackboneSpec(*((32, 8) if settings.fpn_channels else (8, 0)), norm=settings.norm)),
            classes,
            settings,
            cells,
        )
        with torch.device("cpu"):  # see models/layers/common.py
            scales = settings.scales[: len(cells) + 1]
            anchors, order = default_boxes(photo.image_size, cells, scales), tie_order(settings.parity.box_order, cells)
            corners = default_corners(photo.image_size, cells, scales) if settings.parity.box_corners == "float64" else None
        weights = torch.ones(classes + 1) if settings.class_weights == "balanced" else None
        return SSDWithLoss(
            network,
            anchors,
            mean=photo.mean,
            std=photo.std,
            settings=settings,
            corners=corners,
            order=order,
            class_weights=weights,
        )

    def initialize(self, recipe: BoxRecipe, model: Any, generator: torch.Generator) -> None:
        from paceline.models.ssd.model import init_ssd

        zeros, bias = recipe.model.zero_init_residual, recipe.model.parity.new_bias
        init_ssd(model.network, generator, zero_init_residual=zeros, new_bias=bias)

    def load_weights(self, model: Any, path: Path, labels: Labels) -> WeightReport:
        """A classifier for the trunk, or an SSD of any form; classes that the file has, by name, keep their rows."""
        from paceline.models.weights.load_detectors import load_ssd_weights

        return load_ssd_weights(model.network, path, labels)


def box_data() -> type[DataModule]:
    """The data module's class, imported when it is used: it needs torch."""
    from paceline.models.ssd.task import BoxData

    return BoxData


def log_facts(run: RunSpec) -> dict[str, Any]:
    """All keys between init_start and init_stop by SSD's rules. max_samples: proposals for one drawn crop."""
    recipe, plan = run.recipe, run.plan
    facts = {
        **base_log_entries(run),
        "model_bn_span": plan.bn_batch_size,
        "max_samples": recipe.input.crop_trials,
        "opt_name": recipe.optim.name,
        "opt_base_learning_rate": recipe.optim.lr,
        "opt_weight_decay": recipe.optim.weight_decay,
        "opt_learning_rate_warmup_factor": recipe.schedule.warmup_start_factor,
        "opt_learning_rate_warmup_steps": round_to_int(plan.warmup_steps),
    }
    if plan.milestones:
        facts["opt_learning_rate_decay_boundary_epochs"] = [steps_to_epochs(boundary, run) for boundary in plan.milestones]
    return facts


SSD = WorkloadSpec(
    about="SSD: object detection",
    start="ssd-demo",
    layout=(
        "annotations in COCO, Pascal VOC, or YOLO format next to the images (annotations/instances_train2017.json and "
        "train2017/, data.yaml, or Annotations/ and JPEGImages/)"
    ),
    kind="boxes",
    finds_objects=True,
    model=SSDModel(),
    input=BoxInput(),
    network=SSDNetwork(),
    data=box_data,
    reporting=Reporting(
        headline="box_ap",
        metrics=(
            "box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large",
            "box_ar1", "box_ar10", "box_ar100", "box_ar_small", "box_ar_medium", "box_ar_large",
        ),
        template="detected.html.jinja",
        benchmark="ssd",
        ruleset="1.1.0",
        log_facts=log_facts,
        log_tensors=ssd_tensor_names,
    ),
)  # fmt: skip

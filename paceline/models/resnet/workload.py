"""ResNet: classes of photos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan
from paceline.config.resnet import ImageInput, PhotoRecipe, ResNetModel, check_classification, has_mixing
from paceline.models.workload import NetworkFactory, Reporting, WorkloadSpec

if TYPE_CHECKING:
    import torch

    from paceline.models.datamodule import DataModule
    from paceline.models.resnet.loss import ClassifierWithLoss
    from paceline.models.weights.classes import Labels
    from paceline.models.weights.load import WeightReport


class ResNetNetwork(NetworkFactory):
    """Builds classifiers."""

    working_share = 0.15

    def check(self, recipe: PhotoRecipe) -> None:
        check_classification(recipe)

    def check_plan(self, recipe: PhotoRecipe, plan: BatchPlan) -> None:
        """Raises RecipeError where photos that are mixed with each other would lie in two forwards."""
        if has_mixing(recipe.input) and plan.micro_batch_size % 2:
            raise RecipeError(
                f"--input.mixup-alpha {recipe.input.mixup_alpha:g} --input.cutmix-alpha {recipe.input.cutmix_alpha:g}: a "
                f"micro-batch must have an even number of images, which are mixed in pairs, got {plan.micro_batch_size}. "
                "Use fewer ranks, or set another size: --system.micro-batch-size"
            )

    def eval_shape(self, recipe: PhotoRecipe, height: int, width: int) -> tuple[int, int]:
        return recipe.input.eval_crop_size, recipe.input.eval_crop_size

    def build(self, recipe: PhotoRecipe, classes: int) -> ClassifierWithLoss:
        import torch

        from paceline.models.backbones import build_backbone
        from paceline.models.backbones.base import BackboneSpec
        from paceline.models.layers.batch_norm import list_batch_norms
        from paceline.models.resnet.loss import ClassifierWithLoss

        net, photo = recipe.model, recipe.input
        backbone = build_backbone(net, BackboneSpec(norm=net.norm, stem=net.stem, input_channels=net.input_channels))
        if net.head_init == "linear-probe" and any(norm.training for norm in list_batch_norms(backbone.train())):
            raise RecipeError(
                "--model.head-init linear-probe: requires fixed BatchNorm statistics. The head is initialized with the "
                "statistics of the backbone, but training would use those of its batches. Add --model.norm frozen."
            )
        backbone.add_classes(classes)
        return ClassifierWithLoss(
            backbone,
            mean=photo.mean,
            std=photo.std,
            settings=net,
            class_weights=torch.ones(classes) if net.class_weights == "balanced" else None,
        )

    def initialize(self, recipe: PhotoRecipe, model: Any, generator: torch.Generator) -> None:
        settings = recipe.model
        model.network.draw(settings.init, generator, zero_init_residual=settings.zero_init_residual)

    def load_weights(self, model: Any, path: Path, labels: Labels) -> WeightReport:
        """A classifier of any form; classes that the file has, by name, keep their rows of the last layer, others are new."""
        from paceline.models.weights.load import load_weights

        return load_weights(model.network, path, labels)


def photo_data() -> type[DataModule]:
    """The data module's class, imported when it is used: it needs torch."""
    from paceline.models.resnet.task import ClassificationData

    return ClassificationData


RESNET = WorkloadSpec(
    about="ResNet: image classification",
    start="classify-demo",
    layout="train/CLASS/*.jpg and val/CLASS/*.jpg",
    kind="class-folder",
    classes=1000,
    finds_objects=False,
    photos_at_once=32,
    model=ResNetModel(),
    input=ImageInput(),
    network=ResNetNetwork(),
    data=photo_data,
    reporting=Reporting("top1", ("top1", "top5"), "classification.html.jinja", benchmark="resnet", ruleset="4.0.0"),
)

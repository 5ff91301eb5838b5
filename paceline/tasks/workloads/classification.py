"""ResNet: classes of photos."""

from __future__ import annotations

from paceline._utils.errors import RecipeError
from paceline.config.classification import PhotoInput, PhotoRecipe, ResNetModel, check_classification, mixes
from paceline.tasks.workload import Workload


class ResNet(Workload):
    """Methods have the types and the meaning of `Workload`'s."""

    about = "ResNet: classes of photos"
    start = "resnet50-tiny"
    data = "train/CLASS/*.jpg and val/CLASS/*.jpg"
    model = ResNetModel()
    input = PhotoInput()
    kind = "class-folder"
    classes = 1000
    headline = "top1"
    metrics = ("top1", "top5")
    benchmark = "resnet"
    ruleset = "4.0.0"
    finds_objects = False
    photos_at_once = 32
    working_share = 0.15
    template = "classification.html.jinja"

    def check(self, recipe):
        check_classification(recipe)

    def check_plan(self, recipe: PhotoRecipe, plan):
        """Raises RecipeError where photos that are mixed with each other would lie in two forwards."""
        if mixes(recipe.input) and plan.images_per_forward % 2:
            raise RecipeError(
                f"--input.mixup {recipe.input.mixup:g} --input.cutmix {recipe.input.cutmix:g}: pairs of photos of a forward are "
                f"mixed, and a forward holds {plan.images_per_forward}. Use fewer ranks, or other images a forward: "
                "--system.images-per-forward"
            )

    def open(self, recipe: PhotoRecipe, manifest, **limits):
        from paceline.tasks.classification import Classification

        return Classification(self, recipe, manifest, **limits)

    def build(self, recipe: PhotoRecipe, classes):
        import torch

        from paceline.models.batch_norm import batch_norms
        from paceline.models.classifier import Classifier
        from paceline.models.make_trunk import make_trunk
        from paceline.models.trunk import Form

        net, photo = recipe.model, recipe.input
        trunk = make_trunk(net, Form(norm=net.norm, stem=net.stem, stem_channels=net.stem_channels))
        if net.first_head == "fitted" and any(norm.training for norm in batch_norms(trunk.train())):
            raise RecipeError(
                "--model.first-head fitted: it is fitted behind the trunk's own statistics, and training would use its batches' "
                "in their place, behind which it answers at random. Add --model.norm frozen."
            )
        trunk.add_classes(classes)
        return Classifier(
            trunk,
            mean=photo.mean,
            std=photo.std,
            channels=net.stem_channels,
            smoothing=net.label_smoothing,
            convention=net.smoothing,
            gamma=net.focal_gamma if net.loss == "focal" else 0.0,
            class_weights=torch.ones(classes) if net.class_weights == "balanced" else None,
        )

    def initialise(self, recipe: PhotoRecipe, model, generator):
        settings = recipe.model
        model.network.draw(settings.init, generator, zero_init_last_gamma=settings.zero_init_last_gamma)

    def load_weights(self, model, path, labels):
        """A classifier of any form; classes that the file has, by name, keep their rows of the last layer, others are new."""
        from paceline.weights.load import load_weights

        return load_weights(model.network, path, labels)

    def made_up(self, recipe: PhotoRecipe, images, shape, slots):
        """Black photos of class 0; mixed, half of each is its partner's."""
        import torch

        from paceline.batch import MixedClass, labelled_batch, plain_images

        half = MixedClass(0, (0, 0, shape[1], shape[0]), 0.5)
        labels = [half] * images if mixes(recipe.input) else [0] * images
        return labelled_batch(plain_images(images, shape), labels, torch.zeros(images, dtype=torch.int64))

    def batch(self, images, labels, indices, *, least=0):
        from paceline.batch import labelled_batch

        return labelled_batch(images, labels, indices)

    def eval_shape(self, recipe: PhotoRecipe, height, width):
        return recipe.input.eval_size, recipe.input.eval_size

    def draw_eval(self, recipe: PhotoRecipe, header, name, shape):
        """The centre of a photo, of class 0."""
        from paceline.input.draw import draw_evaluation_photo

        return draw_evaluation_photo(header, name, 0, recipe.input)

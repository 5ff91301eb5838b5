"""ResNet: classes of photos."""

from __future__ import annotations

from paceline.config.classification import PhotoInput, PhotoRecipe, ResNetModel, check_classification
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
    template = "classification.html.jinja"

    def check(self, recipe):
        check_classification(recipe)

    def open(self, recipe: PhotoRecipe, manifest, **limits):
        from paceline.tasks.classification import Classification

        return Classification(self, recipe, manifest, **limits)

    def build(self, recipe: PhotoRecipe, classes):
        from paceline.models.classifier import Classifier
        from paceline.models.make_trunk import make_trunk
        from paceline.models.trunk import Form

        net, photo = recipe.model, recipe.input
        trunk = make_trunk(net, Form(stem=net.stem, stem_channels=net.stem_channels))
        trunk.add_classes(classes)
        return Classifier(
            trunk,
            mean=photo.mean,
            std=photo.std,
            channels=net.stem_channels,
            smoothing=net.label_smoothing,
            convention=net.smoothing,
        )

    def initialise(self, recipe: PhotoRecipe, model, generator):
        settings = recipe.model
        model.network.draw(settings.init, generator, zero_init_last_gamma=settings.zero_init_last_gamma)

    def load_weights(self, model, path, labels):
        """A classifier of any form; classes that the file has, by name, keep their rows of the last layer, others are new."""
        from paceline.weights.load import load_weights

        return load_weights(model.network, path, labels)

    def made_up(self, recipe: PhotoRecipe, images, shape, slots):
        """Black photos of class 0."""
        import torch

        from paceline.batch import Batch, plain_images

        zeros = torch.zeros(images, dtype=torch.int64)
        return Batch(images=plain_images(images, shape), labels=zeros, indices=zeros)

    def batch(self, images, labels, indices, *, least=0):
        from paceline.batch import labelled_batch

        return labelled_batch(images, labels, indices)

    def eval_shape(self, recipe: PhotoRecipe, height, width):
        return recipe.input.eval_size, recipe.input.eval_size

    def draw_eval(self, recipe: PhotoRecipe, header, name, shape):
        """The centre of a photo, of class 0."""
        from paceline.input.draw import draw_evaluation_photo

        return draw_evaluation_photo(header, name, 0, recipe.input)

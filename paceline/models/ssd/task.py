"""SSD: photos with boxes in, detections and COCO's twelve numbers out. Binds the recipe to one data set.

Letters: N photos of the validation split   B images of a forward   D places for detections
"""

from __future__ import annotations

import torch

from paceline.config.ssd import BoxRecipe
from paceline.data.batch import Batch, DetectionBatch, count_slots, detection_batch, gray_images, raster_boxes
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header
from paceline.models.batch_shapes import ResizedShape, Shape, SquareShapes
from paceline.models.object_predictions import InstanceScore
from paceline.models.object_task import ObjectData, ObjectEvaluator
from paceline.models.ssd import transforms


class BoxEvaluator(ObjectEvaluator):
    """Scores SSD's boxes."""

    def new_score(self) -> InstanceScore:
        """An empty score."""
        data = self.data
        return InstanceScore(data.val.heights, data.val.widths, plus_one=data.recipe.model.parity.plus_one)


class BoxData(ObjectData):
    """Photos with boxes, cropped to squares; see `DataModule` for what each method promises."""

    batch, evaluator = staticmethod(detection_batch), BoxEvaluator

    def __init__(self, recipe: BoxRecipe, manifest: Manifest, limits: tuple[int, int]) -> None:
        """Raises DataError as ObjectData does."""
        super().__init__(recipe, manifest, limits, crowd=recipe.input.train_on_crowd)
        if recipe.input.mosaic_prob:
            self.max_objects *= transforms.PHOTOS
        side, order = recipe.input.image_size, self.sampled(*self.photos_of_classes())
        self.shapes = SquareShapes(side, side, images=self.train_images, seed=recipe.seed, order=order)

    @staticmethod
    def dummy_batch(recipe: BoxRecipe, images: int, shape: Shape, slots: int) -> Batch:
        """A batch full of objects."""
        boxes = raster_boxes(count_slots(slots)).expand(images, -1, -1).contiguous()
        labels = torch.ones(boxes.shape[:2], dtype=torch.int64)
        return DetectionBatch(images=gray_images(images, shape), labels=labels, indices=labels[:, 0], boxes=boxes)

    @staticmethod
    def draw_eval(recipe: BoxRecipe, header: Header, name: str, shape: Shape) -> SampleSpec:
        """The whole photo; its objects are not needed there."""
        return transforms.evaluation_box_spec(header, name, recipe.input)

    def draw_train(self, fit: ResizedShape, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        """A random crop, or a mosaic, labeled with the objects that stay in it."""
        settings, random = self.recipe.input, SampleRng(self.recipe.seed, epoch, index)
        photo = self._photo(index, header, name)
        if not settings.mosaic_prob or not random.coin(settings.mosaic_prob):
            return transforms.sample_box_spec(*photo[1:], random, settings)
        indices = [random.integer(0, self.train_images) for _ in range(transforms.PHOTOS - 1)]
        others = (self._photo(number) for number in self.train_numbers[indices].tolist())
        return transforms.sample_mosaic((photo, *others), random, settings)

    def _photo(self, index: int, header: Header | None = None, name: str = "") -> transforms.MosaicImage:
        """header: None for a photo whose bytes nobody has read yet."""
        rows = self.wanted_rows(index)
        if header is None:
            header = Header(int(self.train.heights[index]), int(self.train.widths[index]), 0, False, 0)
        name = name or self.train_index.name(index)
        return transforms.MosaicImage(index, header, name, self.train.boxes[rows], self.train.classes[rows])

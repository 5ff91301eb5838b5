"""Names of the classes that published weights were trained on, in the order of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from paceline.version import PACKAGE

_NAMES = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign, parking meter, bench,
bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis,
snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork,
knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed,
dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock,
vase, scissors, teddy bear, hair drier, toothbrush
"""
_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
# COCO's 80 categories by the ids of its annotations, which have holes.
COCO = dict(
    zip(
        (number for number in range(1, 91) if number not in _UNUSED),
        " ".join(_NAMES.split()).split(", "),
        strict=True,
    )
)
COCO_80 = tuple(COCO.values())
# Of files that have a row for each id up to 90, those of no category included.
COCO_90 = tuple(COCO.get(number, "") for number in range(1, 91))


@cache
def imagenet() -> tuple[str, ...]:
    """The 1000 WordNet ids in sort order, which names ImageNet's class folders."""
    file = PACKAGE / "datasets" / "formats" / "imagenet_wnids.txt"
    return tuple(file.read_text(encoding="ascii").split())


def readable(names: Sequence[str]) -> tuple[str, ...]:
    """Names for people: of ImageNet's WordNet ids torchvision's words, of a row for no category N/A."""
    if tuple(names) == imagenet():
        from torchvision.models import ResNet50_Weights

        return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
    return tuple(name or "N/A" for name in names)


def category_ids(names: Sequence[str]) -> tuple[int, ...]:
    """The ids that COCO's annotations have for its rows; 1..K of other names."""
    ids = {name: number for number, name in COCO.items()}
    return tuple(ids[name] for name in names) if tuple(names) == COCO_80 else tuple(range(1, len(names) + 1))


def published(classes: int) -> tuple[str, ...]:
    """Names of the rows of weights that somebody published for so many classes; () where that tells nothing."""
    return {80: COCO_80, 90: COCO_90, 1000: imagenet()}.get(classes, ())

"""The two layouts of Examples that are read: a photo with its class (ImageNet), and one with its objects (COCO).

    both      image/encoded, image/filename, image/height, image/width
    classes   image/class/label (the original script counts from 1), image/class/synset, image/class/text
    objects   image/source_id, image/object/bbox/{xmin,ymin,xmax,ymax} (fractions), image/object/class/label (the data's own
              ids), image/object/class/text, image/object/is_crowd, image/object/area (px2), image/object/mask (a PNG for each object)
Source: tensorflow/models, research/slim's build_imagenet_data.py; tensorflow/tpu, models' create_coco_tf_record.py.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.config.printable import one_line
from paceline.store.containers.example import NOTHING, Feature, Range

PHOTO, LABEL = "image/encoded", "image/class/label"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class ClassExample(NamedTuple):
    """A photo and its class; what is not said is empty."""

    photo: Range  # where it lies in the record
    label: int  # as it is stored: from 1 where the original script wrote it
    synset: str  # WordNet id
    filename: str


class ObjectsExample(NamedTuple):
    """A photo and its M objects (0 too)."""

    photo: Range
    source_id: str  # the photo's id in the data's own files
    filename: str
    height: int  # px, 0 where it is not said
    width: int
    boxes: np.ndarray  # (M, 4) float32 xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, the data's own ids
    is_crowd: np.ndarray  # (M,) bool
    areas: np.ndarray | None  # (M,) float32 px2; None where they are not said
    masks: tuple[Range, ...] | None  # a PNG of the photo's size for each object; None where there are none
    names: tuple[bytes, ...]  # M names of the objects' classes; empty where they are not said


def imagenet_example(features: dict[str, Feature], data: bytes, where: str) -> ClassExample:
    """The record `data` with its `features`, as a photo with one class. Raises DataError naming the feature that is missing."""
    label = features.get(LABEL, NOTHING).ints
    if len(label) != 1:
        raise _unlike(features, where, LABEL, "one whole number")
    return ClassExample(
        _photo(features, where),
        int(label[0]),
        _text(features, data, "image/class/synset"),
        _text(features, data, "image/filename"),
    )


def coco_example(features: dict[str, Feature], data: bytes, where: str) -> ObjectsExample:
    """The record `data` with its `features`, as a photo with objects. Raises DataError naming the feature that does not fit."""
    corners = [features.get(f"image/object/bbox/{corner}", NOTHING).floats for corner in _CORNERS]
    classes = features.get("image/object/class/label", NOTHING).ints
    for corner, values in zip(_CORNERS, corners):
        if len(values) != len(classes):
            raise _unlike(
                features, where, f"image/object/bbox/{corner}", f"{len(classes)} numbers, one for each object"
            )
    is_crowd, areas = (
        features.get("image/object/is_crowd", NOTHING).ints,
        features.get("image/object/area", NOTHING).floats,
    )
    masks = features.get("image/object/mask", NOTHING).ranges
    names = features.get("image/object/class/text", NOTHING).texts(data)
    for name, values in (("is_crowd", is_crowd), ("area", areas), ("mask", masks)):
        if len(values) not in (0, len(classes)):
            raise _unlike(features, where, f"image/object/{name}", f"{len(classes)} values, one for each object")
    return ObjectsExample(
        _photo(features, where),
        _text(features, data, "image/source_id"),
        _text(features, data, "image/filename"),
        _number(features, "image/height"),
        _number(features, "image/width"),
        np.stack(corners, 1),
        classes,
        is_crowd.astype(bool) if len(is_crowd) else np.zeros(len(classes), bool),
        areas if len(areas) or not len(classes) else None,
        masks if len(masks) or (not len(classes) and "image/object/mask" in features) else None,
        tuple(names) if len(names) == len(classes) else (),
    )


def _photo(features: dict[str, Feature], where: str) -> Range:
    ranges = features.get(PHOTO, NOTHING).ranges
    if len(ranges) != 1:
        raise _unlike(features, where, PHOTO, "the bytes of one photo")
    return ranges[0]


def _text(features: dict[str, Feature], data: bytes, name: str) -> str:
    texts = features.get(name, NOTHING).texts(data)
    return os.fsdecode(texts[0]) if texts else ""


def _number(features: dict[str, Feature], name: str) -> int:
    values = features.get(name, NOTHING).ints
    return int(values[0]) if len(values) else 0


def _unlike(features: dict[str, Feature], where: str, name: str, wanted: str) -> DataError:
    if name in features:
        feature = features[name]
        found = f"it holds {max(len(values) for values in feature)}"
    else:
        names = sorted(features)
        found = "it is not there; there are " + one_line(", ".join(names[:20])[:500] or "none")
    return DataError(f"{where}: {name} should hold {wanted}: {found}. Written by other scripts than the original ones?")

"""A photo as a tf.train.Example: in the layout of ImageNet's scripts, or in that of the detection tools.

classes   image/encoded, format, height, width, colorspace, channels, filename; image/class/label from 1, synset, text
objects   image/encoded, format, height, width, filename, source_id, key/sha256; image/object/bbox/{xmin,xmax,ymin,ymax} as fractions,
          class/{label,text} (the data's own ids and names), is_crowd, area in pixels, mask (a PNG for each, where the set has masks)
Source: tensorflow/models, research/slim's build_imagenet_data.py; tensorflow/tpu, models' create_coco_tf_record.py.
"""

from __future__ import annotations

import hashlib
import io
import os

import numpy as np
from PIL import Image

from paceline.datasets.pack.encode import Encoded
from paceline.datasets.pack.objects import in_example, in_fractions
from paceline.datasets.pack.plan import Source
from paceline.pages.masks import mask_pixels
from paceline.store.box_split import BoxSplit, has_masks, truth_masks
from paceline.store.containers.example import Values, example_bytes

_FORMATS = ((b"\xff\xd8", b"JPEG"), (b"\x89PNG", b"PNG"), (b"RIFF", b"WEBP"), (b"BM", b"BMP"), (b"GIF8", b"GIF"))


def example_of(source: Source, row: int, photo: Encoded) -> bytes:
    """The record of row `row` of the source's index, whose photo is packed as `photo`."""
    name = source.names[row]
    form = next((form for beginning, form in _FORMATS if photo.data.startswith(beginning)), b"TIFF")
    features: dict[str, Values] = {
        "image/encoded": [photo.data],
        "image/filename": [os.path.basename(name)],
        "image/height": [photo.height],
        "image/width": [photo.width],
    }
    if source.boxes is not None:
        return example_bytes(features | _objects(source.boxes, row, photo) | {"image/format": [form.lower()]})
    number = int(source.index.labels[row])
    return example_bytes(
        features
        | {
            "image/format": [form],
            "image/colorspace": [b"RGB"],
            "image/channels": [3],
            "image/class/label": [number + 1],  # 0 is a background that no photo has
            "image/class/synset": [os.path.dirname(name)],
            "image/class/text": [source.classes[number].encode()],
        }
    )


def _objects(split: BoxSplit, i: int, photo: Encoded) -> dict[str, Values]:
    found = split.objects(i)
    kept = in_example(found)
    said = in_fractions(split, i, kept)
    classes = found.classes[kept] - 1
    scale = photo.width / float(split.widths[i]) * photo.height / float(split.heights[i])
    features: dict[str, Values] = {
        f"image/object/bbox/{corner}": said[:, place].tolist()
        for place, corner in enumerate(("xmin", "ymin", "xmax", "ymax"), start=1)
    }
    features |= {
        "image/source_id": [b"%d" % split.image_ids[i]],
        "image/key/sha256": [hashlib.sha256(photo.data).hexdigest().encode()],
        "image/object/class/label": [int(split.category_ids[number]) for number in classes],
        "image/object/class/text": [split.names[number].encode() for number in classes],
        "image/object/is_crowd": found.crowd[kept].astype(int).tolist(),
        "image/object/area": (found.areas[kept] * scale).tolist(),
    }
    if has_masks(split):
        features["image/object/mask"] = _masks(split, i, kept, (photo.height, photo.width))
    return features


def _masks(split: BoxSplit, i: int, kept: np.ndarray, size: tuple[int, int]) -> list[bytes]:
    """A PNG of 0 and 1 for each object that is kept, of the photo's packed size (height, width)."""
    annotated = int(split.heights[i]), int(split.widths[i])
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(annotated, size))
    found = []
    for counts in truth_masks(split, np.array([i])).masks.take(np.flatnonzero(kept)):
        inside = mask_pixels({"size": list(annotated), "counts": counts})
        out = io.BytesIO()
        Image.fromarray(inside[rows][:, columns]).save(out, "PNG")
        found.append(out.getvalue())
    return found

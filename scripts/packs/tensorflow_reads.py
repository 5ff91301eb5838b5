"""What TensorFlow itself finds in TFRecord files, as JSON on stdout.

    PYTHON tensorflow_reads.py FILE.tfrecord...       PYTHON has tensorflow

[name, class or objects, SHA-256 of the photo, [height, width]] of each Example, in order; parsed with the features that the scripts of
ImageNet and of the detection tools declare, and the photo decoded. Objects are {"source_id", "objects": [id, name, xmin, ymin, xmax,
ymax, crowd, pixels of its mask], ...}. Nothing of paceline is imported. Run by scripts/check_pack.py.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

TEXT, NUMBER = tf.io.FixedLenFeature([], tf.string), tf.io.FixedLenFeature([], tf.int64)
BOTH = {
    "image/encoded": TEXT, "image/format": TEXT, "image/filename": TEXT, "image/height": NUMBER, "image/width": NUMBER,
}  # fmt: skip
CLASSES = BOTH | {
    "image/class/label": NUMBER, "image/class/synset": TEXT, "image/class/text": TEXT, "image/colorspace": TEXT,
    "image/channels": NUMBER,
}  # fmt: skip
OBJECTS = BOTH | {
    "image/source_id": TEXT, "image/key/sha256": TEXT,
    **{f"image/object/bbox/{corner}": tf.io.VarLenFeature(tf.float32) for corner in ("xmin", "ymin", "xmax", "ymax")},
    "image/object/class/label": tf.io.VarLenFeature(tf.int64), "image/object/class/text": tf.io.VarLenFeature(tf.string),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64), "image/object/area": tf.io.VarLenFeature(tf.float32),
    "image/object/mask": tf.io.VarLenFeature(tf.string),
}  # fmt: skip


def found_in(path):
    rows = []
    for record in tf.data.TFRecordDataset(str(path)):
        boxed = b"image/class/label" not in record.numpy()
        example = tf.io.parse_single_example(record, OBJECTS if boxed else CLASSES)
        photo, size = example["image/encoded"].numpy(), [int(example[f"image/{side}"]) for side in ("height", "width")]
        pixels = tf.io.decode_image(photo, expand_animations=False).shape[:2]
        assert [*pixels] == size, f"{path}: {size} is said of a photo of {pixels}"
        digest = hashlib.sha256(photo).hexdigest()
        name = example["image/filename"].numpy().decode()
        if boxed:
            assert example["image/key/sha256"].numpy().decode() == digest
            label = {"source_id": example["image/source_id"].numpy().decode(), "objects": objects_of(example, size)}
        else:
            name = f"{example['image/class/synset'].numpy().decode()}/{name}"
            label = int(example["image/class/label"]) - 1
        rows.append([name, label, digest, size])
    return rows


def objects_of(example, size):
    columns = [
        tf.sparse.to_dense(example[f"image/object/{name}"]).numpy().tolist()
        for name in ("class/label", "class/text", "bbox/xmin", "bbox/ymin", "bbox/xmax", "bbox/ymax", "is_crowd")
    ]
    columns[1] = [text.decode() for text in columns[1]]
    masks = [tf.io.decode_png(png) for png in tf.sparse.to_dense(example["image/object/mask"]).numpy()]
    assert all([*mask.shape] == [*size, 1] for mask in masks)
    inside = [int(tf.reduce_sum(tf.cast(mask, tf.int64))) for mask in masks] or [0] * len(columns[0])
    return [list(row) for row in zip(*columns, inside, strict=True)]


said = {Path(name).name: {"rows": found_in(Path(name))} for name in sys.argv[1:]}
json.dump({"version": f"tensorflow {tf.__version__}", "files": said}, sys.stdout)

"""Written and read back by TensorFlow itself: TFRecord files of many kinds, and said.json with what is in them.

    PYTHON tensorflow_files.py OUT PHOTOS SEED             PYTHON has tensorflow or tensorflow-cpu
    PYTHON tensorflow_files.py --read FILE.tfrecord...     prints what TensorFlow reads of files that others wrote

Run by scripts/check_containers.py; nothing of paceline is imported.
"""

import hashlib
import json
import os
import random
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf


def feature(values):
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(features):
    packed = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=packed)).SerializeToString()


def classified(rng, photos):
    photo = rng.choice(photos)
    features = {
        "image/encoded": [photo.read_bytes()],
        "image/class/label": [rng.randrange(1, 1001)],
        "image/class/synset": [photo.parent.name.encode()],
        "image/class/text": ["Größe, \u65e5".encode()],
        "image/filename": [photo.name.encode()],
        "image/height": [224],
        "image/width": [224],
        "image/format": [b"JPEG"],
    }
    if rng.random() < 0.3:  # as the original script adds them for photos with boxes
        features["image/object/bbox/xmin"] = [rng.random() for _ in range(rng.randrange(4))]
        features["image/object/bbox/label"] = [features["image/class/label"][0]] * 3
    return features


def with_objects(rng, photos, masks):
    objects = rng.choice([0, 1, 2, 40])
    features = {
        "image/encoded": [rng.choice(photos).read_bytes()],
        "image/source_id": [str(rng.randrange(10**6)).encode()],
        "image/filename": [b"000000.jpg"],
        "image/height": [rng.randrange(1, 2000)],
        "image/width": [rng.randrange(1, 2000)],
        "image/object/class/label": [rng.randrange(1, 91) for _ in range(objects)],
        "image/object/is_crowd": [int(rng.random() < 0.2) for _ in range(objects)],
        "image/object/area": [rng.uniform(0, 1e5) for _ in range(objects)],
        "image/object/class/text": [b"cat"] * objects,
    }
    for corner in ("xmin", "ymin", "xmax", "ymax"):
        features[f"image/object/bbox/{corner}"] = [rng.random() for _ in range(objects)]
    if masks:
        features["image/object/mask"] = [rng.randbytes(rng.randrange(300)) for _ in range(objects)]
    return features


def anything(rng, photos):
    kinds = {
        "ints": [rng.randrange(-(2**63), 2**63) for _ in range(rng.choice([0, 1, 500]))],
        "floats": [rng.uniform(-1e30, 1e30) for _ in range(rng.choice([0, 1, 500]))],
        "runs": [rng.randbytes(rng.choice([0, 1, 200, 20_000])) for _ in range(rng.randrange(4))],
        "": [7],
    }
    return {name: kinds[name] for name in rng.sample(sorted(kinds), rng.randrange(5))}


def said(path):
    """What TensorFlow reads: of each record its bytes' SHA-256, and each feature's values."""
    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        parsed, features = tf.train.Example.FromString(record), {}
        for name, values in parsed.features.feature.items():
            features[name] = {
                "runs": [hashlib.sha256(value).hexdigest() for value in values.bytes_list.value],
                "floats": [float(value) for value in values.float_list.value],
                "ints": list(values.int64_list.value),
            }
        found.append([hashlib.sha256(record).hexdigest(), features])
    return found


def write(out, name, shards, count, make):
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(out / f"{name}-{shard:05d}-of-{shards:05d}")) as writer:
            for _ in range(count):
                writer.write(example(make()))


def main():
    if sys.argv[1] == "--read":
        print(json.dumps([said(path) for path in sys.argv[2:]]))
        return
    out, root, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    photos = sorted(root.glob("*/*.jpg"))
    write(out, "imagenet", 7, 40, lambda: classified(rng, photos))
    write(out, "coco", 3, 40, lambda: with_objects(rng, photos, masks=False))
    write(out, "coco_masks", 1, 60, lambda: with_objects(rng, photos, masks=True))
    write(out, "anything", 2, 200, lambda: anything(rng, photos))
    write(out, "empty", 1, 0, None)
    (out / "said.json").write_text(json.dumps({path.name: said(path) for path in sorted(out.iterdir())}))
    for kind in ("GZIP", "ZLIB"):
        with tf.io.TFRecordWriter(str(out / kind), tf.io.TFRecordOptions(compression_type=kind)) as writer:
            writer.write(example(classified(rng, photos)))
    print("tensorflow", tf.__version__)


main()

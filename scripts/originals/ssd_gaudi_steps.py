"""Training steps of Habana's TensorFlow SSD: its own model function, from given first weights, on given photos.

    python scripts/originals/ssd_gaudi_steps.py --habana MODEL_REFERENCES --samples SAMPLES --weights FIRST --out OUT --steps 50

MODEL_REFERENCES: a checkout of github.com/HabanaAI/Model-References at 1.5.0 (cf420d00) or 1.14.0 (f69c6d63). Needs tensorflow-cpu
2.9.1 (Python 3.10), numpy below 1.24, protobuf 3.19 and tf_slim, and nothing of paceline; `scripts/certificates/ssd_gaudi.py` makes
that and calls this. Files are .npz. Settings are its own defaults by its own `construct_run_config`, but for fp32 and an epoch that
is one step long; its own reader of records makes each batch's pixels and targets, its own `ssd_model_fn` the network, the losses,
the rate and the update. `--no_hpu`, its own flag, is all that a CPU needs: no operator is replaced. What it draws by chance (crop,
flip, amounts of color) is given instead, and what only its launcher imports (mpi4py, pycocotools) stands as a mock.
Without --samples it draws first weights by its initializers, writes them to OUT and ends. Order of variables in all that is
written: trained vectors, running statistics, kernels; inside each by name.
Letters: M photos   n objects of all photos   T steps   S = 300 pixels
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import numpy as np
import tensorflow.compat.v1 as tf

ONE = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}


def load_original(folder: Path, images: int, decay: float) -> SimpleNamespace:
    """Its modules, and `params` of a run on a CPU in fp32 with an epoch of one step of so many images."""
    sys.path.insert(0, str(folder))
    for name in ("mpi4py", "pycocotools", "pycocotools.coco", "pycocotools.cocoeval"):
        sys.modules[name] = MagicMock()
    from TensorFlow.computer_vision.SSD_ResNet34 import constants, dataloader, model, ssd

    tf.disable_eager_execution()
    flags = f"--dtype fp32 --batch_size {images} --num_examples_per_epoch {images} --weight_decay {decay} --no_hpu".split()
    ssd.ARGS = ssd.SSDArgParser(is_demo=False).parse_args(flags)
    _, params = ssd.construct_run_config(images, "unused", None, 1, 0)
    return SimpleNamespace(constants=constants, dataloader=dataloader, model=model, params=params)


def reader_of(original: SimpleNamespace):
    """A serialized record -> pixels and targets: its decoder and its `_parse_example`, which its reader maps first and last."""
    with patch.object(original.dataloader.tf.data.Dataset, "list_files") as files:
        original.dataloader.SSDInputReader("none", is_training=True)(original.params)
    maps = [call[1][0] for call in files.mock_calls if call[0].endswith(".map")]
    return lambda record: maps[-1](maps[0](record), None)


def given_draws(original: SimpleNamespace, draw: dict, *, colours: bool):
    """Patches of its sources of chance: a crop is its own resize of a given region, and the boxes that stay are given, flipped."""
    size, image = (original.constants.IMAGE_SIZE,) * 2, tf.image

    def crop(photo, boxes, classes):
        return image.crop_and_resize(photo[None], draw["region"][None], [0], size)[0], boxes, classes

    def flip(image, boxes):
        return tf.cond(draw["flip"], lambda: tf.image.flip_left_right(image), lambda: image), boxes

    amounts = tf.unstack(draw["amounts"], 4)
    own = original.dataloader.color_jitter
    chance = patch.multiple(
        image,
        random_brightness=lambda pixels, max_delta: image.adjust_brightness(pixels, amounts[0]),
        random_contrast=lambda pixels, lower, upper: image.adjust_contrast(pixels, amounts[1]),
        random_saturation=lambda pixels, lower, upper: image.adjust_saturation(pixels, amounts[2]),
        random_hue=lambda pixels, max_delta: image.adjust_hue(pixels, amounts[3]),
    )
    same = lambda pixels, **ranges: pixels  # noqa: E731
    turn = patch.object(original.dataloader.preprocessor, "random_horizontal_flip", flip)
    return (chance, turn, patch.multiple(original.dataloader, ssd_crop=crop, color_jitter=own if colours else same))


def record_of(given: dict[str, np.ndarray], number: int, encoded: bytes) -> bytes:
    """A record in the layout of its TFRecords: an encoded photo, boxes in fractions, COCO's category numbers."""
    mine = slice(given["starts"][number], given["starts"][number + 1])
    sides = dict(zip(("ymin", "xmin", "ymax", "xmax"), given["boxes"][mine].T))
    names = tf.train.Feature(int64_list=tf.train.Int64List(value=given["categories"][mine]))
    feature = {f"image/object/bbox/{side}": _floats(values) for side, values in sides.items()}
    texts = {"image/encoded": encoded, "image/source_id": b"0"}
    feature |= {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])) for name, text in texts.items()}
    feature["image/object/class/label"] = names
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def _floats(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def make_samples(original: SimpleNamespace, samples: Path, *, own_pixels: bool) -> dict[str, np.ndarray]:
    """Pixels (M, S, S, 3) and targets of all photos, by its own reader.

    own_pixels  from the JPEG's bytes on; else from pixels that are cropped, flipped and colored already
    """
    with np.load(samples) as file:
        given = dict(file)
    places, rows = given["photo_starts"], []
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(**ONE)) as session:
        kinds = {"region": ((4,), tf.float32), "flip": ((), tf.bool), "amounts": ((4,), tf.float32)}
        draw = {name: tf.placeholder(kind, shape) for name, (shape, kind) in kinds.items()}
        record, levels = tf.placeholder(tf.string, ()), tf.placeholder(tf.uint8, (None, None, 3))
        png = tf.io.encode_png(levels)
        read = reader_of(original)
        chance, turn, own = given_draws(original, draw, colours=own_pixels)
        with chance, turn, own:
            made = read(record)
        for k, pixels in enumerate(given["pixels"]):
            if own_pixels:
                encoded = given["photos"][places[k] : places[k + 1]].tobytes()
                values = {name: given[name][k] for name in draw}
            else:
                encoded = session.run(png, {levels: pixels})
                values = {"region": (0, 0, 1, 1), "flip": False, "amounts": (0, 1, 1, 0)}
            feed = {place: values[name] for name, place in draw.items()}
            image, labels = session.run(made, {record: record_of(given, k, encoded), **feed})
            rows.append({"image": image, **labels})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def kind_of(name: str) -> int:
    """0 of a trained vector, 1 of running statistics, 2 of a kernel."""
    return 2 if name.endswith("kernel") else int("/moving_" in name)


class Steps:
    """Its graph of one step for B images, and a session with it."""

    def __init__(self, original: SimpleNamespace, images: int) -> None:
        side, names = original.constants.IMAGE_SIZE, original.constants
        boxes = names.NUM_SSD_BOXES
        self.image = tf.placeholder(tf.float32, (images, side, side, 3))
        self.labels = {
            names.NUM_MATCHED_BOXES: tf.placeholder(tf.float32, (images,)),
            names.BOXES: tf.placeholder(tf.float32, (images, boxes, 4)),
            names.CLASSES: tf.placeholder(tf.int32, (images, boxes)),
        }
        with patch.object(tf.train, "init_from_checkpoint"):  # first weights are given
            spec = original.model.ssd_model_fn(self.image, self.labels, tf.estimator.ModeKeys.TRAIN, original.params)
        logged = {op.name: op.inputs[1] for op in tf.get_default_graph().get_operations() if op.type == "ScalarSummary"}
        self.found = {"loss": spec.loss, "class": logged["class_loss"], "box": logged["box_loss"]}
        self.found["rate"] = logged["learning_rate"]
        self.train = spec.train_op
        kept = [v for v in tf.global_variables() if not v.name.endswith("/Momentum:0") and "global_step" not in v.name]
        self.variables = sorted(kept, key=lambda v: (kind_of(v.op.name), v.op.name))
        self.session = tf.Session(config=tf.ConfigProto(**ONE))
        self.session.run(tf.global_variables_initializer())

    def values(self, kinds: tuple[int, ...]) -> np.ndarray:
        """All values of variables of these kinds, in one vector."""
        wanted = [v for v in self.variables if kind_of(v.op.name) in kinds]
        return np.concatenate([value.ravel() for value in self.session.run(wanted)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--habana", type=Path, required=True)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--weights", type=Path, help="first weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--images", type=int, default=2, help="of a step")
    parser.add_argument("--decay", type=float, default=5e-4, help="its --weight_decay")
    parser.add_argument("--own-pixels", action="store_true", help="from the photos' bytes on")
    asked = parser.parse_args()
    original = load_original(asked.habana, asked.images, asked.decay)
    samples = make_samples(original, asked.samples, own_pixels=asked.own_pixels) if asked.samples else {}
    tf.set_random_seed(1)
    steps = Steps(original, asked.images)
    if not samples:
        first = dict(zip([v.op.name for v in steps.variables], steps.session.run(steps.variables)))
        np.savez(asked.out, **first)
        return
    with np.load(asked.weights) as file:
        for variable in steps.variables:
            variable.load(file[variable.op.name], steps.session)
    rows, vectors, statistics = [], [], []
    for step in range(asked.steps):
        mine = slice(step * asked.images, (step + 1) * asked.images)
        feed = {steps.image: samples["image"][mine]}
        feed.update({place: samples[name][mine] for name, place in steps.labels.items()})
        row, _ = steps.session.run([steps.found, steps.train], feed)
        rows.append({name: float(value) for name, value in row.items()})
        vectors.append(steps.values((0,)))
        statistics.append(steps.values((1,)))
        print(step, rows[-1], flush=True)
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    found.update(vectors=np.stack(vectors), statistics=np.stack(statistics), kernels=steps.values((2,)))
    targets = {name: samples[name] for name in ("boxes", "classes", "num_matched_boxes")}
    if asked.own_pixels:
        targets["image"] = samples["image"]
    np.savez(asked.out, **found, **targets)


if __name__ == "__main__":
    main()

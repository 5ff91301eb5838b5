"""Written and read back by MXNet 1.9.1 itself: RecordIO files of many kinds, and said.json with what is in them.

    PYTHON mxnet_files.py OUT PHOTOS SEED       PYTHON has mxnet==1.9.1, numpy<1.24 and opencv-python-headless

PHOTOS is a folder of class folders. Run by scripts/check_containers.py; nothing of paceline is imported.
"""

import hashlib
import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import recordio

MAGIC = struct.pack("<I", 0xCED7230A)


def payload(rng, photos):
    """Bytes as a photo would be, or made to be hard: of any length, with the magic word at any remainder."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(photos).read_bytes()
    data = bytearray(rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 1000, 4097, 70_001])))
    if kind == 1:
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data) + 1)
            data[at:at] = MAGIC
    elif kind == 2:
        data = bytearray(MAGIC * rng.randrange(1, 5)) + data
    return bytes(data)


def label(rng, width):
    if width == 1:
        return float(np.float32(rng.uniform(-5, 1000)))
    return np.array([rng.uniform(-5, 1000) for _ in range(width)], np.float32)


def write_indexed(out, rng, photos, name, widths, keys):
    record = recordio.MXIndexedRecordIO(str(out / f"{name}.idx"), str(out / f"{name}.rec"), "w")
    for i, key in enumerate(keys):
        header = recordio.IRHeader(0, label(rng, widths[i % len(widths)]), rng.randrange(1 << 40), 0)
        record.write_idx(key, recordio.pack(header, payload(rng, photos)))
    record.close()


def write_sequential(out, rng, photos, name, count):
    record = recordio.MXRecordIO(str(out / f"{name}.rec"), "w")
    for i in range(count):
        record.write(recordio.pack(recordio.IRHeader(0, float(i), i, 0), payload(rng, photos)))
    record.close()


def im2rec(out, photos, name, *options):
    prefix = out / name
    tool = Path(mx.__file__).parent / "tools" / "im2rec.py"
    if not prefix.with_suffix(".lst").exists():
        subprocess.run(
            [sys.executable, tool, "--list", "--recursive", prefix, photos], check=True, stdout=subprocess.DEVNULL
        )
    subprocess.run([sys.executable, tool, *options, prefix, photos], check=True, stdout=subprocess.DEVNULL)


def write_boxes_list(out, rng, photos, root, name):
    """A .lst of detection labels, of 0 to 6 objects; every second with one number more an object."""
    with (out / f"{name}.lst").open("w") as file:
        for number, photo in enumerate(rng.sample(photos, 40)):
            width = 5 + number % 2
            label = [2.0, width]
            for _ in range(rng.randrange(7)):
                x, y = sorted(rng.random() for _ in range(2)), sorted(rng.random() for _ in range(2))
                label += [rng.randrange(20), x[0], y[0], x[1], y[1], *[1.0] * (width - 5)]
            words = [str(number), *(f"{value:.6f}" for value in label), str(photo.relative_to(root))]
            file.write("\t".join(words) + "\n")


def said(path):
    """What MXNet's own reader finds: of each record id, labels, bytes and SHA-256 of the payload."""
    found, reader = [], recordio.MXRecordIO(str(path), "r")
    while (data := reader.read()) is not None:
        header, photo = recordio.unpack(data)
        labels = np.atleast_1d(np.asarray(header.label, np.float32))
        found.append([header.id, labels.view(np.uint32).tolist(), len(photo), hashlib.sha256(photo).hexdigest()])
    reader.close()
    return found


def said_boxes(path):
    """What MXNet's own detection iterator makes of each record's label; nothing where it has no object."""
    found, reader = [], recordio.MXRecordIO(str(path), "r")
    while (data := reader.read()) is not None:
        label = recordio.unpack(data)[0].label
        # The function does not use its object, whose construction refuses a set with such a photo.
        found.append(mx.image.ImageDetIter._parse_label(None, label).tolist() if len(label) > 2 else [])
    reader.close()
    return found


def main():
    out, root, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    photos = sorted(root.glob("*/*.jpg"))
    write_indexed(out, rng, photos, "one_label", [1], range(300))
    write_indexed(out, rng, photos, "label_widths", [1, 2, 7, 100, 1000], range(120))
    write_indexed(out, rng, photos, "keys_in_any_order", [3], rng.sample(range(10_000), 80))
    write_sequential(out, rng, photos, "without_idx", 150)
    write_sequential(out, rng, photos, "empty", 0)
    im2rec(out, root, "pass_through", "--pass-through")
    im2rec(out, root, "resized", "--resize", "64", "--quality", "90", "--num-thread", "2")
    im2rec(out, root, "png", "--resize", "32", "--encoding", ".png", "--quality", "3")
    write_boxes_list(out, rng, photos, root, "boxes")
    im2rec(out, root, "boxes", "--pass-through", "--pack-label")
    (out / "boxes.json").write_text(json.dumps(said_boxes(out / "boxes.rec")))
    (out / "said.json").write_text(json.dumps({path.stem: said(path) for path in sorted(out.glob("*.rec"))}))
    print("mxnet", mx.__version__)


main()

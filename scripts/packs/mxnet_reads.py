"""What MXNet 1.9.1 itself finds in RecordIO files, as JSON on stdout.

    PYTHON mxnet_reads.py FILE.rec...       PYTHON has mxnet==1.9.1, numpy<1.24 and opencv-python-headless

By its keys (.idx) and from front to back, which must agree: [id, label, SHA-256 of the photo, [height, width]] of each record. Then
by its own iterators: the labels that ImageRecordIter gives in order (classes), the boxes that ImageDetIter gives (objects). Nothing
of paceline is imported. Run by scripts/check_pack.py.
"""

import hashlib
import json
import sys
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
from mxnet import recordio

# A batch of more photos than there are is an error to this iterator.
BATCH = 1


def found_in(path):
    indexed = recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "r")
    plain = recordio.MXRecordIO(str(path), "r")
    rows = []
    for key in indexed.keys:
        record = indexed.read_idx(key)
        assert record == plain.read(), f"{path}: record {key} by its key is another one than from front to back"
        header, photo = recordio.unpack(record)
        assert header.id == key, f"{path}: record {key} says that it is {header.id}"
        pixels = cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
        label = np.atleast_1d(np.asarray(header.label, np.float32)).tolist()
        rows.append([header.id, label, hashlib.sha256(photo).hexdigest(), list(pixels.shape[:2])])
    assert plain.read() is None, f"{path}: there are records that its .idx does not name"
    return rows


def classes_by_iterator(path, count):
    """The labels that the iterator which ResNet is trained with gives, in order."""
    batches = mx.io.ImageRecordIter(
        path_imgrec=str(path), data_shape=(3, 32, 32), resize=40, batch_size=BATCH, shuffle=False, preprocess_threads=1
    )
    labels = [float(label) for batch in batches for label in batch.label[0].asnumpy()]
    return labels[:count]


def boxes_by_iterator(path):
    """[class, xmin, ymin, xmax, ymax] of each photo's objects, as SSD in MXNet is trained with them, in order."""
    batches = mx.image.ImageDetIter(
        batch_size=1, data_shape=(3, 64, 64), path_imgrec=str(path), path_imgidx=str(path.with_suffix(".idx")), aug_list=[]
    )
    labels = []
    while True:
        try:
            label, photo = batches.next_sample()
        except StopIteration:
            return labels
        labels.append(np.asarray(batches._parse_label(label)).tolist())
        assert batches.imdecode(photo).shape[2] == 3


said = {}
for name in sys.argv[1:]:
    path = Path(name)
    rows = found_in(path)
    boxed = len(rows[0][1]) > 1
    by_iterator = boxes_by_iterator(path) if boxed else classes_by_iterator(path, len(rows))
    said[path.name] = {"rows": rows, "iterator": by_iterator}
json.dump({"version": f"mxnet {mx.__version__}", "files": said}, sys.stdout)

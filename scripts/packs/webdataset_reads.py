"""What the webdataset package itself finds in tars, as JSON on stdout.

    PYTHON webdataset_reads.py FILE.tar...       PYTHON has webdataset and pillow

[key, class or objects, SHA-256 of the photo, [height, width]] of each sample, in order; photos, classes and JSON by its own decoders.
Nothing of paceline is imported. Run by scripts/check_pack.py.
"""

import hashlib
import io
import json
import sys
from pathlib import Path

import webdataset as wds
from PIL import Image

PHOTOS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")


def found_in(path):
    rows = []
    raw = wds.WebDataset(str(path), shardshuffle=False)
    decoded = wds.WebDataset(str(path), shardshuffle=False).decode("pil")
    for sample, same in zip(raw, decoded, strict=True):
        field = next(name for name in PHOTOS if name in sample)
        width, height = same[field].size if hasattr(same[field], "size") else Image.open(io.BytesIO(sample[field])).size
        label = same["cls"] if "cls" in same else same["json"]
        rows.append([sample["__key__"], label, hashlib.sha256(sample[field]).hexdigest(), [height, width]])
    return rows


said = {Path(name).name: {"rows": found_in(Path(name))} for name in sys.argv[1:]}
json.dump({"version": f"webdataset {wds.__version__}", "files": said}, sys.stdout)

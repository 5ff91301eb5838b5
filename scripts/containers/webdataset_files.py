"""Written and read back by the webdataset package itself: tars of samples, and said.json with what is in them.

    PYTHON webdataset_files.py OUT PHOTOS SEED       PYTHON has webdataset
    PYTHON webdataset_files.py --read FILE.tar...    prints what webdataset reads of tars that others wrote

Run by scripts/check_containers.py; nothing of paceline is imported.
"""

import hashlib
import json
import random
import sys
from pathlib import Path

import webdataset as wds


def said(path):
    """What webdataset reads: of each sample its key, and each field's SHA-256."""
    found = []
    for sample in wds.WebDataset(str(path), shardshuffle=False):
        fields = {name: hashlib.sha256(data).hexdigest() for name, data in sample.items() if not name.startswith("__")}
        found.append([sample["__key__"], fields])
    return found


def main():
    if sys.argv[1] == "--read":
        print(json.dumps([said(path) for path in sys.argv[2:]]))
        return
    out, root, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    photos = sorted(root.glob("*/*.jpg"))
    classes = sorted({photo.parent.name for photo in photos})
    with wds.ShardWriter(str(out / "shard-%06d.tar"), maxcount=70, verbose=0) as writer:
        for number in range(250):
            photo = rng.choice(photos)
            sample = {
                "__key__": f"{photo.parent.name}/{number:06d}",
                "jpg": photo.read_bytes(),
                "cls": classes.index(photo.parent.name),
            }
            if number % 3 == 0:
                sample["json"] = {"label": sample["cls"], "name": "Größe"}
                sample["seg.png"] = rng.randbytes(rng.randrange(2000))
            writer.write(sample)
    with wds.TarWriter(str(out / "long_names.tar")) as writer:
        for number in range(20):
            key = "f" * 90 + "/" + "g" * rng.choice([10, 100, 150]) + f"/ü{number}"
            writer.write(
                {"__key__": key, "png": rng.randbytes(rng.choice([0, 511, 512, 513])), "txt": f"class {number % 3}"}
            )
    (out / "said.json").write_text(json.dumps({path.name: said(path) for path in sorted(out.glob("*.tar"))}))
    print("webdataset", wds.__version__)


main()

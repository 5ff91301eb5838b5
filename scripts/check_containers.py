"""The containers' readers and writers beside the tools whose formats they are.

    python scripts/check_containers.py --photos DIR --mxnet PYTHON --tensorflow PYTHON --webdataset PYTHON [--seeds 3] [--out LOG]

Each PYTHON is an interpreter that has that tool (mxnet 1.9.1 with numpy<1.24 and opencv-python-headless; tensorflow-cpu;
webdataset); what is left out is not checked. DIR holds class folders of JPEGs. For each seed a tool writes files of many kinds
(scripts/containers/) and says, by its own reader, what is in them; ours must find the same to the last byte and label. Then the tool
reads what our writers wrote. One line a file; exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.containers.archives import WebDatasetSample, group_samples, read_label
from paceline.data.containers.recordio import (
    RecordIOContent,
    check_idx,
    format_idx,
    parse_detection_label,
    read_idx,
    read_lst,
    read_payload,
    read_recordio,
    write_recordio,
)
from paceline.data.containers.tar import tar_members, write_tar
from paceline.data.containers.tfrecord import (
    Feature,
    coco_example,
    example_bytes,
    imagenet_example,
    parse_example,
    tfrecord_spans,
    write_tfrecord,
)

TOOLS = Path(__file__).resolve().parent / "containers"
sys.path.insert(0, str(TOOLS.parents[1] / "tests"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_recordio(folder: Path, said: dict[str, Any], python: str) -> Iterator[str]:
    """MXNet's files: every payload and label; with the .idx and .lst; and our writer's bytes are its bytes."""
    for stem, wanted in said.items():
        path = folder / f"{stem}.rec"
        data = path.read_bytes()
        records = list(read_recordio(io.BytesIO(data), len(data), str(path)))
        payloads = [read_payload(lambda at, n, data=data: data[at : at + n], r.start, r.extent, stem) for r in records]
        for record, payload in zip(records, payloads):
            assert record.parts > 1 or data[record.offset : record.offset + record.length] == payload
        found = [
            [r.id, r.labels.view(np.uint32).tolist(), len(payload), sha256(payload)]
            for r, payload in zip(records, payloads)
        ]
        assert found == wanted, stem
        again = io.BytesIO()
        # A width of 1 is written as the header's own label, as every file here has it.
        placed = write_recordio(
            again,
            [
                RecordIOContent(r.id, r.labels if len(r.labels) > 1 else float(r.labels[0]), p)
                for r, p in zip(records, payloads)
            ],
        )
        assert again.getvalue() == data, f"{stem}: our bytes differ"
        if (idx := path.with_suffix(".idx")).exists():
            keys, offsets = read_idx(idx.read_bytes(), str(idx))
            starts, ids = np.array([r.start for r in records]), np.array([r.id for r in records])
            check_idx(keys, offsets, starts, ids, len(data), str(idx), str(path))
            assert format_idx(zip(keys.tolist(), (start for _, start in placed))) == idx.read_bytes()
        if (lst := path.with_suffix(".lst")).exists():
            listed = list(read_lst(lst.read_bytes(), str(lst)))
            assert sorted(line.id for line in listed) == sorted(r.id for r in records)
            labels = {line.id: line.labels for line in listed}
            for r in records:
                np.testing.assert_array_equal(r.labels, np.array(labels[r.id], np.float32))
        objects = 0
        if stem == "boxes":
            found = [parse_detection_label(r.labels, stem) for r in records]
            rows = [np.column_stack((o.classes, o.boxes, o.extra)).astype(np.float32).tolist() for o in found]
            assert rows == json.loads((folder / "boxes.json").read_text()), "boxes differ"
            objects = sum(map(len, rows))
        split = sum(r.parts > 1 for r in records)
        widths = sorted({len(r.labels) for r in records})[:8]
        yield (
            f"{path.name}: {len(records)} records, {split} in pieces, label widths {widths}"
            + f", {objects} boxes" * bool(objects)
        )


def check_tfrecord(folder: Path, said: dict[str, Any], python: str) -> Iterator[str]:
    """TensorFlow's files: every record and value; our writer's files, read by TensorFlow, hold the same."""
    layouts: dict[str, Callable[..., Any]] = {"imagenet": imagenet_example, "coco": coco_example}
    ours = {}
    for name, wanted in said.items():
        data = (folder / name).read_bytes()
        found, records = [], []
        for span in tfrecord_spans(io.BytesIO(data), len(data), name):
            assert data[span.offset : span.offset + span.length] == span.data
            features = parse_example(span.data, name)
            layout = layouts.get(name.split("-")[0].split("_")[0])
            if layout:
                photo = layout(features, span.data, name).photo
                at = span.offset + photo.start
                encoded = features["image/encoded"].texts(span.data)[0]
                assert data[at : at + photo.length] == encoded
            found.append([sha256(span.data), {key: _values(feature, span.data) for key, feature in features.items()}])
            records.append({key: _python_values(feature, span.data) for key, feature in features.items()})
        assert found == wanted, name
        ours[folder / f"ours-{name}"] = [values for _, values in wanted]
        with (folder / f"ours-{name}").open("wb") as out:
            write_tfrecord(out, map(example_bytes, records))
        yield f"{name}: {len(found)} records"
    read = _read_by_tool(python, "tensorflow_files.py", list(ours))
    for path, values, records in zip(ours, ours.values(), read):
        assert [features for _, features in records] == values, path
    yield f"TensorFlow reads the same in {len(ours)} files of ours"
    for kind in ("GZIP", "ZLIB"):
        data = (folder / kind).read_bytes()
        try:
            list(tfrecord_spans(io.BytesIO(data), len(data), kind))
        except DataError as error:
            yield f"refused: {error}"
        else:
            raise AssertionError(f"{kind} was read")


def check_webdataset(folder: Path, said: dict[str, Any], python: str) -> Iterator[str]:
    """webdataset's tars: every sample and field; our writer's tars, read by webdataset, hold the same."""
    ours = []
    for name, wanted in said.items():
        data = (folder / name).read_bytes()
        found = list(group_samples(tar_members(io.BytesIO(data), len(data), name), name))
        assert [[sample.key.decode(), _hashes(sample, data)] for sample in found] == wanted, name
        for sample in found:
            sample.photo(name)
            field, member = sample.label(name)
            read_label(field, data[member.offset : member.offset + member.length], name)
        ours.append(folder / f"ours-{name}")
        with ours[-1].open("wb") as out:
            members = [member for sample in found for member in sample.fields.values()]
            write_tar(out, [(member.name, data[member.offset : member.offset + member.length]) for member in members])
        yield f"{name}: {len(found)} samples, fields {sorted({field.decode() for sample in found for field in sample.fields})}"
    assert _read_by_tool(python, "webdataset_files.py", ours) == list(said.values())
    yield f"webdataset reads the same in {len(ours)} tars of ours"


def _values(feature: Feature, data: bytes) -> dict[str, list[Any]]:
    return {
        "runs": [sha256(text) for text in feature.texts(data)],
        "floats": [float(value) for value in feature.floats],
        "ints": feature.ints.tolist(),
    }


def _python_values(feature: Feature, data: bytes) -> list[Any]:
    return feature.texts(data) or feature.floats.tolist() or feature.ints.tolist()


def _hashes(sample: WebDatasetSample, data: bytes) -> dict[str, str]:
    return {field.decode(): sha256(data[m.offset : m.offset + m.length]) for field, m in sample.fields.items()}


def _read_by_tool(python: str, script: str, paths: list[Path]) -> Any:
    command = [python, TOOLS / script, "--read", *paths]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


CHECKS = {
    "mxnet": ("mxnet_files.py", check_recordio),
    "tensorflow": ("tensorflow_files.py", check_tfrecord),
    "webdataset": ("webdataset_files.py", check_webdataset),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    for tool in CHECKS:
        parser.add_argument(f"--{tool}", metavar="PYTHON")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    same = True
    for tool, (script, check) in CHECKS.items():
        python = getattr(asked, tool)
        for seed in range(asked.seeds if python else 0):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                command = [python, TOOLS / script, folder, asked.photos, str(seed)]
                written = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                say(f"{written.stdout.strip().splitlines()[-1]}, seed {seed}")
                try:
                    for line in check(folder, json.loads((folder / "said.json").read_text()), python):
                        say(f"  same  {line}".replace(name, "."))
                except (AssertionError, DataError) as error:
                    same = False
                    say(f"  DIFFERENT  {str(error)[:2000]}")
    say("all the same" if same else "not the same")
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

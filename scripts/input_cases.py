"""Run commands on inputs as people have them, and compare what each gives with what is expected.

    PYTHONPATH=. python scripts/input_cases.py FOLDER results/inputs/expected.tsv --out TABLE.tsv

FOLDER has cases.tsv (id, command) and cases/ID. $IN of a command is its folder, $OUT a new one. `trainset KIND RECIPE WORDS` prepares
and takes two training steps. A case is right if its exit code, counts, AP, and (by a pattern) output are as expected. Counts
are those of the index that prepare has written, over all splits. An empty field is not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cli.main import main as paceline
from paceline.data.index.box_split import open_boxes
from paceline.data.index.manifest import FILE_NAME, Manifest

FIELDS = ("exit", "images", "objects", "masks", "classes", "AP", "message")


def run(words: list[str]) -> tuple[int, str]:
    """-> exit code and all output of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = paceline(words)
    return code, said.getvalue()


def counts_of(out: Path) -> dict[str, int]:
    """Images, objects, masks, and classes of a prepared data set; nothing if there is none."""
    if not (out / FILE_NAME).is_file():
        return {}
    manifest = Manifest.load(out)
    found = {"images": sum(split.images for split in manifest.splits.values()), "classes": len(manifest.classes)}
    if manifest.kind == "boxes":
        splits = [open_boxes(manifest, name) for name in manifest.splits]
        found["objects"] = sum(len(split.classes) for split in splits)
        found["masks"] = sum(
            int(np.count_nonzero((np.diff(split.object_polygons) > 0) | (np.diff(split.object_rles) > 0)))
            for split in splits
        )
    return found


def observed(command: str, inside: Path, work: Path) -> dict[str, Any]:
    """What a case gives."""
    out = work / "out"
    words = shlex.split(command.replace("$IN", str(inside)).replace("$OUT", str(out)))
    if words[0] == "trainset":
        kind, recipe, *rest = words[1:]
        code, said = run(["prepare", kind, *rest, "--output-dir", str(out)])
        if code == 0:
            code, more = run(["train", recipe, "--data", str(out), "--max-steps", "2", "--output-dir", str(work / "run")])
            said += more
    else:
        code, said = run(words)
    ap = re.search(r"(?:box|mask)?\s*AP\s+(\d+\.\d)", said)
    return {"exit": code, **counts_of(out), "AP": ap[1] if ap else "", "message": said}


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path)
    words.add_argument("expected", type=Path)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--only", nargs="*", default=[])
    asked = words.parse_args()
    asked.folder = asked.folder.resolve()
    lines = [line.split("\t") for line in (asked.folder / "cases.tsv").read_text().splitlines()]
    commands = {line[0]: line[1] for line in lines if not line[0].startswith("#")}
    wrong = 0
    with asked.expected.open() as source, asked.out.open("w") as target:
        table = csv.writer(target, delimiter="\t", lineterminator="\n")
        table.writerow(["id", "right", *FIELDS])
        for row in csv.DictReader(source, delimiter="\t"):
            if asked.only and row["id"] not in asked.only:
                continue
            work = Path(tempfile.mkdtemp())
            inside = work / "in"
            shutil.copytree(asked.folder / "cases" / row["id"], inside, symlinks=True)
            os.chdir(work)
            found = observed(commands[row["id"]], inside, work)
            differs = [
                name for name in FIELDS
                if row[name] and not (
                    re.search(row[name], " ".join(str(found["message"]).split())) if name == "message"
                    else str(found.get(name, "")) == row[name]
                )
            ]  # fmt: skip
            differs += ["traceback"] if "Traceback" in found["message"] else []
            wrong += bool(differs)
            last = " ".join(found["message"].split())[-160:] if differs else row["message"]
            table.writerow(
                [
                    row["id"],
                    "no: " + ", ".join(differs) if differs else "yes",
                    *(found.get(name, "") for name in FIELDS[:-1]),
                    last,
                ]
            )
            target.flush()
            shutil.rmtree(work)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

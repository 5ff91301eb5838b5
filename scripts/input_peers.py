"""The whole comparison of input paths in one command: photos into a tar and a RecordIO file, peers installed, all contenders in turn.

    python scripts/input_peers.py PHOTOS WORK OUT.json [flags of `paceline bench input`]

PHOTOS  a folder with JPEG photos, e.g. COCO's train2017; a thousand of them at most, evenly spread, are copied into WORK and measured
WORK    a folder for the containers and for the peers' environments (8 GB); what is there already is taken as it is
OUT     where the report goes

MXNet itself writes the RecordIO file, where it could be installed. The bytes of the photos are the same everywhere: `bench input`
compares their digests. Takes about six minutes on two cores once the peers are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

MAX_PHOTOS = 1000
WRITE_RECORDIO = """
import sys, mxnet as mx
record = mx.recordio.MXRecordIO(sys.argv[1], "w")
for number, path in enumerate(sys.argv[2:]):
    record.write(mx.recordio.pack(mx.recordio.IRHeader(0, float(number % 2), number, 0), open(path, "rb").read()))
record.close()
"""


def main() -> int:
    """Returns the exit code of the measurement."""
    photos, work, out = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    work.mkdir(parents=True, exist_ok=True)
    peers = ["--baselines", "all", "--baselines-dir", str(work / "peers")]
    paceline("bench", "input", *peers, "--install-baselines")
    files = copied(photos, work / "photos")
    data = [str(work / "photos")] + [str(folder) for folder in (in_tar(files, work), in_recordio(files, work)) if folder]
    return paceline("bench", "input", *peers, "--data", *data, "--output", out, *sys.argv[4:])


def copied(photos: Path, folder: Path) -> list[Path]:
    """-> the copies."""
    if not folder.exists():
        files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        kept, part = min(len(files), MAX_PHOTOS), folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for number in range(kept):
            shutil.copyfile(files[number * len(files) // kept], part / f"{number:04d}.jpg")
        os.replace(part, folder)
    return sorted(folder.iterdir())


def in_tar(files: list[Path], work: Path) -> Path:
    """-> a prepared data set of one tar: two classes, every second photo."""
    archive, prepared = work / "photos.tar", work / "tar"
    if not archive.exists():
        with tarfile.open(archive.with_suffix(".part"), "w") as tar:
            for number, path in enumerate(files):
                tar.add(path, arcname=f"class-{number % 2}/{path.name}")
        os.replace(archive.with_suffix(".part"), archive)
    return prepare("tar", archive, prepared)


def in_recordio(files: list[Path], work: Path) -> Path | None:
    """-> a prepared data set of one .rec; None where MXNet is not there to write it."""
    python, record = work / "peers" / "mxnet" / "bin" / "python", work / "photos.rec"
    if not python.exists():
        return None
    if not record.exists():
        part = str(record.with_suffix(".part"))
        subprocess.run([str(python), "-c", WRITE_RECORDIO, part, *map(str, files)], check=True)
        os.replace(part, record)
    return prepare("recordio", record, work / "recordio")


def prepare(kind: str, file: Path, folder: Path) -> Path:
    """The container's manifest; the photos of no class in particular are all of them trained on, and two validate."""
    if paceline("prepare", kind, "--train", str(file), "--val", str(file), "--output-dir", str(folder)):
        raise SystemExit(f"{file}: was not prepared")
    return folder


def paceline(*words: str) -> int:
    """Carry out a command."""
    return subprocess.run([sys.executable, "-m", "paceline", *words]).returncode


if __name__ == "__main__":
    sys.exit(main())

"""A COCO JSON as it lies on disk: a file, or a member of a zip as cocodataset.org gives them out."""

from __future__ import annotations

import gc
import json
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from paceline.config.errors import DataError
from paceline.config.plain_file import open_plain, read_plain
from paceline.config.printable import some
from paceline.datasets.formats.label_tools import json_tool

# The largest that are used, Objects365's, have 6 GB.
MOST_BYTES = 8 << 30
# In a zip: annotations of COCO pack to a quarter, indented ones to a twentieth; nothing of so many bytes is a bomb.
MOST_RATIO, ALWAYS_BYTES = 30, 16 << 20


def load_json(path: Path, split: str) -> tuple[Path, dict[str, Any]]:
    """-> the file, of a zip with the name in it below the zip's, and what it holds.

    split  "train" or "val", which of a zip's JSONs is meant
    Raises DataError where it is none, or cannot be read.
    """
    try:
        if path.suffix == ".zip":
            path, data = _zipped(path, split)
        else:
            data = read_plain(path, MOST_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Check the path (--annotations).") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). A COCO JSON file is wanted.") from None
    # Millions of small objects are made and none is garbage: walking through them again and again doubles the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else "nested too deeply"
        raise DataError(f"{path}: not JSON ({reason}). Download or export it again.") from None
    finally:
        if collects:
            gc.enable()
    if tool := json_tool(record):
        raise DataError(f"{path}: this is {tool[0]}. {tool[1]}")
    if not isinstance(record, dict):
        raise DataError(
            f"{path}: not a COCO annotation file: it holds a {type(record).__name__}, not an object with images, "
            "annotations and categories. (A list may be detections; those are no annotations.)"
        )
    return path, record


def _zipped(path: Path, split: str) -> tuple[Path, bytes]:
    """The only JSON in a zip that fits the split, and its name below the zip's. Raises OSError, DataError."""
    with os.fdopen(open_plain(path), "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            names = [name for name in archive.namelist() if name.endswith(".json")]
            fitting = [name for name in names if re.fullmatch(rf"instances_{split}\d*\.json", os.path.basename(name))]
            if len(fitting or names) != 1:
                raise DataError(
                    f"{path}: it holds {some(names)}; which one is meant? Unpack it and name the JSON (--annotations)."
                )
            said, packed = archive.getinfo((fitting or names)[0]).file_size, os.fstat(file.fileno()).st_size
            if said > max(ALWAYS_BYTES, MOST_RATIO * packed):
                raise DataError(
                    f"{path}: its {packed:,} bytes would unpack to {said:,}, which annotations do not; it is not unpacked. Where "
                    "you trust it, unpack it and name the JSON (--annotations)."
                )
            with archive.open((fitting or names)[0]) as member:
                data = member.read(MOST_BYTES + 1)
        # NotImplementedError is zipfile's word for a compression that it does not know, RuntimeError for an encrypted member.
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise DataError(f"{path}: a zip that cannot be read ({error}). Download it again.") from None
    if len(data) > MOST_BYTES:
        raise DataError(f"{path}: its JSON has more than {MOST_BYTES:,} bytes.")
    return path / (fitting or names)[0], data

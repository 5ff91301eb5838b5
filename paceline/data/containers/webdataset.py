"""WebDataset: the files of a tar that make one sample.

Files that stand together and have one key are a sample; the key is the path up to the first dot of the file's name, what follows
is the field: train/0001.jpg and train/0001.cls are the fields jpg and cls of train/0001. Files without a dot, and those of a
name that begins with one, belong to no sample. Source: the webdataset package, tariterators.py (base_plus_ext, group_by_keys).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.names import IMAGE_SUFFIXES
from paceline._utils.text import abbreviate
from paceline.data.containers.reading import TarMember, Truncated, format_member

_PHOTO_FIELDS = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# Where a label is looked for, in this order; and, in JSON, under which of these names.
LABEL_FIELDS = (b"cls", b"json", b"txt")
_JSON_NAMES = ("label", "cls", "class", "class_id", "category_id")
# The JSON of a photo with thousands of outlined objects has a few megabytes; of what is longer, nothing is read.
MAX_LABEL_BYTES = 1 << 24
# Under this name a JSON has the objects of the photo, as COCO's files have them.
OBJECTS = "annotations"


class WebDatasetSample(NamedTuple):
    """One sample: its key, and its files by field, in lower case."""

    key: bytes
    fields: dict[bytes, TarMember]

    def photo(self, archive: str) -> TarMember:
        """The photo: of a field such as jpg, or, where there is none, one such as left.jpg. Raises DataError unless it is one."""
        exact = [name for name in self.fields if name in _PHOTO_FIELDS]
        photos = exact or [name for name in self.fields if name.rsplit(b".", 1)[-1] in _PHOTO_FIELDS]
        if len(photos) == 1:
            return self.fields[photos[0]]
        dots = len(photos) > 1 and all(b"." in name for name in photos)
        hint = (
            " A sample's name ends at its first dot: if these are several samples, use names without dots." if dots else ""
        )
        raise DataError(
            f"{archive}: sample {format_member(self.key)} has {len(photos) or 'no'} "
            f"photo{'s' if photos else ''}, one is needed; its fields "
            f"are {', '.join(map(format_member, self.fields))}.{hint}"
        )

    def label(self, archive: str) -> tuple[str, TarMember]:
        """The file with the label, and its field: cls, json or txt. Raises DataError where there is none, or it is too long."""
        for name in LABEL_FIELDS:
            if name in self.fields:
                if self.fields[name].length > MAX_LABEL_BYTES:
                    break
                return name.decode(), self.fields[name]
        raise DataError(
            f"{archive}: sample {format_member(self.key)} has no label (.cls, .json or .txt of "
            f"{MAX_LABEL_BYTES:,} bytes at most); its fields are {', '.join(map(format_member, self.fields))}."
        )


def group_samples(members: Iterable[TarMember], archive: str) -> Iterator[WebDatasetSample]:
    """The samples of a tar whose files are `members`, in its order.

    Raises DataError where a sample has a field twice, or its files do not stand together: WebDataset's own readers would make
    several samples of it. Truncated goes through after the last whole sample, and counts samples: the last one is whole where it has
    the fields of the first.
    """
    seen: set[bytes] = set()
    usual: set[bytes] = set()  # the first sample's fields
    key, fields = b"", {}
    try:
        for member in members:
            folder, slash, base = member.name.rpartition(b"/")
            stem, _, field = base.partition(b".")
            if not stem or not field or (stem.startswith(b"__") and base.endswith(b"__")):
                continue
            name = folder + slash + stem
            if name != key:
                if fields:
                    usual = usual or set(fields)
                    yield WebDatasetSample(key, fields)
                if name in seen:
                    raise DataError(
                        f"{archive}: the files of sample {format_member(name)} do not stand together. Pack it "
                        "again with sorted names:  tar --sort=name"
                    )
                seen.add(name)
                key, fields = name, {}
            field = field.lower()
            if field in fields:
                raise DataError(f"{archive}: sample {format_member(key)} has two files .{format_member(field)}.")
            fields[field] = member
    except Truncated as cut:
        # The last sample may have lost a file.
        if fields and usual <= set(fields):
            yield WebDatasetSample(key, fields)
        else:
            seen.discard(key)
        raise Truncated(archive, len(seen), cut.offset, cut.inside) from None
    if fields:
        yield WebDatasetSample(key, fields)


def read_label(field: str, data: bytes, where: str) -> int | str | dict[str, Any]:
    """The label in the bytes of a field: a class number, a class name, or objects. Raises DataError, beginning with `where`.

    cls   a whole number
    txt   a whole number or a name
    json  a whole number or a name, or an object with one of them under label, cls, class, class_id or category_id; or an object
          with a list under annotations, which is given back as it is
    """
    try:
        value = json.loads(data) if field == "json" else data.decode().strip()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: its .{field} cannot be read ({abbreviate(str(error))}).") from None
    if isinstance(value, dict):
        if isinstance(value.get(OBJECTS), list):
            return value
        name = next((name for name in _JSON_NAMES if name in value), None)
        if name is None:
            raise DataError(f"{where}: its .json has none of {', '.join(_JSON_NAMES)}, nor a list of {OBJECTS}.")
        value = value[name]
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            return int(value)
        if field != "cls" and value.strip():
            return value.strip()
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return value
    raise DataError(f"{where}: its .{field} holds {abbreviate(value)}, which is no class's number or name.")

"""A container thrown together for this test, deflated members of one zip: the batches are those of the folder, bit for bit."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from instance_sets import make_instances
from messages import raises
from set_batches import batches
from tiny_runs import make_photos

from paceline._utils.errors import DataError
from paceline.data.index.index import describe_arrays, open_split, pack_names, write_index
from paceline.data.index.manifest import Manifest
from paceline.data.index.records import RECORDS, DeflatedRecords, RecordLocations, RecordReader
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS

CASES = [workload.start for workload in WORKLOADS.values()]


class ZipRecords(RecordReader):
    def __init__(self, places: RecordLocations) -> None:
        super().__init__(places)
        self.archive = zipfile.ZipFile(os.fsdecode(places.file_path(0)))

    def name(self, i: int) -> str:
        return f"{self.path(i)}: {self.places.offsets[i]}"

    def read(self, i: int) -> bytes:
        try:
            data = self.archive.read(str(self.places.offsets[i]))
        except (zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.name(i)}: {error}. {self.places.remedy}") from None
        return self.checked(i, data, len(data))


def pack(prepared: Manifest, folder: Path) -> None:
    folder.mkdir()
    arrays, splits = {}, {}
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for split in prepared.splits:
            index, first = open_split(prepared, split), len(archive.namelist())
            for i in range(len(index)):
                archive.writestr(str(first + i), index.read(i))
            places = {"files": np.zeros(len(index), np.int32), "offsets": first + np.arange(len(index))}
            own = {"lengths": index.lengths, "labels": index.labels, "heights": index.heights, "widths": index.widths}
            arrays[split] = {**places, **own, **index.extra, **pack_names([b"all.zip"])}
    for name, split in prepared.splits.items():
        arrays[name]["file_sizes"] = np.array([(folder / "all.zip").stat().st_size])
        counts = split.boxes and replace(split.boxes, files=())
        splits[name] = replace(split, records="zip", arrays=describe_arrays(arrays[name]), boxes=counts)
    replace(prepared, root=".", folder=folder, index=write_index(folder, arrays), splits=splits).save()


@pytest.mark.parametrize("name", CASES)
def test_a_zip_gives_the_batches_of_the_folder_and_names_what_is_broken(name, tmp_path, monkeypatch):
    monkeypatch.setitem(RECORDS, "zip", ZipRecords)
    photos, kind = (make_photos, "class-folder") if "classify" in name else (make_instances, "boxes")
    folder, zipped = (prepare_if_needed(photos(tmp_path / "set", train=12, val=6), kind=kind), tmp_path / "zipped")
    pack(Manifest.load(folder), zipped)
    assert prepare_if_needed(zipped, kind=kind) == zipped
    expected, *others = batches(name, folder), batches(name, zipped), batches(name, zipped, 3)
    assert all(len(found) == len(expected) and all(map(torch.equal, found, expected)) for found in others)
    content = bytearray((zipped / "all.zip").read_bytes())
    content[60:900] = bytes(840)
    (zipped / "all.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"all\.zip: 0: "):
        batches(name, zipped, 2)
    (zipped / "all.zip").unlink()
    with raises(DataError, "all.zip", "No such file or directory", "containers"):
        prepare_if_needed(zipped, kind=kind)


def test_a_deflated_record_whose_file_was_cut_is_named_with_its_length(tmp_path):
    content = bytes(range(256)) * 4
    packer = zlib.compressobj(wbits=-15)
    stored = packer.compress(content) + packer.flush()
    file = tmp_path / "a.zip"
    file.write_bytes(b"head" + stored)
    records = DeflatedRecords(
        RecordLocations(
            root=tmp_path,
            files=np.zeros(1, np.int32),
            offsets=np.array([4]),
            lengths=np.array([len(content)]),
            name_bytes=np.frombuffer(b"a.zip", np.uint8),
            name_starts=np.array([0, 5]),
            file_sizes=np.array([4 + len(stored)]),
            remedy="Prepare it again.",
            stored_lengths=np.array([len(stored)]),
        )
    )
    assert records.read(0) == content
    os.truncate(file, 4 + len(stored) - 1)
    with raises(DataError, "a.zip", "from byte 4", "1,024"):
        records.read(0)

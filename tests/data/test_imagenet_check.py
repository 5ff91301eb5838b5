"""ImageNet-1k by names and counts: each way of laying it out wrong has its own clear error."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest
from devkit_files import write_devkit
from messages import check_text, raises

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.data.formats import published_sets
from paceline.data.formats.class_folders import ClassFolderListing, SplitListing
from paceline.data.formats.published_sets import ImagenetCounts, check_imagenet, official_wnids
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder

ROOT = Path("/data/imagenet")
WNIDS = official_wnids()


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    """The real 1000 classes, with 2 or 3 training and 2 validation photos in each."""
    monkeypatch.setattr(
        published_sets, "IMAGENET", {"train": ImagenetCounts(2500, 2, 3), "val": ImagenetCounts(2000, 2, 2)}
    )
    monkeypatch.setattr(published_sets, "VAL_IMAGES", 2000)
    labels = "".join(f"{wnid}\n" for wnid in WNIDS for _ in range(2))
    monkeypatch.setattr(published_sets, "VAL_LABELS_SHA256", hashlib.sha256(labels.encode()).hexdigest())


def listing() -> ClassFolderListing:
    train = [[b"%b_%d.JPEG" % (wnid.encode(), i) for i in range(2 + k % 2)] for k, wnid in enumerate(WNIDS)]
    val = [[b"ILSVRC2012_val_%08d.JPEG" % (2 * k + i + 1) for i in range(2)] for k in range(1000)]
    splits = {
        name: SplitListing(ROOT / name, list(WNIDS), names, [0] * 1000, 0)
        for name, names in (("train", train), ("val", val))
    }
    return ClassFolderListing(ROOT, splits)


def missing_class(found: ClassFolderListing) -> None:
    for name in ("classes", "names"):
        del getattr(found.splits["val"], name)[7]


def missing_in_both(found: ClassFolderListing) -> None:
    for split in found.splits.values():
        del split.classes[3:5], split.names[3:5]


def extra_class(found: ClassFolderListing) -> None:
    found.splits["train"].classes.append("n99999999")
    found.splits["train"].names.append([b"n99999999_1.JPEG"])


def doubled(found: ClassFolderListing) -> None:
    names = found.splits["train"].names
    names[:] = [[*group, *(b"copy of " + name for name in group)] for group in names]


def one_class_doubled(found: ClassFolderListing) -> None:
    found.splits["val"].names[2] *= 2


def incomplete_class(found: ClassFolderListing) -> None:
    del found.splits["train"].names[5][1:]


def wrong_total(found: ClassFolderListing) -> None:
    del found.splits["train"].names[1][2:]


def numbered_classes(found: ClassFolderListing) -> None:
    for split in found.splits.values():
        split.classes[:] = sorted(str(k) for k in range(1000))


def shuffled_train(found: ClassFolderListing) -> None:
    names = found.splits["train"].names
    names[0], names[2] = names[2], names[0]


def shuffled_val(found: ClassFolderListing) -> None:
    names = found.splits["val"].names
    names[0], names[2] = names[2], names[0]


FLAWS = [
    (missing_class, f"val: 1 of ImageNet's 1000 classes are missing: {WNIDS[7]}\\. Copy them again"),
    (missing_in_both, f"train: 2 of ImageNet's 1000 classes are missing: {WNIDS[3]}, {WNIDS[4]}\\."),
    (extra_class, "train: 1 folders are not classes of ImageNet-1k: n99999999"),
    (
        doubled,
        r"train: 5,000 images, but ImageNet has 2,500, and more than 3 in n01440764 \(4\), .* and 995 more\. .*twice",
    ),
    (one_class_doubled, rf"val: 2,002 images, but ImageNet has 2,000, and more than 2 in {WNIDS[2]} \(4\)\."),
    (incomplete_class, rf"train: 2,498 images, .*, and fewer than 2 in {WNIDS[5]} \(1\)\. The copy is incomplete"),
    (wrong_total, r"train: 2,499 images, but ImageNet has 2,500, although no class is out of bounds\. Files are missing"),
    (
        numbered_classes,
        r"train: its 1,000 class folders are not named by WordNet id \(0, 1, 10 and 997 more\)\. .*would not match",
    ),
    (shuffled_train, r"n01440764/n01484850_0\.JPEG: an image of n01484850 is in n01440764, so the labels are shuffled"),
    (shuffled_val, "val: the validation images are not in their official class folders"),
]


def test_the_right_listing_passes_and_so_does_one_with_renamed_val_photos():
    found = listing()
    check_imagenet(found)
    found.splits["val"].names[0] = [b"a.JPEG", b"b.JPEG"]
    check_imagenet(found)


@pytest.mark.parametrize(("spoil", "message"), FLAWS, ids=[spoil.__name__ for spoil, _ in FLAWS])
def test_each_flaw_has_its_own_error(spoil, message):
    found = listing()
    spoil(found)
    with pytest.raises(DataError, match=message):
        check_imagenet(found)


def test_the_class_list_is_the_official_one():
    assert len(WNIDS) == 1000 and sorted(WNIDS) == WNIDS and (WNIDS[0], WNIDS[999]) == ("n01440764", "n15075141")
    digest = hashlib.sha256("\n".join(WNIDS).encode()).hexdigest()
    assert digest == "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"


def test_a_small_set_is_not_taken_for_imagenet(tmp_path):
    for split in ("train", "val"):
        for label in ("n01440764", "n02102040"):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "0.JPEG").write_bytes(b"?")
    with raises(DataError, "998", "1000 classes"):
        prepare_folder(tmp_path, expect="imagenet")


def test_a_large_imagenet_is_refused_with_its_own_command(tmp_path):
    for split in ("train", "val"):
        for label in WNIDS:
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "0.JPEG").write_bytes(b"?")
    with raises(DataError, "2,000 images", "not prepared", "paceline prepare imagenet --data"):
        prepare_if_needed(tmp_path, small=1999, reporter=Lines(pytest.fail))


def test_a_flat_val_is_explained_and_the_command_in_the_error_sorts_it(tmp_path, monkeypatch, capsys):
    root = tmp_path / "with space"
    (root / "train" / "n01440764").mkdir(parents=True)
    (root / "val").mkdir()
    labels = ["n01751748", "n09193705"]
    monkeypatch.setattr(
        published_sets, "VAL_LABELS_SHA256", write_devkit(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", labels)
    )
    for number in (1, 2):
        (root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(b"?")
    with raises(DataError, "val", "2 validation images") as error:
        prepare_folder(root, expect="imagenet")
    command = shlex.split(str(error.value).splitlines()[-1])
    monkeypatch.chdir(tmp_path)
    assert main(command[1:]) == 2  # the photos are none, and too few; but they are sorted first
    check_text(capsys.readouterr().out, "2 images", "class folders")
    for number, wnid in enumerate(labels, 1):
        assert (root / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG").is_file()

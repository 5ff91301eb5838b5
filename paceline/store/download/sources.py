"""The data sets that `paceline download` knows: one row a file, with its official addresses, bytes and digest.

COCO publishes no digests. Those below are what TensorFlow Datasets recorded from the official address
(tensorflow_datasets/url_checksums/coco.txt) and what torchvision checks (prototype/datasets/_builtin/coco.py): the two agree.
The zips' own CRCs are checked when they are unpacked, and `prepare` counts and decodes every photo.
"""

from __future__ import annotations

from dataclasses import dataclass

COCO = (
    "http://images.cocodataset.org",
    "https://s3.amazonaws.com/images.cocodataset.org",
)  # one bucket; by TLS the second
VOC = ("https://thor.robots.ox.ac.uk/pascal/VOC", "http://host.robots.ox.ac.uk/pascal/VOC")


@dataclass(frozen=True)
class Archive:
    """One file to bring."""

    path: str  # under the publisher's address; a mirror may have it there or by its name alone
    size: int | None  # bytes; None where no publisher says
    sha256: str = ""
    md5: str = ""
    bases: tuple[str, ...] = ()  # addresses; none where an account is needed
    gives: tuple[tuple[str, int], ...] = ()  # what it unpacks to: a folder and its files, or a file and 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def urls(self) -> list[str]:
        """The official addresses."""
        return [f"{base}/{self.path}" for base in self.bases]


@dataclass(frozen=True)
class DataSet:
    """One row of the menu."""

    about: str  # one line
    archives: tuple[Archive, ...]
    prepare: tuple[str, ...] = ()  # words of `paceline prepare` before and after the folder
    inside: str = ""  # where in the folder the data set lies once it is unpacked
    recipe: str = ""  # one that trains on it
    account: str = ""  # where the files are given out, where that takes an account


# Bytes and digests: tensorflow_datasets/url_checksums/coco.txt; torchvision prototype/datasets/_builtin/coco.py.
# Counts: 118,287 and 5,000 photos, of which 117,266 have objects (torchvision, as above).
COCO_2017 = (
    Archive(
        "annotations/annotations_trainval2017.zip",
        252_907_541,
        "113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268",
        bases=COCO,
        gives=(("annotations/instances_train2017.json", 0), ("annotations/instances_val2017.json", 0)),
    ),
    Archive(
        "zips/val2017.zip",
        815_585_330,
        "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05",
        bases=COCO,
        gives=(("val2017", 5_000),),
    ),
    Archive(
        "zips/train2017.zip",
        19_336_861_798,
        "69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929",
        bases=COCO,
        gives=(("train2017", 118_287),),
    ),
)

# Bytes: tensorflow_datasets/url_checksums/imagenet2012.txt. MD5: torchvision/datasets/imagenet.py (ARCHIVE_META).
# The devkit's bytes are said nowhere that we could cite.
IMAGENET = (
    Archive("ILSVRC2012_img_train.tar", 147_897_477_120, md5="1d675b47d978889d74fa0da5fadfb00e"),
    Archive("ILSVRC2012_img_val.tar", 6_744_924_160, md5="29b22e2961454d5413ddabcf34fc5622"),
    Archive("ILSVRC2012_devkit_t12.tar.gz", None, md5="fa75699e90414af021442c21a62c3abf"),
)

# Bytes and SHA-256: tensorflow_datasets/url_checksums/voc.txt. Addresses and MD5: torchvision/datasets/voc.py.
VOC_2007 = (
    Archive(
        "voc2007/VOCtrainval_06-Nov-2007.tar",
        460_032_000,
        "7d8cd951101b0957ddfd7a530bdc8a94f06121cfc1e511bb5937e973020c7508",
        "c52e279531787c972589f7e41ab4ae64",
        bases=VOC,
        gives=(("VOCdevkit/VOC2007/ImageSets/Main/trainval.txt", 0),),
    ),
    Archive(
        "voc2007/VOCtest_06-Nov-2007.tar",
        451_020_800,
        "6836888e2e01dca84577a849d339fa4f73e1e4f135d312430c4856b5609b4892",
        "b6e924de25625d8de591ea690078ad9f",
        bases=VOC,
        gives=(("VOCdevkit/VOC2007/ImageSets/Main/test.txt", 0),),
    ),
)
VOC_2012 = (
    Archive(
        "voc2012/VOCtrainval_11-May-2012.tar",
        1_999_639_040,
        "e14f763270cf193d0b5f74b169f44157a4b0c6efa708f4dd0ff78ee691763bcb",
        "6cd6e144f989b92b3379bac3b3de84fd",
        bases=VOC,
        gives=(("VOCdevkit/VOC2012/ImageSets/Main/trainval.txt", 0),),
    ),
)

DATA_SETS = {
    "coco2017": DataSet(
        "boxes and masks of 80 classes: 118,287 photos (117,266 with objects) and 5,000; annotations CC BY 4.0",
        COCO_2017,
        prepare=("coco", "--expect", "coco2017"),
        recipe="ssd",
    ),
    "imagenet": DataSet(
        "1000 classes: 1,281,167 photos and 50,000; needs an account, so it says which files and checks them",
        IMAGENET,
        recipe="resnet50",
        account="https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
    ),
    "voc2007": DataSet(
        "boxes of 20 classes: Pascal VOC 2007, trainval and test", VOC_2007, ("voc",), "VOCdevkit/VOC2007", "ssd-custom"
    ),
    "voc2012": DataSet(
        "boxes of 20 classes: Pascal VOC 2012, trainval", VOC_2012, ("voc",), "VOCdevkit/VOC2012", "ssd-custom"
    ),
}

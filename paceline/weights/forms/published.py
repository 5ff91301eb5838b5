"""Weights that their makers publish, by the names of `paceline weights get`. torchvision's carry the beginning of their SHA-256 in the
file's name; TensorFlow's backbone has MD5s in Habana's README (branch 0.14.0), GluonCV's files SHA-1s in its model_store.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TORCHVISION = "https://download.pytorch.org/models/"
DETECTRON2 = "https://dl.fbaipublicfiles.com/detectron2/ImageNetPretrained/"
GLUONCV = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/models/"
INTEL = "https://storage.googleapis.com/intel-optimized-tensorflow/models/ssd-backbone/"


@dataclass(frozen=True)
class File:
    """One file: where it is, and what its content must be."""

    url: str
    sha256_prefix: str | None = None
    md5: str | None = None
    sha1: str | None = None
    member: str = ""  # what is kept of a zip

    @property
    def name(self) -> str:
        """As it is kept; the address's last part."""
        return self.member or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Published:
    """One set of weights."""

    about: str
    files: tuple[File, ...]
    train: str = ""  # flags that go with it
    rules: Mapping[str, Any] = field(default_factory=dict)  # how its maker evaluates it, by dotted fields of a recipe


# torchvision's newer recipe is evaluated on a larger crop of the photo; its Mask R-CNN without an epsilon.
NEWER, NO_EPSILON = {"input.eval_resize": 232}, {"model.bn_eps": 0.0}


def _torchvision(name: str, about: str, train: str = "", rules: Mapping[str, Any] | None = None) -> Published:
    file = File(TORCHVISION + name, sha256_prefix=name.rpartition("-")[2].partition(".")[0])
    return Published(about, (file,), train, rules or {})


PUBLISHED = {
    "resnet18": _torchvision("resnet18-f37072fd.pth", "torchvision, ImageNet", "resnet50 --model.depth 18"),
    "resnet34": _torchvision("resnet34-b627a593.pth", "torchvision, ImageNet", "ssd-custom"),
    "resnet34-mlperf": _torchvision("resnet34-333f7ec4.pth", "torchvision's of 2017, which MLPerf's SSDs start from", "ssd"),
    "resnet50": _torchvision("resnet50-11ad3fa6.pth", "torchvision, ImageNet, its newer recipe", "resnet50", NEWER),
    "resnet50-v1": _torchvision("resnet50-0676ba61.pth", "torchvision, ImageNet, its first recipe", "maskrcnn"),
    "resnet101": _torchvision(
        "resnet101-cd907fc2.pth", "torchvision, ImageNet, its newer recipe", "resnet50 --model.depth 101", NEWER
    ),
    "resnet101-v1": _torchvision("resnet101-63fe2227.pth", "torchvision, ImageNet, its first recipe", "maskrcnn --model.depth 101"),
    "resnet152": _torchvision(
        "resnet152-f82ba261.pth", "torchvision, ImageNet, its newer recipe", "resnet50 --model.depth 152", NEWER
    ),
    "resnet152-v1": _torchvision("resnet152-394f9c45.pth", "torchvision, ImageNet, its first recipe", "resnet50 --model.depth 152"),
    "resnext50-32x4d": _torchvision(
        "resnext50_32x4d-1a0047aa.pth", "torchvision, ImageNet", "resnet50 --model.groups 32 --model.group-width 4", NEWER
    ),
    "maskrcnn": _torchvision(
        "maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", "torchvision, COCO with masks", "maskrcnn-custom --model.bn-eps 0", NO_EPSILON
    ),
    "resnet50-msra": Published(
        "Caffe2's (MSRA), which detectron2 and the MLPerf reference start from; it has no published checksum",
        (File(DETECTRON2 + "MSRA/R-50.pkl"),),
        "maskrcnn --model.stride-in 1x1",
    ),
    "resnet50-v1b": Published(
        "GluonCV's, ImageNet, which its Mask R-CNNs start from",
        (
            File(
                GLUONCV + "resnet50_v1b-0ecdba34.zip",
                sha1="0ecdba34691be172036ddf244ff1b2eade75ffde",
                member="resnet50_v1b-0ecdba34.params",
            ),
        ),
        "maskrcnn-gluoncv",
    ),
    "ssd-resnet34-tensorflow": Published(
        "the backbone of Habana's SSD, a TensorFlow checkpoint",
        (
            File(INTEL + "model.ckpt-28152.data-00000-of-00001", md5="1b7fabd0872b765da2fc60af46fe6390"),
            File(INTEL + "model.ckpt-28152.index", md5="96080eb2d106f7bd4a682bde003b1436"),
        ),
        "ssd-gaudi",
    ),
}  # fmt: skip

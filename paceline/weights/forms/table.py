"""The forms of weights that are known: a row each. Another form is a row here and a file beside this one.

A row says how a form is told from the names of the tensors, how it becomes ours, and how it is written where its side still has users.
Rows are tried in order; the last one takes everything. How bytes become tensors is another table, weights/forms/files.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from paceline.weights.forms.detectron2 import from_detectron2, is_detectron2, to_detectron2
from paceline.weights.forms.gluoncv import from_gluoncv, is_gluoncv
from paceline.weights.forms.mlperf_maskrcnn import from_maskrcnn_benchmark, is_maskrcnn_benchmark
from paceline.weights.forms.mlperf_ssd import is_reference, read_reference, write_reference
from paceline.weights.forms.mxnet import from_mxnet, is_mxnet
from paceline.weights.forms.ours import Facts, Ours, Tensors
from paceline.weights.forms.tensorflow import from_tensorflow, is_tensorflow
from paceline.weights.forms.torchvision import from_torchvision, is_ours, write_ours, write_timm, write_torchvision

# Ours -> the tensors under their names, what stands beside them in the file, and what its user must know.
Writer = Callable[[Ours], tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]]


@dataclass(frozen=True)
class Form:
    """One form. Reading and writing raise FormError where the network is one that the other side does not have."""

    name: str  # as --to has it
    about: str
    told: Callable[[Tensors, Facts], bool]  # by the tensors' names
    read: Callable[[Tensors, Facts], Ours]
    write: Writer | None = None  # None: nobody reads it any more
    suffixes: tuple[str, ...] = (".safetensors", ".pth")  # of files that may be written, the usual one first


def never(_: Tensors, __: Facts) -> bool:
    """Of forms that have another row's names: they are only written."""
    return False


FORMS = (
    Form("reference", "the MLPerf reference SSD", is_reference, read_reference, write_reference, (".pth", ".safetensors")),
    Form("maskrcnn-benchmark", "the MLPerf reference Mask R-CNN", is_maskrcnn_benchmark, from_maskrcnn_benchmark),
    Form("detectron2", "detectron2, or Caffe2 (MSRA)", is_detectron2, from_detectron2, to_detectron2, (".pth", ".pkl")),
    Form("gluoncv", "GluonCV", is_gluoncv, from_gluoncv),
    Form("mxnet", "the MXNet systems of MLPerf", is_mxnet, from_mxnet),
    Form("tensorflow", "TensorFlow (Habana's SSD and its backbone)", is_tensorflow, from_tensorflow),
    Form("torchvision", "torchvision", never, from_torchvision, write_torchvision, (".pth", ".safetensors")),
    Form("timm", "timm's ResNets", never, from_torchvision, write_timm),
    Form("ours", "paceline, torchvision or timm, whose names are the same", is_ours, from_torchvision, write_ours),
)  # fmt: skip


def form_of(tensors: Tensors, facts: Facts) -> Form:
    """The first row whose names these are."""
    return next(form for form in FORMS if form.told(tensors, facts))

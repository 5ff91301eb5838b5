"""TensorFlow's checkpoints, read without TensorFlow, and its ResNets and Habana's SSD under our names.

Letters: n boxes of a cell   C classes with background
Files (PREFIX.index beside PREFIX.data-00000-of-0000N): the index is a sorted table as LevelDB has it: blocks of keys that share their
beginnings, and a footer that points to the block of blocks. Each value is a small protocol buffer: type, shape, shard, offset, size,
checksum of one variable; the data files are the variables' bytes. Nothing in either can be executed; every offset and size is compared
with the file before it is used.
Names are counted in the order in which the graph was built; a unit's shortcut is built before its own convolutions. Convolutions are
HWIO there and OIHW here. Box deltas are y, x, h, w there. The ResNet's strided convolutions pad on both sides, as ours; the max-pool
and the extra layers of the SSD pad even sides at their end alone (SAME), which --model.padding same does too.
Source: tensorflow/core/util/tensor_bundle, tensorflow/core/lib/io/format.cc, core/protobuf/tensor_bundle.proto;
HabanaAI/Model-References 1.5.0, SSD_ResNet34/architecture.py; its backbone model.ckpt-28152 is a classifier of that kind.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from paceline._utils.errors import CheckpointError
from paceline._utils.names import list_matching
from paceline._utils.safe_read import read_plain
from paceline._utils.text import abbreviate
from paceline.data.containers.tfrecord import BYTES, VARINT, masked_crc32c, read_fields, read_varint
from paceline.models.weights.classes import COCO_80, imagenet_wnids
from paceline.models.weights.formats.paceline_format import Facts, PacelineWeights, Tensors, WeightFormatError

MAGIC = 0xDB4775248B80FB57
FOOTER, TRAILER = 48, 5
INDEX = ".index"
# An index names variables: this is a hundred thousand of them.
MAX_INDEX = 2**24
MAX_VARIABLES = 10**5
MAX_SIDES = 32
# TensorFlow's numbers of types that weights come in; text (7) is what newer checkpoints keep beside variables.
TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 19: "<f2"}
TEXT = 7


def find_index(path: Path) -> Path | None:
    """The index of the checkpoint that `path` means: itself, one of its data files, their common prefix, or a folder with one."""
    if path.is_dir():
        results = find_indexes(path)
        return results[0] if len(results) == 1 else None
    prefix = path.with_name(path.name.rpartition(".data-")[0] or path.name.removesuffix(INDEX).removesuffix(".meta"))
    index = prefix.with_name(prefix.name + INDEX)
    return index if index.is_file() else None


def find_indexes(folder: Path) -> list[Path]:
    """The indexes in a folder; none in what is no folder."""
    return list_matching(folder, f"*{INDEX}")


def read_tf_checkpoint(index: Path, most: int) -> dict[str, np.ndarray]:
    """Variable's name -> array, as TensorFlow laid it out; texts are left out.

    most   bytes of a data file at most
    Raises CheckpointError where a file is missing, torn, damaged (checksum), or not a checkpoint.
    """
    try:
        entries = {}
        for name, value in _table(_read(index, MAX_INDEX)):
            entries[name] = _fields(value)
            if len(entries) > MAX_VARIABLES:
                raise ValueError(f"it has more than {MAX_VARIABLES:,} variables")
        # Before they are read: many names may stand for the same bytes.
        if sum(_number(entry, 5) for entry in entries.values()) > most:
            raise ValueError(f"its variables have more than {most:,} bytes")
        header = entries.pop(b"", None)
        if header is None:
            raise ValueError("it has no header")
        shards = _number(header, 1)
        if not 1 <= shards <= 1000 or _number(header, 2) != 0:
            raise ValueError("its header has another byte order, or an invalid number of shards")
        prefix = index.name.removesuffix(INDEX)
        files: dict[int, memoryview] = {}
        arrays = {}
        for raw, entry in entries.items():
            if _number(entry, 1) == TEXT:
                continue
            shard = _number(entry, 3)
            if shard >= shards:
                raise ValueError(f"shard {shard} of {shards} is not valid")
            if shard not in files:
                file = index.with_name(f"{prefix}.data-{shard:05d}-of-{shards:05d}")
                files[shard] = memoryview(_read(file, most))
            name = raw.decode()
            arrays[name] = _array(name, entry, files[shard])
    except (ValueError, IndexError, struct.error, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not a readable TensorFlow checkpoint: {abbreviate(str(error), 200)}") from None
    return arrays


def _read(path: Path, most: int) -> bytes:
    try:
        return read_plain(path, most)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read as part of a TensorFlow checkpoint ({error.strerror}). The .index file and all .data "
            "files are required."
        ) from None


def _array(name: str, entry: Mapping[int, list], data: memoryview) -> np.ndarray:
    kind, offset, size = (_number(entry, location) for location in (1, 4, 5))
    if kind not in TYPES:
        raise ValueError(f"{name} has the unsupported type {kind}")
    if 7 in entry:
        raise ValueError(f"{name} is split into slices. Save it as one variable")
    shape = [_number(_fields(side), 1) for side in _fields(entry.get(2, [b""])[0]).get(2, [])]
    dtype = np.dtype(TYPES[kind])
    if len(shape) > MAX_SIDES or math.prod(shape) * dtype.itemsize != size or offset + size > len(data):
        raise ValueError(f"{name} of shape {tuple(shape)} has {size:,} bytes at {offset:,} of {len(data):,}")
    content = data[offset : offset + size]
    if 6 in entry and masked_crc32c(bytes(content)) != entry[6][0]:
        raise ValueError(f"checksum mismatch of {name}, which is damaged")
    return np.frombuffer(content, dtype).reshape(shape)


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a sorted table, in order."""
    if len(data) < FOOTER or struct.unpack_from("<Q", data, len(data) - 8)[0] != MAGIC:
        raise ValueError("it does not end like an index")
    index = len(data) - FOOTER
    for _ in range(2):  # of the block that describes the table, which is not needed
        _, index = read_varint(data, index, len(data))
    handle = data[index : len(data) - 8]
    seen = set()
    for _, value in _block(data, handle):
        if value in seen:
            raise ValueError("it lists a block twice")
        seen.add(value)
        yield from _block(data, value)


def _block(data: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, index = read_varint(handle, 0, len(handle))
    size, _ = read_varint(handle, index, len(handle))
    if offset + size + TRAILER > len(data):
        raise ValueError("a block is outside of the file")
    block = data[offset : offset + size]
    if data[offset + size]:
        raise ValueError("it is compressed, which TensorFlow never writes")
    if masked_crc32c(data[offset : offset + size + 1]) != struct.unpack_from("<I", data, offset + size + 1)[0]:
        raise ValueError("checksum mismatch of a block, which is damaged")
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    end = size - 4 - 4 * restarts
    index, key = 0, b""
    while index < end:
        shared, index = read_varint(block, index, len(block))
        own, index = read_varint(block, index, len(block))
        length, index = read_varint(block, index, len(block))
        if shared > len(key) or index + own + length > end:
            raise ValueError("a key is outside of its block")
        key = key[:shared] + block[index : index + own]
        index += own
        yield key, block[index : index + length]
        index += length


def _fields(message: bytes) -> dict[int, list]:
    """A protocol buffer's fields by number: numbers, or bytes."""
    result: dict[int, list] = {}
    for number, wire, start, end in read_fields(message, 0, len(message), "an entry"):
        value = message[start:end]
        if wire == VARINT:
            value = read_varint(message, start, end)[0]
        elif wire != BYTES:
            value = int.from_bytes(value, "little")
        result.setdefault(number, []).append(value)
    return result


def _number(entry: Mapping[int, list], index: int) -> int:
    value = entry.get(index, [0])[0]
    if not isinstance(value, int) or value >= 2**63:
        raise ValueError(f"field {index} is not a valid number")
    return value


PARTS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# Convolutions of the stages' units of ResNet-34, and which stages begin with a shortcut of their own.
UNITS, PER_UNIT, FIRST_SHORTCUT = (3, 4, 6, 3), 2, 2
SCOPE = re.compile(r"(?:resnet\d+/)?(?P<layer>conv2d|batch_normalization|dense)(?:_(?P<count>\d+))?/(?P<part>\w+)")
EXTRA = re.compile(r"(?:ssd/)?block(?P<block>\d+)-conv(?P<size>1x1|3x3)/(?P<part>kernel|bias)")
HEAD = re.compile(r"(?:ssd/)?(?:(?:class|box)_net/)?(?P<kind>class|box)-(?P<level>[3-8])/(?P<part>kernel|bias)")
FIRST_EXTRA, FIRST_LEVEL = 7, 3
# What training keeps beside the weights.
NO_WEIGHTS = re.compile(
    r"global_step|.*/(?:Momentum|ExponentialMovingAverage|Adam|Adam_1|RMSProp|RMSProp_1)|beta[12]_power|.*OBJECT_GRAPH.*"
)
# y, x, h, w -> x, y, w, h
ORDER = (1, 0, 3, 2)


def is_tensorflow(names: Tensors, _: Facts) -> bool:
    return any(re.fullmatch(r"(?:resnet\d+/)?conv2d/kernel", name) for name in names)


def from_tensorflow(saved: Tensors, _: Facts) -> PacelineWeights:
    """Under our names: of the trunk alone, with its classes, or of the whole SSD. Raises WeightFormatError for other networks."""
    kernels = sum(1 for name in saved if (result := SCOPE.fullmatch(name)) and result["layer"] == "conv2d")
    if kernels not in (_before(3), _before(4)):
        raise WeightFormatError(f"a ResNet with {kernels} convolutions. Only ResNet-34 with 3 or 4 stages is supported")
    whole = any(HEAD.fullmatch(name) for name in saved)
    backbone = "trunk." if whole else ""
    state, left_out = {}, []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
        elif (result := SCOPE.fullmatch(name)) and result["part"] in PARTS:
            ours = _layer(result["layer"], int(result["count"] or 0))
            state[f"{'' if result['layer'] == 'dense' else backbone}{ours}.{PARTS[result['part']]}"] = _laid_out(tensor)
        elif result := EXTRA.fullmatch(name):
            layer = "reduce" if result["size"] == "1x1" else "conv"
            state[f"extras.{int(result['block']) - FIRST_EXTRA}.{layer}.{PARTS[result['part']]}"] = _laid_out(tensor)
        elif result := HEAD.fullmatch(name):
            kind, tensor = ("loc", _boxes(_laid_out(tensor))) if result["kind"] == "box" else ("conf", _laid_out(tensor))
            state[f"heads.{int(result['level']) - FIRST_LEVEL}.{kind}.{PARTS[result['part']]}"] = tensor
        else:
            state[name] = tensor
    classes: tuple[str, ...] = COCO_80 if whole else ()
    if "fc.bias" in state:
        classes = imagenet_wnids() if len(state["fc.bias"]) in (1000, 1001) else ()
        if len(state["fc.bias"]) == 1001:  # a background that no photo has
            state["fc.weight"], state["fc.bias"] = state["fc.weight"][1:], state["fc.bias"][1:]
    return PacelineWeights(state, tuple(state), {"padding": "same"}, classes, left_out=tuple(left_out))


def _before(stage: int) -> int:
    """Convolutions of the stem and of the stages before `stage`, counted from 0."""
    return 1 + sum(PER_UNIT * units + (number + 1 >= FIRST_SHORTCUT) for number, units in enumerate(UNITS[:stage]))


def _layer(kind: str, count: int) -> str:
    """Our name of the `count`-th convolution or norm."""
    if kind == "dense":
        return "fc"
    if count == 0:
        return "conv1" if kind == "conv2d" else "bn1"
    stage = next((number for number in range(4) if count < _before(number + 1)), None)
    if stage is None:
        raise WeightFormatError(f"{kind}_{count} of TensorFlow is not part of a ResNet-34")
    index, shortcut = count - _before(stage), stage + 1 >= FIRST_SHORTCUT
    if shortcut and index == 0:
        return f"layer{stage + 1}.0.downsample.{0 if kind == 'conv2d' else 1}"
    unit, layer = divmod(index - shortcut, PER_UNIT)
    return f"layer{stage + 1}.{unit}.{'conv' if kind == 'conv2d' else 'bn'}{layer + 1}"


def _laid_out(tensor: Tensor) -> Tensor:
    """HWIO -> OIHW, and a matrix's inputs and outputs exchanged."""
    if tensor.dim() == 4:
        return tensor.permute(3, 2, 0, 1).contiguous()
    return tensor.t().contiguous() if tensor.dim() == 2 else tensor


def _boxes(tensor: Tensor) -> Tensor:
    """(4 n, ...) of y, x, h, w -> of x, y, w, h."""
    if tensor.shape[0] % 4:
        raise WeightFormatError(f"a box convolution has {tensor.shape[0]} channels, which is not a multiple of 4")
    return tensor.unflatten(0, (-1, 4))[:, list(ORDER)].flatten(0, 1)

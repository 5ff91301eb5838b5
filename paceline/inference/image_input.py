"""The kinds of objects that are taken as a photo, and a photo's pixels as the network saw them.

A photo is a path, the bytes of an image file, a PIL image, an (H, W, 3), (H, W, 4) or (H, W) uint8 array in RGB order, or a
torch tensor: (3, H, W) or (1, H, W), uint8 or floating point from 0 to 1. All of them take one path: as an encoded file.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from PIL import Image

from paceline._utils.errors import DataError
from paceline._utils.safe_read import read_plain
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec, decode_crop
from paceline.data.transforms.image_io import MAX_BYTES, broken_image_message, find_endless_jpeg, read_header

if TYPE_CHECKING:
    import torch

Photo: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | np.ndarray | torch.Tensor"
KINDS = (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, np.ndarray)
WANTED = (
    "Expected a path, the bytes of an image file, a PIL image, an array, or a tensor. Arrays must be uint8, (H, W), (H, W, 3), or "
    "(H, W, 4), in RGB order. Tensors must be (3, H, W), and uint8 or in [0, 1]"
)
GIVEN = "the given image"
_ORIENTATION = 0x0112


def is_photo(value: object) -> bool:
    """Whether an object is of a kind that may be one photo."""
    return isinstance(value, KINDS) or _is_tensor(value)


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    torch = sys.modules.get("torch")  # without it there are none
    return torch is not None and isinstance(value, torch.Tensor)


def encode_photo(photo: Photo) -> tuple[bytes, str]:
    """A photo's encoded bytes and its name; pixels are encoded without loss.

    Raises DataError for a file that cannot be read, and for pixels of another kind than those above.
    """
    if isinstance(photo, str | os.PathLike):
        data, name = _file(Path(photo)), str(photo)
    elif isinstance(photo, bytes | bytearray | memoryview):
        data, name = bytes(photo), GIVEN
    else:
        return _encoded_pixels(_picture(photo)), GIVEN
    if endless := find_endless_jpeg(data):
        raise broken_image_message(name, endless)
    return data, name


def get_photo_path(photo: Photo) -> str:
    """A photo's path, or "" where it was given as bytes or pixels."""
    return str(photo) if isinstance(photo, str | os.PathLike) else ""


def decode_photo(photo: Photo, settings: Any) -> np.ndarray:
    """The photo in its own size, upright or not as the network saw it: (h, w, 3) uint8 RGB.

    settings  the recipe's data treatment, which names the decoder
    Raises DataError where the photo cannot be decoded.
    """
    data, name = encode_photo(photo)
    header = read_header(data, name, settings.exif)
    size = header.height, header.width
    pixels = np.empty((*size, 3), np.uint8)
    window = CropWindow(0, 0, *size, *size)
    decode_crop(data, SampleSpec(name, header, window, None, decoder=settings.decoder), pixels)
    return pixels


def _file(path: Path) -> bytes:
    try:
        return read_plain(path, MAX_BYTES)
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}).") from None
    except ValueError as problem:  # a name with a zero byte
        raise DataError(f"{str(path)!r}: cannot be read ({problem}).") from None


def _picture(photo: Image.Image | np.ndarray | torch.Tensor) -> Image.Image:
    if isinstance(photo, Image.Image):
        return photo
    if _is_tensor(photo):
        return Image.fromarray(_tensor_pixels(photo))
    if not isinstance(photo, np.ndarray):
        raise _no_photo(type(photo).__name__)
    gray = photo.ndim == 2 or (photo.ndim == 3 and photo.shape[2] == 1)
    if photo.dtype != np.uint8 or not photo.size or not (gray or (photo.ndim == 3 and photo.shape[2] in (3, 4))):
        raise _no_photo(f"an array of {photo.dtype}, {photo.shape},", photo.ndim)
    return Image.fromarray(photo.reshape(photo.shape[:2]) if gray else photo)


def _tensor_pixels(photo: torch.Tensor) -> np.ndarray:
    """(H, W, 3) or (H, W) uint8."""
    if photo.ndim != 3 or photo.shape[0] not in (1, 3) or not photo.numel():
        raise _no_photo(f"a tensor of {photo.dtype}, {tuple(photo.shape)},", photo.ndim)
    values = photo.detach().cpu()
    if values.is_floating_point():
        least, most = values.min().item(), values.max().item()
        if not 0 <= least <= most <= 1:
            raise DataError(f"{WANTED}. Got values from {least:g} to {most:g}. Pass the tensor without normalization.")
        values = (values.double() * 255).round().byte()
    if str(values.dtype) != "torch.uint8":
        raise _no_photo(f"a tensor of {values.dtype}")
    return (values[0] if len(values) == 1 else values.permute(1, 2, 0)).contiguous().numpy()


def _no_photo(what: str, dimensions: int = 0) -> DataError:
    several = " For several images, pass a list of them." if dimensions == 4 else ""
    return DataError(f"{what} is not an image. {WANTED}.{several}")


def _encoded_pixels(image: Image.Image) -> bytes:
    """As a file that decodes to the same pixels; 16-bit pixels and a noted orientation are kept for the decoder to treat."""
    buffer = io.BytesIO()
    try:
        if image.format == "EPS" and getattr(image, "tile", None):  # opened, and not read yet
            raise _no_photo("a PIL image of PostScript, which requires another program (Ghostscript),", 0)
        image.load()  # which turns a TIFF picture as it notes, and forgets the note
        deep = image.mode == "I" or image.mode.startswith("I;16")
        values = np.asarray(image) if deep else np.empty(0)
        if image.mode == "F" or (values.size and not 0 <= values.min() <= values.max() < 1 << 16):
            raise _no_photo(f"a PIL image of mode {image.mode}, whose values have no fixed range,")
        orientation = image.getexif().get(_ORIENTATION, 1)
        rgb = image if deep else image.convert("RGB")
        if not deep and orientation == 1:
            rgb.save(buffer, "BMP")
        else:
            exif = Image.Exif()
            exif[_ORIENTATION] = orientation
            rgb.save(buffer, "PNG", compress_level=0, exif=exif)
    except DataError:
        raise
    except Exception as reason:  # Pillow's format plugins raise many types where an opened file is damaged
        raise broken_image_message(GIVEN, reason) from reason
    return buffer.getvalue()

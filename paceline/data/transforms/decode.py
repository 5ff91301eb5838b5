"""From an encoded image to the pixels of one window of it, in RGB, written into a batch.

JPEG is decoded at the smallest DCT scale (1, 1/2, 1/4, 1/8) at which the region still covers its resized size, and no row below the
region is decoded. The result is what torchvision's ImageFolder gives, `Image.open(f).convert("RGB")`: gray becomes RGB, CMYK and
palettes are converted by Pillow, 16-bit values keep their upper eight (data/transforms/image_io.py). A photo that is to be turned
(data/transforms/exif.py) is decoded as it is stored, no more of it than the window needs; the region is turned, and everything
after it happens as if the file had been upright.

The decoder is data treatment: a recipe names it, it is recorded, and it never changes with what is installed.
  simplejpeg  libjpeg-turbo; the same pixels as Pillow, bit for bit, at any DCT scale; everywhere
  nvimgcodec  nvImageCodec's CPU backend decodes just the region's pixels where the scale is 1, else as simplejpeg; the same pixels
              again; Linux, an extra
  nvjpeg      NVIDIA's nvJPEG, through torchvision, decodes photos at full scale on the device of a training or an evaluation
              (data/loader/gpu_decode.py); here is its form on a CPU, libjpeg-turbo's at full scale, for all but a loader on CUDA
  auto        nvjpeg in a run on CUDA whose cores would be too slow (training/input_rate.py), else simplejpeg
  pillow      the reference; Pillow also resizes, which differs from torch's resize by two levels of 255 at most
With each decoder Pillow decodes other formats than JPEG, JPEGs that are not 8-bit gray or color, and JPEGs about which
libjpeg-turbo complains; what Pillow refuses, such as a truncated file, is a DataError. Damage below the region may go unnoticed in
training; preparing a data set decodes every file in full.

All of it releases the GIL while it works, and none of it starts threads.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline._utils.commands import install_command
from paceline._utils.errors import RecipeError
from paceline.config.resnet import Decoder
from paceline.data.transforms.crop import CropWindow, SourceRegion, source_region
from paceline.data.transforms.exif import rotate_pixels
from paceline.data.transforms.image_io import Header, broken_image_message, open_image, to_rgb
from paceline.data.transforms.resample import (
    ResizeLaw,
    resample_pillow,
    resample_tensorflow,
    resample_torch,
    scratch_array,
    source_window,
)

if TYPE_CHECKING:
    from paceline.data.transforms.augment import Augmentation
    from paceline.data.transforms.color_jitter import ColorJitter

END_OF_IMAGE = b"\xff\xd9"
# libjpeg's message about entropy-coded rows beyond the requested ones, up to the end or the next restart marker.
_ROWS_LEFT_OVER = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd[0-79]$")


class SampleSpec(NamedTuple):
    """One sample, decided."""

    name: str  # of the record, for messages
    header: Header
    window: CropWindow  # the photo's region, the size it is resized to, and where the output starts inside
    label: Any  # the class, or the objects that stay
    flip: bool = False  # mirrored left to right, after the resize
    color: ColorJitter | None = None  # how colors change; None: not
    decoder: Decoder = "simplejpeg"
    law: ResizeLaw = "bilinear-antialias"
    augmentation: Augmentation | None = None  # what else is done to the pixels, last; None: nothing
    place: tuple[int, int] = (0, 0)  # top and left of what is shown of the photo, in the output
    around: tuple[int, int, int] = (0, 0, 0)  # levels of RGB beside it
    others: tuple[PartnerSample, ...] = ()  # further photos in the same picture, over what is there


class PartnerSample(NamedTuple):
    """A further photo of a sample. Its size is the data set's word, so that it is drawn before its bytes are read."""

    number: int  # in its index
    draw: SampleSpec  # its header is made up until then, its orientation is the turn that was drawn
    data: bytes = b""
    mask: np.ndarray | None = None  # (h, w) bool, where it is shown; None: everywhere


def decode_crop(data: bytes, draw: SampleSpec, out: np.ndarray) -> None:
    """Decode what the draw's window needs, resize its region by the draw's law, write its part into `out`, mirrored or not.

    data  the encoded file
    draw  its window was made for its header, which is that of the file
    out   (oh, ow, 3) uint8, RGB; resized size minus skip, or smaller
    All laws but the first read single pixels, so regions are decoded at full scale for them.
    Raises DataError for a broken image; RecipeError where the decoder is not installed.
    """
    source = _source(draw)
    if draw.decoder != "pillow" and draw.header.plain_jpeg and data[-2:] == END_OF_IMAGE:
        scale = _scale(draw)
        if scale == 1 and draw.decoder == "nvimgcodec":
            region = decode_region(data, source)
            if region is not None:
                _resample(region, source, draw, out)
                return
        elif (pixels := _rows_simplejpeg(data, draw.header, source, scale)) is not None:
            if scale == 1:
                bottom, right = source.top + source.height, source.left + source.width
                region = scratch_array("region", source.height, source.width, 3)
                np.copyto(region, pixels[source.top : bottom, source.left : right])
                _resample(region, source, draw, out)
            else:
                resample_pillow(pixels, scale, source, draw.window, out, draw.flip)
            return
    _decode_pillow(data, source, draw, out)


def _source(draw: SampleSpec) -> SourceRegion:
    """The stored region that the law reads."""
    window, (height, width) = draw.window, draw.header[:2]
    region = window if draw.law in ("bilinear-antialias", "bilinear") else source_window(window, height, width)
    return source_region(region, draw.header.orientation, height, width)


def _resample(region: np.ndarray, source: SourceRegion, draw: SampleSpec, out: np.ndarray) -> None:
    """The stored region's pixels, decoded at full scale, into `out`."""
    pixels = rotate_pixels(region, source.orientation)
    if draw.law == "tensorflow-crop" or draw.law == "tensorflow-photo":
        resample_tensorflow(pixels, draw.window, draw.header[:2], out, draw.flip, draw.law)
    else:
        resample_torch(pixels, draw.window, out, draw.flip, draw.law)


def dct_scale(window: CropWindow) -> int:
    """-> 1, 2, 4 or 8: the largest divisor that leaves the region at least as large as it is resized to."""
    scale = min(window.height // window.resized_height, window.width // window.resized_width)
    return 8 if scale >= 8 else 4 if scale >= 4 else 2 if scale >= 2 else 1


def _scale(draw: SampleSpec) -> int:
    return dct_scale(draw.window) if draw.law == "bilinear-antialias" and draw.decoder != "nvjpeg" else 1


def require_decoder(decoder: Decoder) -> None:
    """Raise RecipeError, with the command that installs it, where this decoder cannot run."""
    if decoder == "nvimgcodec":
        import_nvimgcodec()
    if decoder != "pillow":
        _simplejpeg()


def _rows_simplejpeg(data: bytes, header: Header, source: SourceRegion, scale: int) -> np.ndarray | None:
    """The image's rows at 1/scale from the top to the region's end, (rows, width / scale, 3); None on a complaint.

    libjpeg decodes as many rows as the frame header states. Stating fewer makes it stop there, which saves their Huffman decoding,
    the most expensive part; the rows above are unchanged except for the last, whose color is interpolated with a missing row, so
    two more than needed are stated.
    """
    encoded: bytes | bytearray = data
    stored_height, stored_width = header.stored
    rows = source.top + source.height + 2 * scale
    if header.height_at and rows < stored_height:
        encoded = bytearray(data)
        encoded[header.height_at : header.height_at + 2] = rows.to_bytes(2, "big")
    else:
        rows = stored_height
    height, width = -(-rows // scale), -(-stored_width // scale)
    pixels = scratch_array("pixels", height, width, 3)
    least = (0, 0) if scale == 1 else (height, width)
    try:
        _simplejpeg().decode_jpeg(encoded, buffer=pixels, min_height=least[0], min_width=least[1])
    except ValueError as complaint:
        # It complains after decoding, and reports the first warning only: rows left over mean that all before was sound.
        if not _ROWS_LEFT_OVER.match(str(complaint)):
            return None
    return pixels


def _simplejpeg() -> Any:
    """Imported where it decodes: measuring or training on other input must run where it is not installed."""
    try:
        import simplejpeg
    except ImportError as reason:
        raise RecipeError(
            f"simplejpeg, which decodes JPEG files, cannot be imported: {reason}.\nInstall it:  pip install simplejpeg   "
            "or train with  --input.decoder pillow"
        ) from None
    return simplejpeg


def _decode_pillow(data: bytes, source: SourceRegion, draw: SampleSpec, out: np.ndarray) -> None:
    try:
        with open_image(data) as image:
            scale = 1
            if image.format in ("JPEG", "MPO") and draw.law == "bilinear-antialias":
                scale = dct_scale(draw.window)
                image.draft(None, (image.width // scale, image.height // scale))
            rgb = to_rgb(image)
    except Exception as reason:  # Pillow's format plugins raise many types on damaged bytes
        raise broken_image_message(draw.name, reason) from reason
    if draw.law == "bilinear-antialias":
        resample_pillow(rgb, scale, source, draw.window, out, draw.flip)
        return
    box = (source.left, source.top, source.left + source.width, source.top + source.height)
    _resample(np.array(rgb.crop(box)), source, draw, out)


def decode_alone(data: bytes, draw: SampleSpec) -> None:
    """Decode as `decode_crop` does and drop the pixels: for measuring."""
    source, scale = _source(draw), _scale(draw)
    if draw.decoder != "pillow" and draw.header.plain_jpeg:
        if scale == 1 and draw.decoder == "nvimgcodec":
            decode_region(data, source)
        else:
            _rows_simplejpeg(data, draw.header, source, scale)
        return
    with open_image(data) as image:
        image.draft(None, (image.width // scale, image.height // scale))
        image.load()


# nvImageCodec's number for "no CUDA device" (NVIMGCODEC_DEVICE_CPU_ONLY).
NO_DEVICE = -99999

_of_thread = threading.local()
_importing = threading.Lock()


def import_nvimgcodec() -> Any:
    """nvImageCodec's module. Raises RecipeError, with the command that installs it, where it is not there or broken."""
    try:
        with _importing, _silence():
            from nvidia import nvimgcodec as module
        _ = module.Decoder  # pyright: ignore[reportAttributeAccessIssue]  # a folder without files is a module too
    except (ImportError, AttributeError) as reason:
        raise RecipeError(
            f"--input.decoder nvimgcodec: nvImageCodec cannot be imported: {reason}.\nInstall it:  "
            f"{install_command('fast')}   (Linux)   or train with  --input.decoder simplejpeg"
        ) from None
    return module


def decode_region(data: bytes, source: SourceRegion) -> np.ndarray | None:
    """(height, width, 3) of the stored region at full scale; None where nvImageCodec could not decode it.

    The memory is this thread's decoder's, valid until the thread decodes again.
    """
    decoder = getattr(_of_thread, "decoder", None)
    if decoder is None:
        decoder = _of_thread.decoder = _RegionDecoder()
    return decoder.decode(data, source)


class _RegionDecoder:
    """nvImageCodec's CPU decoder, one for each thread; it works in the calling thread."""

    def __init__(self) -> None:
        self.codec = codec = import_nvimgcodec()
        self.parameters = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)
        self.image: Any = None
        with _importing, _silence():
            self.decoder = codec.Decoder(
                device_id=NO_DEVICE,
                max_num_cpu_threads=1,
                backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
                options=":fancy_upsampling=1",  # smooth color, libjpeg's default and Pillow's
            )

    def decode(self, data: bytes, source: SourceRegion) -> np.ndarray | None:
        rows, columns = (source.top, source.top + source.height), (source.left, source.left + source.width)
        region = self.codec.Region(rows[0], columns[0], rows[1], columns[1])
        stream = self.codec.CodeStream(data).get_sub_code_stream(0, region)
        self.image = self.decoder.decode(stream, image=self.image, params=self.parameters)
        return None if self.image is None else np.asarray(self.image)


@contextmanager
def _silence():
    """Hide stderr: without a GPU's libraries nvImageCodec prints an error for each, from C, though only its CPU part is used."""
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)

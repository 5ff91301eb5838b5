"""nvImageCodec: its import, its decoder of a region on the CPU, and of many on a CUDA device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.errors import RecipeError
from paceline.config.nvimgcodec_packages import to_install_nvimgcodec
from paceline.input.crop import Source

if TYPE_CHECKING:
    from torch import Tensor

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
            f"decoder=nvimgcodec needs nvImageCodec, which cannot be imported here: {reason}.\n"
            f"Install it:  {to_install_nvimgcodec()}   (Linux)   or train with  --input.decoder simplejpeg"
        ) from None
    return module


def decode_region(data: bytes, source: Source) -> np.ndarray | None:
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
        self.codec = import_nvimgcodec()
        self.decoder, self.parameters = _decoder(self.codec, NO_DEVICE, 1, "CPU_ONLY")
        self.image: Any = None

    def decode(self, data: bytes, source: Source) -> np.ndarray | None:
        self.image = self.decoder.decode(_stream(self.codec, data, source), image=self.image, params=self.parameters)
        return None if self.image is None else np.asarray(self.image)


# (encoded photos and their stored regions, a CUDA stream's handle) -> (h, w, 3) uint8 of each at full scale, on the device, in the
# order of that stream; None for what could not be decoded.
DecodeRegions = Callable[[Sequence[tuple[bytes, Source]], int], list["Tensor | None"]]


def device_decoder(device: int, threads: int) -> DecodeRegions:
    """Decoding by nvJPEG on a CUDA device, by its hardware where it has such; with so many threads of the host.

    device  its number; NO_DEVICE: the same calls by the CPU decoder, whose tensors are the host's
    Raises RecipeError where nvImageCodec is not installed, or cannot use the device.
    """
    codec = import_nvimgcodec()
    kinds = ("CPU_ONLY",) if device == NO_DEVICE else ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")
    try:
        decoder, parameters = _decoder(codec, device, threads, *kinds)
    except RuntimeError as reason:
        raise RecipeError(
            f"--input.decoder nvimgcodec-gpu: nvImageCodec cannot use cuda:{device} ({reason}). See  paceline doctor,  or train "
            "with  --input.decoder nvimgcodec"
        ) from None

    def decode(photos: Sequence[tuple[bytes, Source]], stream: int) -> list[Tensor | None]:
        import torch

        streams = [_stream(codec, *photo) for photo in photos]
        found = decoder.decode(streams, params=parameters, cuda_stream=stream)
        if device == NO_DEVICE:  # DLPack asks CUDA's runtime, also for memory of the host
            return [None if image is None else torch.from_numpy(np.array(image)) for image in found]
        return [None if image is None else torch.from_dlpack(image) for image in found]

    return decode


def _decoder(codec: Any, device: int, threads: int, *kinds: str) -> tuple[Any, Any]:
    """A decoder that may use these backends alone, and the parameters of its calls. Raises RuntimeError."""
    with _importing, _silence():
        decoder = codec.Decoder(
            device_id=device,
            max_num_cpu_threads=threads,
            backends=[codec.Backend(getattr(codec.BackendKind, kind)) for kind in kinds],
            options=":fancy_upsampling=1",  # smooth colour, libjpeg's default and Pillow's
        )
    return decoder, codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)


def _stream(codec: Any, data: bytes, source: Source) -> Any:
    """A photo's region, encoded."""
    region = codec.Region(source.top, source.left, source.top + source.height, source.left + source.width)
    return codec.CodeStream(data).get_sub_code_stream(0, region)


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

"""nvImageCodec: its import, and its decoder of a region on the CPU."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline.config.errors import RecipeError
from paceline.config.nvimgcodec_packages import to_install_nvimgcodec
from paceline.input.crop import Source

# nvImageCodec's number for "no CUDA device" (NVIMGCODEC_DEVICE_CPU_ONLY).
_NO_DEVICE = -99999

_of_thread = threading.local()
_importing = threading.Lock()


def import_nvimgcodec() -> Any:
    """nvImageCodec's module. Raises RecipeError, with the command that installs it, where it is not there or broken."""
    try:
        with _importing, _silence():
            from nvidia import nvimgcodec as module
        _ = module.Decoder  # a folder without files is a module too
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
        with _importing, _silence():
            self.decoder = self.codec.Decoder(
                device_id=_NO_DEVICE,
                max_num_cpu_threads=1,
                backends=[self.codec.Backend(self.codec.BackendKind.CPU_ONLY)],
                options=":fancy_upsampling=1",  # smooth colour, libjpeg's default and Pillow's
            )
        self.parameters = self.codec.DecodeParams(apply_exif_orientation=False, color_spec=self.codec.ColorSpec.SRGB)
        self.image: Any = None

    def decode(self, data: bytes, source: Source) -> np.ndarray | None:
        region = self.codec.Region(source.top, source.left, source.top + source.height, source.left + source.width)
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

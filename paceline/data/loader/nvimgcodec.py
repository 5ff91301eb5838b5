"""nvImageCodec: its import, and its decoder of a region on the CPU."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline._utils.commands import install_command
from paceline._utils.errors import RecipeError
from paceline.data.transforms.crop import SourceRegion

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
            f"Install it:  {install_command('fast')}   (Linux)   or train with  --input.decoder simplejpeg"
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

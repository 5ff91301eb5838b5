"""--format torch: torch.export's own file, with the inputs and outputs that ONNX has; --format aoti: the same compiled for this kind
of CPU.

Both are opened by torch alone (of Mask R-CNN by torch and torchvision), and both can hold code of whoever made them: a .pt2 whose
tensors it says to be pickled is unpickled, and a compiled one is a library. So a stranger's is opened with the user's consent alone
(config/model_card.py).
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline._utils.atomic_write import IN_ZIP
from paceline._utils.errors import PacelineError
from paceline.inference.export.verification import WrittenGraph
from paceline.inference.trained_model import TrainedModel

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions


def write(trained: TrainedModel, out: Path, flags: ExportOptions) -> Iterator[str]:
    """Raises PacelineError where a flag does not fit, there is no compiler, something else is there, or the answers differ."""
    compiled = flags.format == "aoti"
    compiler = os.environ.get("CXX", "g++")
    if compiled and shutil.which(compiler) is None:
        raise PacelineError(f"--format aoti: the compiler {compiler} was not found. Install it, or use --format torch.")
    made = WrittenGraph(trained, flags)
    program = made.graph.traced()
    with made.placed(out) as part:
        if compiled:
            torch._inductor.aoti_compile_and_package(program, package_path=str(part))
        else:
            torch.export.save(program, part)
        with zipfile.ZipFile(part, "a") as archive:
            archive.writestr(IN_ZIP, made.facts())
        yield from made.checked(part)

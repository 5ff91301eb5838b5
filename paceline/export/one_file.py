"""--to paceline: one file that every verb here takes where it takes a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.whole import check_output, write_output
from paceline.training.checkpoint.write import safetensors_chunks

if TYPE_CHECKING:
    from paceline.export.verb import Flags
    from paceline.training.trained import Trained


def write(trained: Trained, out: Path, flags: Flags) -> Iterator[str]:
    """The weights that were evaluated, on the CPU, with all that is needed to answer with them."""
    check_output(flags.out)
    tensors = {name: tensor.cpu() for name, tensor in trained.model.state_dict().items()}
    write_output(out, b"".join(safetensors_chunks(tensors)))
    yield f"{out}: {trained.checkpoint} of {trained.folder}"

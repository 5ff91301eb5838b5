"""`paceline convert FILE --to ours|reference --out FILE`: SSD weights between the MLPerf reference's form and ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.flags import parse
from paceline.cli.voice import say
from paceline.config.errors import CheckpointError, UserError

Form = Literal["ours", "reference"]


@dataclass(frozen=True)
class Flags:
    """What to convert."""

    file: Annotated[Path, tyro.conf.Positional] = Path()  # weight file, or a checkpoint's folder
    to: Form = "ours"  # form of the new file: ours, or the MLPerf reference's names and order of boxes
    out: Path = Path("converted.safetensors")  # file to write: .safetensors, or .pth for the reference's own loader


def run(arguments: Sequence[str]) -> int:
    """Write the converted file and say what is in it."""
    flags = parse(arguments, Flags(), prog="convert", description="Convert SSD weights.")
    if flags.file == Path():
        raise UserError("name a weight file: paceline convert FILE --to ours --out FILE.safetensors")
    if flags.out.suffix not in (".safetensors", ".pth"):
        raise UserError(f"--out {flags.out}: must end in .safetensors or .pth.")
    import torch
    from safetensors.torch import save_file

    from paceline.building import weights_file
    from paceline.models.weights import read_weights
    from paceline.models.weights_ssd import from_reference, is_reference, to_reference

    state = read_weights(weights_file(str(flags.file)))
    theirs = is_reference(state)
    if not theirs and "heads.0.loc.bias" not in state:
        raise CheckpointError(
            f"{flags.file}: neither the MLPerf reference's SSD nor ours with separate heads. "
            "A ResNet's file needs no conversion: train with --weights FILE."
        )
    if theirs == (flags.to == "reference"):
        raise UserError(f"{flags.file}: is in this form already (--to {flags.to}).")
    converted = from_reference(state) if theirs else to_reference(state)
    tensors = {name: tensor.contiguous() for name, tensor in converted.items()}
    try:
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        if flags.out.suffix == ".pth":
            torch.save({"model": tensors}, flags.out)
        else:
            save_file(tensors, flags.out)
    except OSError as problem:
        raise UserError(f"--out {flags.out}: cannot be written ({problem.strerror}). Name another file.") from None
    say(f"{len(tensors)} tensors, {sum(tensor.numel() for tensor in tensors.values()):,} numbers: {flags.out}")
    return 0

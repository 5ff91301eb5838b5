"""Weights of timm's hub by name, `timm/NAME` or `timm/NAME.TAG`, brought by timm's own loader and kept as a file of tensors."""

from __future__ import annotations

from pathlib import Path

from paceline.config.commands import to_install
from paceline.config.errors import DataError
from paceline.config.reporting import Reporter
from paceline.config.whole import whole

HUB = "timm/"


def hub_file(name: str) -> str:
    """The name of the file that timm/NAME is kept in."""
    return f"{name.replace('/', '-')}.safetensors"


def bring_from_hub(name: str, folder: Path, reporter: Reporter) -> Path:
    """The file of timm/NAME in `folder`, where it is brought once; the hub's own library compares what arrives.

    Raises DataError where timm is missing or has no such weights, and where the hub cannot be reached.
    """
    path, bare = folder / hub_file(name), name.removeprefix(HUB)
    if path.is_file():
        reporter.line(f"{path.name}: there already")
        return path
    try:
        import timm
    except ImportError:
        raise DataError(f"--weights {name}: timm is not installed. {to_install('timm')}") from None
    if not (timm.is_model(bare) and timm.is_model_pretrained(bare)):
        raise DataError(
            f"--weights {name}: timm {timm.__version__} has no such weights; `timm.list_pretrained()` names them."
        )
    reporter.line(f"{name}: timm brings it from its hub")
    try:
        tensors = timm.create_model(bare, pretrained=True).state_dict()
    except Exception as problem:  # whatever the hub's library raises where there is no network
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)[:200]
        raise DataError(
            f"--weights {name}: timm's hub did not give it ({reason}). Bring the file from a machine with a network, and name it:  "
            "--weights FILE"
        ) from None
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    with whole(path, sync=True) as part:
        part.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}, metadata={"format": "pt"}))
    return path

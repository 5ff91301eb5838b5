"""What the image is called: one line in containers/TAG of the checkout, for builds, launches and pushes alike."""

from __future__ import annotations

from pathlib import Path

from paceline.config.errors import UserError
from paceline.version import PACKAGE, __version__

TAG_FILE = "containers/TAG"


def checkout() -> Path | None:
    """The source tree that this package runs from; None where it was installed without one."""
    root = PACKAGE.parent
    return root if (root / TAG_FILE).is_file() else None


def tag() -> str:
    """NAME:TAG. Where there is no checkout: paceline at this package's version, as TAG has it.

    Raises UserError where containers/TAG is no name of an image.
    """
    root = checkout()
    if root is None:
        return f"paceline:{__version__}"
    text = (root / TAG_FILE).read_text().strip()
    if not text or len(text.split()) != 1 or ":" not in text.rpartition("/")[2]:
        raise UserError(
            f"{root / TAG_FILE}: write one line NAME:TAG there, e.g. registry.example.com/team/paceline:0.1.0."
        )
    return text


def image_file(name: str) -> Path:
    """Where apptainer's file of an image lies: in the checkout's build/, else in the working directory."""
    stem = name.rpartition("/")[2].replace(":", "-")
    root = checkout()
    return (root / "build" if root else Path.cwd()) / f"{stem}.sif"


def usual_image(container: str) -> str:
    """What --image is where nobody names one; '' for Pyxis, whose nodes find images in a registry alone."""
    if container == "apptainer":
        return str(image_file(tag()))
    return tag() if container == "docker" else ""

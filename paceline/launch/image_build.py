"""The command that builds the image, for each engine that can."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline.config.errors import UserError
from paceline.launch.inside import checkout, image_file
from paceline.launch.job import Words

# In the order in which they are looked for.
ENGINES = ("docker", "podman", "buildah", "apptainer")


@dataclass(frozen=True)
class Build:
    """What to build.

    tag          NAME:TAG
    base         an image in place of the Dockerfile's own, or ''
    torch        which torch, as uv's --torch-backend names it; '' = PyPI's
    commit       of the checkout, for the image's label
    extra        words for the engine, as they are
    constraints  versions of every package, a path in the checkout; '' = the Dockerfile's own
    """

    tag: str
    base: str = ""
    torch: str = ""
    commit: str = ""
    extra: tuple[str, ...] = ()
    constraints: str = ""


def engine_found(asked: str, among: tuple[str, ...]) -> str:
    """The engine asked for, or the first one on PATH for "auto".

    Raises UserError where there is none, or where it cannot do this.
    """
    if asked == "auto":
        for engine in among:
            if shutil.which(engine):
                return engine
        raise UserError(f"no engine for images on this machine: install one of {', '.join(among)}.")
    if asked not in among:
        raise UserError(f"--engine {asked} cannot do that: use one of {', '.join(among)}.")
    if shutil.which(asked) is None:
        raise UserError(f"--engine {asked}: there is no {asked} on this machine. Install it, or choose another engine.")
    return asked


def source() -> Path:
    """The checkout, which holds what the image is made of.

    Raises UserError where the package was installed without it.
    """
    root = checkout()
    if root is None:
        raise UserError(
            "image build makes an image of a checkout, and this paceline was installed without one: clone the repository and "
            "run it there, or install the clone in an image of your own."
        )
    return root


def build_command(engine: str, build: Build, root: Path) -> Words:
    """What builds it, from the checkout at `root`."""
    asked = (
        ("BASE", build.base),
        ("TORCH", build.torch),
        ("CONSTRAINTS", build.constraints),
        ("COMMIT", build.commit),
    )
    if engine == "apptainer":
        # Its definition has the same four, and takes paths as seen from the checkout.
        arguments = [word for name, value in asked if value for word in ("--build-arg", f"{name}={value}")]
        return ("apptainer", "build", *arguments, *build.extra, str(image_file(build.tag)), "containers/paceline.def")
    arguments = [word for name, value in asked if value for word in ("--build-arg", f"{name}={value}")]
    # Layers are kept, so that a change of the code does not fetch torch again; Docker does so unasked.
    layers = ("--layers",) if engine in ("podman", "buildah") else ()
    file = ("--file", str(root / "containers" / "Dockerfile"))
    return (engine, "build", *layers, *file, *arguments, "--tag", build.tag, *build.extra, str(root))

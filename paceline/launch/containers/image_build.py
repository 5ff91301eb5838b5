"""The container image: what it is called, and the command that builds it, for each engine that can."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import PacelineError
from paceline._utils.version import PACKAGE, __version__
from paceline.launch.job import Words

# One line with the image's name, for builds, launches and pushes alike.
TAG_FILE = "containers/TAG"
# In the order in which they are looked for.
ENGINES = ("docker", "podman", "buildah", "apptainer")


def find_checkout() -> Path | None:
    """The source tree that this package runs from; None where it was installed without one."""
    root = PACKAGE.parent
    return root if (root / TAG_FILE).is_file() else None


def image_tag() -> str:
    """NAME:TAG. Where there is no checkout: paceline at this package's version, as TAG has it.

    Raises PacelineError where containers/TAG is no name of an image.
    """
    root = find_checkout()
    if root is None:
        return f"paceline:{__version__}"
    text = (root / TAG_FILE).read_text().strip()
    if not text or len(text.split()) != 1 or ":" not in text.rpartition("/")[2]:
        raise PacelineError(
            f"{root / TAG_FILE}: must contain one line NAME:TAG. Example: registry.example.com/team/paceline:0.1.0"
        )
    return text


def image_file(name: str) -> Path:
    """Where apptainer's file of an image lies: in the checkout's build/, else in the working directory."""
    stem = name.rpartition("/")[2].replace(":", "-")
    root = find_checkout()
    return (root / "build" if root else Path.cwd()) / f"{stem}.sif"


def default_image(container: str) -> str:
    """What --container-image is where nobody names one; '' for Pyxis, whose nodes find images in a registry alone."""
    if container == "apptainer":
        return str(image_file(image_tag()))
    return image_tag() if container == "docker" else ""


@dataclass(frozen=True)
class ImageBuild:
    """What to build."""

    tag: str  # NAME:TAG
    base: str = ""  # an image in place of the Dockerfile's own, or ''
    torch: str = ""  # which torch, as uv's --torch-backend names it; '' = PyPI's
    commit: str = ""  # of the checkout, for the image's label
    extra: tuple[str, ...] = ()  # words for the engine, as they are
    constraints: str = ""  # versions of every package, a path in the checkout; '' = the Dockerfile's own


def choose_engine(requested: str, among: tuple[str, ...]) -> str:
    """The engine asked for, or the first one on PATH for "auto".

    Raises PacelineError where there is none, or where it cannot do this.
    """
    if requested == "auto":
        for engine in among:
            if shutil.which(engine):
                return engine
        raise PacelineError(f"no container engine found on this machine. Install one of {', '.join(among)}.")
    if requested not in among:
        raise PacelineError(f"--container-runtime {requested}: not supported here. Choose one of {', '.join(among)}.")
    if shutil.which(requested) is None:
        raise PacelineError(
            f"--container-runtime {requested}: {requested} not found on this machine. Install it, or choose another engine."
        )
    return requested


def require_checkout() -> Path:
    """The checkout that the image is made of. Raises PacelineError where the package was installed without it."""
    root = find_checkout()
    if root is None:
        raise PacelineError(
            "container build: requires a checkout of the repository, and this paceline was installed without one. Clone the "
            "repository and run the command there, or install the clone in a custom image."
        )
    return root


def build_command(engine: str, build: ImageBuild, root: Path) -> Words:
    """The command that builds it, from the checkout at `root`."""
    values = {"BASE": build.base, "TORCH": build.torch, "CONSTRAINTS": build.constraints, "COMMIT": build.commit}
    arguments = [word for name, value in values.items() if value for word in ("--build-arg", f"{name}={value}")]
    if engine == "apptainer":
        # Its definition has the same four arguments, and takes paths as seen from the checkout.
        return ("apptainer", "build", *arguments, *build.extra, str(image_file(build.tag)), "containers/paceline.def")
    # Layers are kept, so that a change of the code does not fetch torch again; Docker does so unasked.
    layers = ("--layers",) if engine in ("podman", "buildah") else ()
    file = ("--file", str(root / "containers" / "Dockerfile"))
    return (engine, "build", *layers, *file, *arguments, "--tag", build.tag, *build.extra, str(root))

"""A job inside a container: its image, its interpreter, what it sees of the host, and which variables stay outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.config.cache import cache_folder
from paceline.config.errors import UserError
from paceline.launch.containers import CONTAINER
from paceline.launch.job import Job, Variable
from paceline.launch.mounts import mounts_of
from paceline.version import PACKAGE, __version__

# They name this machine's folders, and the image has its own.
OUTSIDE = ("PYTHONPATH", "PACELINE_CACHE")


def inside(job: Job, more: Sequence[str] = (), *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Job:
    """The same job where its container wants it otherwise.

    more    folders that it shall see, as --mount names them
    reads   data and weights that it reads, as flags name them
    writes  folders that it writes into beside its own, as flags name them
    Raises UserError for a mount that cannot be.
    """
    container = CONTAINER[job.container]
    if container.python is None:
        return job
    cache = cache_folder()
    environ = tuple(variable for variable in job.environ if variable.name not in OUTSIDE)
    kept = Variable("PACELINE_CACHE", str(cache), "paceline: this machine's cache, mounted at its own place")
    return replace(
        job,
        image=job.image or usual_image(job.container),
        python=container.python,
        environ=(*environ, kept),
        mounts=mounts_of(
            job.words,
            job.folder,
            cache,
            more,
            job.workdir,
            reads=reads,
            writes=writes,
            here=job.through == "local",
        ),
    )


# What the image is called: one line in containers/TAG of the checkout, for builds, launches and pushes alike.


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

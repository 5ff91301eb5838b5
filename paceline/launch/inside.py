"""A job inside a container: its image, its interpreter, what it sees of the host, and which variables stay outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.config.cache import cache_folder
from paceline.launch.combine import CONTAINER
from paceline.launch.image_tag import usual_image
from paceline.launch.job import Job, Variable
from paceline.launch.mounts import mounts_of

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

"""What a container lacks of its host, or has otherwise: each difference in a line, with the flag that mends it.

The host's facts come in the variable PACELINE_HOST, which `paceline launch` and `paceline image shell` set; by hand:
    PACELINE_HOST=$(paceline doctor --facts) docker run --env PACELINE_HOST ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from paceline.config.errors import UserError
from paceline.config.printable import short
from paceline.machine.host_facts import VARIABLE

# (level, text): what a finding of `doctor` is made of.
Told = tuple[Literal["ok", "note", "problem"], str]
MOST_CHARACTERS = 10_000
# Less of /dev/shm than this is too little for NCCL between eight devices.
LITTLE_SHM_MIB = 256


def read_host(text: str) -> dict[str, str]:
    """The facts in PACELINE_HOST.

    Raises UserError where it holds none.
    """
    try:
        found = json.loads(text) if len(text) <= MOST_CHARACTERS else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UserError(
            f"{VARIABLE}={short(text)}: no facts of a host. Let  paceline doctor --facts  write them there."
        )
    return {str(name): short(value, 80) for name, value in found.items()}


def compare(host: Mapping[str, str], here: Mapping[str, str]) -> list[Told]:
    """What differs between the host's facts and those inside; a first line of what is alike. Pure.

    A fact that the host did not tell is not compared.
    """
    told = [*_devices(host, here), *_launchers(host, here), *_user(host, here), *_limits(host, here)]
    names = {"driver": "driver", "mpi": "mpirun", "pmix": "PMIx", "user": "user"}
    alike = [f"{text} {here[name]}" for name, text in names.items() if here.get(name) and here[name] == host.get(name)]
    first: Told = (
        ("ok", "as the host: " + ", ".join(alike)) if alike else ("note", "nothing here is known to be as on the host")
    )
    return [first, *told]


def _devices(host: Mapping[str, str], here: Mapping[str, str]) -> list[Told]:
    told: list[Told] = []
    if (have := host.get("gpus", "")) and have != here.get("gpus", ""):
        told.append(
            (
                "problem",
                f"the host has {have} GPUs, the container {here.get('gpus') or 'none'}: docker run --gpus all, apptainer exec "
                "--nv (AMD: --rocm)",
            )
        )
    driver, library = here.get("driver") or host.get("driver", ""), here.get("libcuda", "")
    if host.get("libcuda") and not library:
        told.append(
            (
                "problem",
                f"the host's driver library {host['libcuda']} is not in the container: docker run --gpus all (it needs "
                "nvidia-container-toolkit), apptainer exec --nv",
            )
        )
    elif library and driver and library != driver:
        told.append(
            (
                "problem",
                f"driver library {library} in the container, kernel driver {driver} on the host: an image must not hold a "
                "libcuda of its own; remove it, the host's comes with --gpus all or --nv",
            )
        )
    if (have := host.get("infiniband", "")) and have != here.get("infiniband", ""):
        told.append(
            (
                "note",
                f"the host has {have} InfiniBand or RoCE devices, the container {here.get('infiniband') or 'none'}: NCCL falls to "
                "TCP; docker run --device /dev/infiniband",
            )
        )
    return told


def _launchers(host: Mapping[str, str], here: Mapping[str, str]) -> list[Told]:
    told: list[Told] = []
    for name, text in (("mpi", "mpirun"), ("pmix", "PMIx")):
        outside, inside = host.get(name, ""), here.get(name, "")
        if outside and inside and outside != inside:
            told.append(
                (
                    "note",
                    f"{text} {inside} in the container, {outside} on the host: ranks of paceline do not speak it, so either "
                    "starts them; one mpirun whose daemons run on both sides must be one version",
                )
            )
    return told


def _user(host: Mapping[str, str], here: Mapping[str, str]) -> list[Told]:
    outside, inside = host.get("user", ""), here.get("user", "")
    if not outside or outside == inside:
        return []
    if outside.startswith("0:"):  # rootless Docker and a build's shell look like this, and write as they should
        return [("note", f"user {inside} in the container, {outside} on the host: files will belong to {inside}")]
    return [
        (
            "note",
            f"user {inside} in the container, {outside} on the host: files will belong to {inside}; "
            'docker run --user "$(id -u):$(id -g)"',
        )
    ]


def _limits(host: Mapping[str, str], here: Mapping[str, str]) -> list[Told]:
    told: list[Told] = []
    if here.get("memlock") not in ("unlimited", None) and (
        host.get("infiniband") or host.get("memlock") == "unlimited"
    ):
        told.append(
            ("note", f"memlock {here['memlock']} KiB: InfiniBand pins more than that; docker run --ulimit memlock=-1")
        )
    shm = here.get("shm_mib", "")
    if shm.isdecimal() and int(shm) < LITTLE_SHM_MIB and host.get("shm_mib") != shm:
        told.append(("note", f"/dev/shm has {shm} MiB: docker run --ipc host, or --shm-size 1g"))
    return told

"""Ask every host of a job, all at once, whether it can take part; each that cannot is named in one line with the reason.

What is asked: does ssh let us in, is there a Python with this paceline and this torch, does the host see the run's folder
(a file with a fresh number lies there), has it the network interface, is rank 0's port free, is Open MPI there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.config.errors import UserError
from paceline.config.printable import one_line
from paceline.launch import probe
from paceline.launch.hostfile import Host
from paceline.launch.job import Job, Words
from paceline.ranks.interfaces import is_address_of_this_host
from paceline.version import __version__

AT_ONCE = 64
# For one answer: logging in, and a Python that starts from a slow shared disk.
ANSWER_SECONDS = 60
# Open MPI's daemon on a host: up to version 4, and from 5 on.
MPI_DAEMONS = ("orted", "prted")


def check_hosts(job: Job, hosts: tuple[Host, ...], port: int) -> None:
    """Raises UserError with a line for each host that cannot take part.

    port   where rank 0 will listen on the first host; 0 = not to be asked
    """
    token = secrets.token_hex(16)
    file = (
        job.launch_folder / f".seen-{token}"
    )  # a new name each time: NFS remembers for a while which names are not there
    try:
        file.write_text(token)
        with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
            ports = (port, *[0] * (len(hosts) - 1))
            found = list(pool.map(lambda host, its_port: _trouble(job, host, file, token, its_port), hosts, ports))
    finally:
        file.unlink(missing_ok=True)
    if trouble := [line for line in found if line]:
        raise UserError("\n".join(trouble))


def host_python(job: Job) -> Words:
    """The Python on the hosts themselves; the job's own may exist inside a container alone."""
    return job.python if job.container == "none" else ("python3",)


def _trouble(job: Job, host: Host, file: Path, token: str, port: int) -> str:
    """Why `host` cannot take part, in one line that begins with its name; '' where it can."""
    programs = MPI_DAEMONS if job.start == "mpirun" else ()
    wanted = {"workdir": str(job.workdir), "token": str(file), "port": port, "programs": programs}
    python = host_python(job)
    # What makes paceline importable for ranks does so for the question; the rest of the environment they do without.
    path = next((f"{one.name}={one.value}" for one in job.environ if one.name == "PYTHONPATH"), None)
    command = on_host(host.address, (*(("env", path) if path else ()), *python, "-", json.dumps(wanted)))
    try:
        script = Path(probe.__file__).read_bytes()
        done = subprocess.run(command, input=script, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{host.address}: no answer within {ANSWER_SECONDS} s. Try:  ssh {host.address} true"
    except OSError as problem:
        return f"{host.address}: {command[0]} cannot be started ({problem.strerror}). Debian's ssh: openssh-client."
    said = done.stderr.decode(errors="replace")
    answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith(probe.MARK)]
    if not answers:
        return f"{host.address}: {_no_answer(host, done.returncode, said, python)}"
    return "".join(
        f"{host.address}: {why}" for why in _missing(job, host, json.loads(answers[-1][len(probe.MARK) :]), token)[:1]
    )


def _no_answer(host: Host, code: int, said: str, python: Words) -> str:
    if code == NO_CONNECTION:
        return f"ssh does not get in ({why_not_connected(said)}). Try:  ssh -o BatchMode=yes {host.address} true"
    if code in (126, 127):
        return f"there is no {python[0]} to run ({why_not_connected(said)}). All hosts need the same environment at the same path."
    return f"{python[0]} does not work there ({why_not_connected(said)})."


def _missing(job: Job, host: Host, answer: dict[str, Any], token: str) -> list[str]:
    """What this host lacks, the most basic first."""
    found = []
    own = {"paceline": __version__, "torch": importlib.metadata.version("torch")}
    if job.container == "none" and not answer["paceline"]:
        found.append(
            f"{answer['python']} there has no paceline ({one_line(str(answer['why']))}). Install it on all hosts."
        )
    elif job.container == "none":
        for name, version in own.items():
            if answer[name] != version:
                there = one_line(str(answer[name])) or "none"
                found.append(f"{name} {there} there, {version} here. All hosts need the same version.")
    if answer["token"] != token:
        found.append(
            f"it does not see {job.launch_folder} as it is here. The run's folder must lie on a file system that all hosts "
            "see at the same path: choose --out there."
        )
    if not answer["workdir"]:
        found.append(
            f"there is no folder {job.workdir} there, from which this was started. Start from one that all hosts see."
        )
    interface = job.system.interface
    if interface and interface not in answer["interfaces"]:
        there = ", ".join(one_line(str(name)) for name in answer["interfaces"])
        found.append(f"there is no network interface {interface} (--system.interface). It has {there}.")
    if job.start == "mpirun" and not answer["programs"]:
        found.append("there is no Open MPI in the PATH that ssh gives. Install it there, or use --start torchrun.")
    if answer["port"]:
        found.append(f"rank 0 cannot listen there ({one_line(str(answer['port']))}). Choose another port with --port.")
    return found


# Commands on other hosts, over the user's own ssh: its keys, names and users come from ~/.ssh/config and nothing else.
#
# A host that is this machine is reached without ssh.


LIKE_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR")
# ssh's own exit code where it could not connect, or lost the connection; else the command's.
NO_CONNECTION = 255


def options() -> Words:
    """ssh's options: nobody is there to type a password; a dead host is noticed when connecting, and within 15 s later on."""
    said = {"BatchMode": "yes", "ConnectTimeout": 10, "ServerAliveInterval": 5, "ServerAliveCountMax": 3}
    return tuple(word for name, value in said.items() for word in ("-o", f"{name}={value}"))


def on_host(address: str, command: Words) -> Words:
    """What runs `command` on the host `address`, standard input and output included."""
    if is_address_of_this_host(address):
        return command
    return ("ssh", "-T", *options(), "--", address, shlex.join(command))


def environment_for(command: Words, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What `command`, of `on_host`, is started with: a host that is this machine has no more than a login gives the others.

    Else ranks here would have what the ranks on other hosts have not, from PACELINE_SECRET to NCCL's switches.
    """
    if command[0] == "ssh":
        return dict(environ)
    return {name: value for name, value in environ.items() if name in LIKE_A_LOGIN}


def why_not_connected(said: str) -> str:
    """The line of ssh's own words that tells why, for a message; ssh writes what it tried before what failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return one_line(lines[-1].rstrip(".")[:300]) if lines else "ssh says nothing"

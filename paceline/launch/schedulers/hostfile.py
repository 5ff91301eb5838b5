"""A list of hosts and ssh: torchrun once on each of them, or one mpirun for all. No scheduler, no daemon of ours.

A hostfile has one host a line, as Open MPI and MPICH write them:

    node1 slots=8        # Open MPI
    node2:8              # MPICH, and mpirun's -H
    10.0.0.3             # as many ranks as the system has a node

Nothing of a line is guessed: what is no host, no `slots=` and no comment is refused with its file and line. Each host is asked first
whether it can take part.
Source: Open MPI, mpirun(1), "Specifying Host Nodes"; MPICH, hydra's -f.

torchrun: run.sh holds a connection to every host (ssh.py), where attend.py runs node.sh with the host's number.
mpirun:   run.sh is one mpirun, which does the same with daemons of its own.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import secrets
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import read_plain_text
from paceline._utils.text import abbreviate, escape_line
from paceline._utils.version import __version__
from paceline.config.system import MAX_RANKS
from paceline.launch import host_probe, process_guard
from paceline.launch.job import (
    LaunchFile,
    LaunchJob,
    RunningJob,
    Scheduler,
    Words,
    choose_store_port,
    format_command_lines,
    format_exports,
    format_node_exports,
    make_environment,
    require_programs,
)
from paceline.launch.preflight.node import node_program, preflight_lines, with_node_number
from paceline.launch.schedulers.local import run_script
from paceline.launch.schedulers.ssh import NO_CONNECTION, find_ssh_reason, ssh_options, wrap_for_host
from paceline.launch.starters import STARTERS, list_forwarded_names

# The longest line that makes sense (RFC 1123: a name has at most 255 characters), times the most hosts.
MAX_BYTES = 2**20
MAX_NAME = 255
# A leading minus would be an option of ssh's.
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
LOOPBACK = re.compile(r"localhost(?:\..*)?|127\.\d+\.\d+\.\d+", re.IGNORECASE)
WANTED = "`node1`, `node1 slots=8`, or `node1:8`"
AT_ONCE = 64
# For one answer: logging in, and a Python that starts from a slow shared disk.
ANSWER_SECONDS = 60
# Open MPI's daemon on a host: up to version 4, and from 5 on.
MPI_DAEMONS = ("orted", "prted")


@dataclass(frozen=True)
class Host:
    """One line of a hostfile: a name or number that ssh understands, and how many ranks there is room for."""

    address: str
    slots: int


def read_hostfile(path: Path, per_node: int) -> tuple[Host, ...]:
    """Every host of the file, in its order.

    per_node  slots of a host whose line says none
    Raises PacelineError naming file and line: unreadable, no host at all, a host twice, anything that is not understood.
    """
    try:
        text = read_plain_text(path, MAX_BYTES)
    except OSError as problem:
        raise PacelineError(f"--hostfile {path}: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise PacelineError(f"--hostfile {path}: not a text file. Expected one host per line: {WANTED}.") from None
    hosts: dict[str, Host] = {}
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        try:
            host = _read_line(line, per_node)
        except ValueError as why:
            raise PacelineError(f"{path}, line {number}: {why}.") from None
        key = host.address.lower()
        if key in lines:
            raise PacelineError(
                f"{path}, line {number}: {host.address} is already in line {lines[key]}. List each host once, with all "
                "its slots."
            )
        hosts[key], lines[key] = host, number
    if not hosts:
        raise PacelineError(f"--hostfile {path}: contains no host. Expected one host per line: {WANTED}.")
    return tuple(hosts.values())


def select_hosts(hosts: tuple[Host, ...], nodes: int, per_node: int, path: Path) -> tuple[Host, ...]:
    """The `nodes` hosts that a job of `per_node` ranks a node takes: the first ones.

    Raises PacelineError where there are too few, where one has too few slots, or where a loopback stands among several.
    """
    if len(hosts) < nodes:
        raise PacelineError(
            f"--nodes {nodes}: {path} lists {len(hosts)} host{'s'[: len(hosts) > 1]}. Add {nodes - len(hosts)}, or set "
            f"--nodes {len(hosts)}."
        )
    taken = hosts[:nodes]
    for host in taken:
        if host.slots < per_node:
            raise PacelineError(
                f"{path}: {host.address} has {host.slots} slot{'s'[: host.slots > 1]}, and the system has {per_node} ranks "
                f"per node. Raise the slots, or set --system.ranks-per-node {host.slots}."
            )
        if nodes > 1 and LOOPBACK.fullmatch(host.address):
            raise PacelineError(
                f"{path}: {host.address} is a different machine on each host. Use a name that all hosts resolve."
            )
    return taken


def _read_line(line: str, per_node: int) -> Host:
    """Raises ValueError in a few words, without a full stop."""
    name, *rest = line.split()
    slots = None
    if name.count(":") > 1 or name.startswith("["):
        raise ValueError(f"'{abbreviate(name)}' is an IPv6 address. Use a host name instead")
    if ":" in name:
        name, _, text = name.partition(":")
        slots = _count(text)
    if "@" in name:
        raise ValueError(f"'{abbreviate(name)}' must not contain a user. Set the user in ~/.ssh/config")
    if len(name) > MAX_NAME or not NAME.fullmatch(name):
        raise ValueError(f"'{abbreviate(name)}' is not a host name. Expected {WANTED}")
    for word in rest:
        keyword, equals, text = word.partition("=")
        if keyword != "slots" or not equals:
            raise ValueError(f"'{abbreviate(word)}' is not supported. Expected {WANTED}")
        if slots is not None:
            raise ValueError("slots are given twice")
        slots = _count(text)
    return Host(name, per_node if slots is None else slots)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_RANKS:
        raise ValueError(f"'{abbreviate(text)}' is not a number of slots from 1 to {MAX_RANKS}")
    return int(text)


def check_hosts(job: LaunchJob, hosts: tuple[Host, ...], port: int) -> None:
    """Ask every host, all at once, whether it can take part; raises PacelineError with a line for each that cannot.

    Asked: does ssh let us in, is there a Python with this paceline and this torch, does the host see the run's folder (a file
    with a fresh number lies there), has it the network interface, is rank 0's port free, is Open MPI there.

    port   where rank 0 will listen on the first host; 0 = not to be asked
    """
    token = secrets.token_hex(16)
    # A new name each time: NFS remembers for a while which names are not there.
    file = job.launch_folder / f".seen-{token}"
    try:
        file.write_text(token)
        with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
            ports = (port, *[0] * (len(hosts) - 1))
            results = list(pool.map(lambda host, its_port: _trouble(job, host, file, token, its_port), hosts, ports))
    finally:
        file.unlink(missing_ok=True)
    if trouble := [line for line in results if line]:
        raise PacelineError("\n".join(trouble))


def find_host_python(job: LaunchJob) -> Words:
    """The Python on the hosts themselves; the job's own may exist inside a container alone."""
    return job.python if job.container == "none" else ("python3",)


def _trouble(job: LaunchJob, host: Host, file: Path, token: str, port: int) -> str:
    """Why `host` cannot take part, in one line that begins with its name; '' where it can."""
    programs = MPI_DAEMONS if job.start == "mpirun" else ()
    wanted = {"workdir": str(job.workdir), "token": str(file), "port": port, "programs": programs}
    python = find_host_python(job)
    # What makes paceline importable for ranks does so for the question; the rest of the environment they do without.
    path = next((f"{one.name}={one.value}" for one in job.environ if one.name == "PYTHONPATH"), None)
    command = wrap_for_host(host.address, (*(("env", path) if path else ()), *python, "-", json.dumps(wanted)))
    try:
        script = Path(host_probe.__file__).read_bytes()
        done = subprocess.run(command, input=script, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{host.address}: no response within {ANSWER_SECONDS} s. Try:  ssh {host.address} true"
    except OSError as problem:
        return f"{host.address}: starting {command[0]} failed ({problem.strerror}). Install ssh (Debian: openssh-client)."
    answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith(host_probe.MARK)]
    if not answers:
        why = find_ssh_reason(done.stderr.decode(errors="replace"))
        if done.returncode == NO_CONNECTION:
            text = f"ssh login failed ({why}). Try:  ssh -o BatchMode=yes {host.address} true"
        elif done.returncode in (126, 127):
            text = f"{python[0]} not found ({why}). All hosts need the same environment at the same path."
        else:
            text = f"{python[0]} failed ({why})."
        return f"{host.address}: {text}"
    missing = _missing(job, json.loads(answers[-1][len(host_probe.MARK) :]), token)
    return f"{host.address}: {missing[0]}" if missing else ""


def _missing(job: LaunchJob, answer: dict[str, Any], token: str) -> list[str]:
    """What this host lacks, the most basic first."""
    results = []
    own = {"paceline": __version__, "torch": importlib.metadata.version("torch")}
    if job.container == "none" and not answer["paceline"]:
        results.append(f"{answer['python']} has no paceline ({escape_line(str(answer['why']))}). Install it on all hosts.")
    elif job.container == "none":
        for name, version in own.items():
            if answer[name] != version:
                there = escape_line(str(answer[name])) or "none"
                results.append(
                    f"{name} {there} on this host, {version} on the local machine. All hosts need the same version."
                )
    if answer["token"] != token:
        results.append(
            f"{job.launch_folder} is not the same folder on this host. All hosts must share the run folder "
            "at the same path. Set --output-dir to a shared folder."
        )
    if not answer["workdir"]:
        results.append(f"the working directory {job.workdir} was not found. Start from a folder that all hosts share.")
    interface = job.system.interface
    if interface and interface not in answer["interfaces"]:
        there = ", ".join(escape_line(str(name)) for name in answer["interfaces"])
        results.append(f"--system.interface {interface}: network interface not found. Available: {there}.")
    if job.start == "mpirun" and not answer["programs"]:
        results.append("Open MPI not found in the PATH of ssh. Install it there, or use --launcher torchrun.")
    if answer["port"]:
        results.append(f"rank 0 failed to listen ({escape_line(str(answer['port']))}). Choose another --master-port.")
    return results


BASH = "#!/usr/bin/env bash\n"
# In the background, because a shell acts on a signal only between commands.
STAY_WITH_MPIRUN = """starter=$!
trap 'kill -USR1 "$starter"' USR1
trap 'kill "$starter"' TERM INT

# When a host is lost, mpirun waits for its daemon's answer for minutes after its ranks here and all connections have ended.
alone=0
while kill -0 "$starter" 2>/dev/null; do
    alone=$((alone + 1))
    if ! command -v pgrep >/dev/null || pgrep -P "$starter" >/dev/null; then alone=0; fi
    [ "$alone" -lt 10 ] || kill -KILL "$starter"
    sleep 1
done
wait "$starter"
"""


def _hosts_of(job: LaunchJob) -> tuple[Host, ...]:
    """The first hosts of its hostfile, one for each node. Raises PacelineError as `select_hosts` does."""
    assert job.hostfile is not None
    hosts = read_hostfile(job.hostfile, job.per_node)
    return select_hosts(hosts, job.nodes, job.per_node, job.hostfile)


def _files(job: LaunchJob, command: Words) -> tuple[LaunchFile, ...]:
    """run.sh, which starts all, and what it needs on the hosts."""
    addresses = tuple(host.address for host in _hosts_of(job))
    ranks = f"{job.ranks} rank{'s'[: job.ranks > 1]}"
    head = f"{BASH}# {job.name}: {ranks} on {', '.join(addresses)}, started by {job.start}.\n"
    if job.start == "mpirun":
        return _with_mpirun(job, command, head, addresses)
    return _on_every_host(job, command, head, addresses)


def _on_every_host(job: LaunchJob, command: Words, head: str, addresses: Words) -> tuple[LaunchFile, ...]:
    folder, cd = str(job.launch_folder), f"cd {shlex.quote(str(job.workdir))}\n\n"
    hold = (sys.executable, "-m", "paceline.launch.schedulers.ssh", folder, shlex.join(find_host_python(job)))
    before, files = "", ()
    if job.preflight:
        start = (*hold[:3], str(job.preflight_folder), *hold[4:])
        before = preflight_lines(job, format_command_lines((*start, *addresses)))
        program = f'exec {format_command_lines(node_program(job, addresses))} --number "$1"\n'
        node = f"{BASH}set -euo pipefail\n{cd}{format_exports(make_environment(job))}\n{program}"
        files = (
            LaunchFile("preflight/node.sh", node, runs=True, shown=False),
            LaunchFile("preflight/attend.py", Path(process_guard.__file__).read_text(), shown=False),
        )
    script = shlex.quote(str(job.launch_folder / "node.sh"))
    by_hand = " ".join(f"ssh {address} bash {script} {number} &" for number, address in enumerate(addresses))
    run = f"{head}# To start it manually, without monitoring:  {by_hand} wait\nset -euo pipefail\n{before}\n"
    run += f"exec {format_command_lines((*hold, *addresses))}\n"
    node = (
        f"{BASH}# {job.name}: starts the ranks of one host of {job.nodes}. The only argument is its index, from 0.\n"
        f"set -euo pipefail\n{cd}{format_exports(make_environment(job))}"
        + (format_node_exports(job, addresses[0], "$1") if job.nodes > 1 else "")
        + "export PET_TEE=3  # torchrun: prints the output of the ranks, each line with its rank\n"
        "export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${rank}] '  # torchrun: format of the prefix\n"
        "export TORCH_CPP_LOG_LEVEL=ERROR  # torchrun: hides warnings about unresolved host names\n"
        + (f"\n{job.between}  # before the ranks start\n" if job.between else "")
        + f"\nexec {format_command_lines(command)}\n"
    )
    return (
        LaunchFile("run.sh", run, runs=True),
        LaunchFile("node.sh", node, runs=True),
        LaunchFile("attend.py", Path(process_guard.__file__).read_text(), shown=False),
        *files,
    )


def _with_mpirun(job: LaunchJob, command: Words, head: str, addresses: Words) -> tuple[LaunchFile, ...]:
    ssh = shlex.quote(" ".join(ssh_options()))
    own = f"export MASTER_ADDR={addresses[0]}  # host of rank 0, wherever mpirun runs\n"
    if any(variable.name == "MASTER_ADDR" for variable in job.environ):
        own = ""  # this shell's own is kept: the first host may have a faster network under another name
    one_a_node = ("--map-by", "ppr:1:node")
    once = (*command[: command.index("-np")], "-np", str(job.nodes), *one_a_node, "sh", "-c", job.between)
    looking = ""
    if job.preflight:
        words = (*command[: command.index("-np")], "-np", str(job.nodes), *one_a_node, "--bind-to", "none")
        words = (*words, *(word for name in list_forwarded_names(job) if name != "MASTER_ADDR" for word in ("-x", name)))
        own_part = with_node_number(job, '"$OMPI_COMM_WORLD_RANK"', names=addresses)
        looking = preflight_lines(job, f"{format_command_lines(words)} \\\n    {own_part}")
    text = (
        f"{head}set -euo pipefail\n"
        f"cd {shlex.quote(str(job.workdir))}\n\n"
        f"{format_exports(make_environment(job))}{own}"
        "# ssh never prompts, detects lost hosts, and connects to each host directly.\n"
        "# For Open MPI 4 and earlier, and for 5.\n"
        f"export OMPI_MCA_plm_rsh_args={ssh} PRTE_MCA_plm_ssh_args={ssh}\n"
        "export OMPI_MCA_plm_rsh_no_tree_spawn=1 PRTE_MCA_plm_ssh_no_tree_spawn=1\n"
    )
    if job.system.interface:
        name = shlex.quote(job.system.interface)
        text += f"export OMPI_MCA_oob_tcp_if_include={name}  # connections of mpirun itself: --system.interface\n"
    text += looking
    text += f"\n# Before the ranks start, once on every host.\n{format_command_lines(once)}\n" if job.between else ""
    text += f"\n{STARTERS['mpirun'].notes(job)}{format_command_lines(command)} &\n{STAY_WITH_MPIRUN}"
    hosts = "".join(f"{address} slots={job.per_node}\n" for address in addresses)
    return LaunchFile("run.sh", text, runs=True), LaunchFile("hostfile", hosts)


def _check(job: LaunchJob) -> None:
    """Check what needs no answer from the hosts. Raises PacelineError: no hosts, too many or few."""
    if job.hostfile is None:
        raise PacelineError("--scheduler hostfile: requires --hostfile FILE, with one host per line: `node1 slots=8`.")
    _hosts_of(job)
    address = next((variable.value for variable in job.environ if variable.name == "MASTER_ADDR"), "")
    if job.start == "mpirun" and job.nodes > 1 and LOOPBACK.fullmatch(address):
        raise PacelineError(
            f"MASTER_ADDR={address}: this address is a different machine on each host. Unset it to use the first host."
        )


def _begin(job: LaunchJob, paths: tuple[Path, ...]) -> RunningJob:
    """Ask all hosts whether they can take part, then start. Raises PacelineError with a line for each that cannot."""
    check_hosts(job, _hosts_of(job), choose_store_port(job) if job.start == "torchrun" and job.nodes > 1 else job.port)
    return run_script(job, paths)


NO_SSH = "--scheduler hostfile: ssh not found on this machine. Install it (Debian: openssh-client)."
HOSTFILE = Scheduler(_files, _check, _begin, missing=require_programs(NO_SSH, "ssh"))

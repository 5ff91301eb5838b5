"""A list of hosts and ssh: torchrun once on each of them, or one mpirun for all. No scheduler, no daemon of ours.

torchrun: run.sh holds a connection to every host (ssh.py), where attend.py runs node.sh with the host's number.
mpirun:   run.sh is one mpirun, which does the same with daemons of its own.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from paceline._utils.errors import PacelineError
from paceline.launch import process_guard
from paceline.launch.hosts import LOOPBACK, Host, check_hosts, find_host_python, read_hostfile, select_hosts
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
from paceline.launch.preflight import script_lines
from paceline.launch.schedulers.local import run_script
from paceline.launch.schedulers.ssh import ssh_options
from paceline.launch.starters import STARTERS, list_forwarded_names

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
    """The first hosts of its hostfile, one for each node. Raises PacelineError as hosts.py does."""
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
        before = script_lines.preflight_lines(job, format_command_lines((*start, *addresses)))
        program = f'exec {format_command_lines(script_lines.node_program(job, addresses))} --number "$1"\n'
        node = f"{BASH}set -euo pipefail\n{cd}{format_exports(make_environment(job))}\n{program}"
        files = (
            LaunchFile("preflight/node.sh", node, runs=True, shown=False),
            LaunchFile("preflight/attend.py", Path(process_guard.__file__).read_text(), shown=False),
        )
    script = shlex.quote(str(job.launch_folder / "node.sh"))
    by_hand = " ".join(f"ssh {address} bash {script} {number} &" for number, address in enumerate(addresses))
    run = f"{head}# By hand, without an eye on them:  {by_hand} wait\nset -euo pipefail\n{before}\n"
    run += f"exec {format_command_lines((*hold, *addresses))}\n"
    node = (
        f"{BASH}# {job.name}: one host's part of {job.nodes}. Its number, from 0, is the only argument.\n"
        f"set -euo pipefail\n{cd}{format_exports(make_environment(job))}"
        + (format_node_exports(job, addresses[0], "$1") if job.nodes > 1 else "")
        + "export PET_TEE=3  # torchrun: what ranks print comes here, each line with its rank\n"
        "export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${rank}] '  # torchrun: as here\n"
        "export TORCH_CPP_LOG_LEVEL=ERROR  # torchrun: not a word about host names that no server knows\n"
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
    own = f"export MASTER_ADDR={addresses[0]}  # where rank 0 runs, wherever mpirun itself does\n"
    if any(variable.name == "MASTER_ADDR" for variable in job.environ):
        own = ""  # this shell's own is kept: the first host may have a faster network under another name
    one_a_node = ("--map-by", "ppr:1:node")
    once = (*command[: command.index("-np")], "-np", str(job.nodes), *one_a_node, "sh", "-c", job.between)
    looking = ""
    if job.preflight:
        words = (*command[: command.index("-np")], "-np", str(job.nodes), *one_a_node, "--bind-to", "none")
        words = (*words, *(word for name in list_forwarded_names(job) if name != "MASTER_ADDR" for word in ("-x", name)))
        own_part = script_lines.with_node_number(job, '"$OMPI_COMM_WORLD_RANK"', names=addresses)
        looking = script_lines.preflight_lines(job, f"{format_command_lines(words)} \\\n    {own_part}")
    text = (
        f"{head}set -euo pipefail\n"
        f"cd {shlex.quote(str(job.workdir))}\n\n"
        f"{format_exports(make_environment(job))}{own}"
        "# ssh asks nobody anything, notices a host that is gone, and goes from here to every host, not from one to the next.\n"
        "# Open MPI up to 4, and from 5 on.\n"
        f"export OMPI_MCA_plm_rsh_args={ssh} PRTE_MCA_plm_ssh_args={ssh}\n"
        "export OMPI_MCA_plm_rsh_no_tree_spawn=1 PRTE_MCA_plm_ssh_no_tree_spawn=1\n"
    )
    if job.system.interface:
        name = shlex.quote(job.system.interface)
        text += f"export OMPI_MCA_oob_tcp_if_include={name}  # mpirun's own talk: --system.interface\n"
    text += looking
    text += f"\n# Before the ranks start, once on every host.\n{format_command_lines(once)}\n" if job.between else ""
    text += f"\n{STARTERS['mpirun'].notes(job)}{format_command_lines(command)} &\n{STAY_WITH_MPIRUN}"
    hosts = "".join(f"{address} slots={job.per_node}\n" for address in addresses)
    return LaunchFile("run.sh", text, runs=True), LaunchFile("hostfile", hosts)


def _check(job: LaunchJob) -> None:
    """Check what needs no answer from the hosts. Raises PacelineError: no hosts, too many or few."""
    if job.hostfile is None:
        raise PacelineError("--through hostfile: which hosts? Name them with --hostfile FILE, one a line: `node1 slots=8`.")
    _hosts_of(job)
    address = next((variable.value for variable in job.environ if variable.name == "MASTER_ADDR"), "")
    if job.start == "mpirun" and job.nodes > 1 and LOOPBACK.fullmatch(address):
        raise PacelineError(
            f"MASTER_ADDR={address}: that is another machine on every host. Unset it: the first host is taken."
        )


def _begin(job: LaunchJob, paths: tuple[Path, ...]) -> RunningJob:
    """Ask all hosts whether they can take part, then start. Raises PacelineError with a line for each that cannot."""
    check_hosts(job, _hosts_of(job), choose_store_port(job) if job.start == "torchrun" and job.nodes > 1 else job.port)
    return run_script(job, paths)


NO_SSH = "--through hostfile: there is no ssh on this machine (Debian: openssh-client)."
HOSTFILE = Scheduler(_files, _check, _begin, missing=require_programs(NO_SSH, "ssh"))

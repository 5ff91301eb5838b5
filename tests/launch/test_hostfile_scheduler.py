"""The files of a launch over ssh: what stands in them, and that a shell reads them as they are meant."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from messages import check_lines, check_text, raises

import paceline
from paceline._utils.errors import PacelineError
from paceline.config.system import System
from paceline.launch.job import EnvVariable, LaunchJob
from paceline.launch.runner import check_combination, make_files
from paceline.launch.schedulers import hostfile
from paceline.launch.schedulers import hostfile as asking
from paceline.launch.schedulers.hostfile import Host, check_hosts


@pytest.fixture
def job(tmp_path) -> LaunchJob:
    """24 nodes of 8 ranks, as a published run had."""
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"172.31.0.{number} slots=8\n" for number in range(1, 25)))
    return LaunchJob(
        ("train", "maskrcnn-gluoncv-192", "--output-dir", "/shared/runs/mrcnn"),
        Path("/shared/runs/mrcnn"),
        "maskrcnn-gluoncv-192",
        nodes=24,
        per_node=8,
        through="hostfile",
        start="mpirun",
        hostfile=hosts,
        environ=(EnvVariable("NCCL_DEBUG", "VERSION", "--system.env"), EnvVariable("TEXT", "a b $HOME", "--system.env")),
        python=("/opt/venv/bin/python",),
        workdir=Path("/shared/my work"),
    )


def text_of(job: LaunchJob, name: str) -> str:
    (text,) = [file.text for file in make_files(job) if file.name == name]
    assert not name.endswith(".sh") or subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    return text


def test_24_hosts_are_one_mpirun_line_with_the_variables_that_ranks_need_and_no_others(job, monkeypatch):
    monkeypatch.setenv("MY_OWN", "stays here")
    text = text_of(job, "run.sh")
    words = shlex.split(text.partition("\n\nmpirun ")[2].partition(" &\n")[0].replace("\\\n", ""))
    words = ["mpirun", *words]
    assert words[0] == "mpirun" and words[words.index("-np") + 1] == "192"
    assert words[words.index("--hostfile") + 1] == "/shared/runs/mrcnn/launch/hostfile"
    assert words[words.index("--bind-to") + 1] == "none" and "--tag-output" in words
    forwarded = {after for before, after in itertools.pairwise(words) if before == "-x"}
    assert {"NCCL_DEBUG", "TEXT", "MASTER_ADDR", "TERM"} <= forwarded and "MY_OWN" not in text
    for name in forwarded - {"PACELINE_SECRET"}:
        assert re.search(rf"^export {name}=\S.*  # \S", text, re.MULTILINE), name
    assert "export MASTER_ADDR=172.31.0.1 " in text
    assert "cd '/shared/my work'\n" in text
    assert text_of(job, "hostfile").splitlines() == [f"172.31.0.{number} slots=8" for number in range(1, 25)]


def test_rank_0_is_found_at_the_first_host_or_where_the_shell_says(job):
    for environ, address in ((job.environ, "172.31.0.1"), ((EnvVariable("MASTER_ADDR", "ib-1", "x"),), "ib-1")):
        text = text_of(replace(job, environ=environ), "run.sh")
        assert re.findall(r"^export MASTER_ADDR=(\S+)", text, re.MULTILINE) == [address]
        assert text.count("-x MASTER_ADDR ") == 1
    with raises(PacelineError, "MASTER_ADDR=localhost", "different machine"):
        hostfile.HOSTFILE.check(replace(job, environ=(EnvVariable("MASTER_ADDR", "localhost", "x"),)))


def test_a_command_before_the_ranks_runs_once_on_each_host(job):
    text = text_of(replace(job, between="echo 'x y' >/tmp/z"), "run.sh")
    words = shlex.split(text.partition("once on every host.\n")[2].partition("\n\nmpirun")[0].replace("\\\n", ""))
    assert words[words.index("-np") :] == ["-np", "24", "--map-by", "ppr:1:node", "sh", "-c", "echo 'x y' >/tmp/z"]
    node = text_of(replace(job, between="echo 'x y' >/tmp/z", start="torchrun"), "node.sh")
    assert "\necho 'x y' >/tmp/z  # before" in node


def test_mpirun_itself_talks_over_the_interface_that_was_asked_for(job):
    assert "oob_tcp_if_include" not in text_of(job, "run.sh")
    text = text_of(replace(job, system=System(interface="ens5")), "run.sh")
    assert "export OMPI_MCA_oob_tcp_if_include=ens5 " in text
    text = text_of(replace(job, system=System(interface="x;touch HIT")), "run.sh")  # check_system refuses it before
    assert "export OMPI_MCA_oob_tcp_if_include='x;touch HIT' " in text


def test_torchrun_runs_once_on_each_host_with_that_hosts_number(job, tmp_path):
    job = replace(job, start="torchrun", nodes=3, port=29511)
    run = shlex.split(text_of(job, "run.sh").partition("exec ")[2].replace("\\\n", ""))
    assert run[:3] == [sys.executable, "-m", "paceline.launch.schedulers.ssh"]
    assert run[3:] == ["/shared/runs/mrcnn/launch", "/opt/venv/bin/python", "172.31.0.1", "172.31.0.2", "172.31.0.3"]
    node = text_of(job, "node.sh").replace("cd '/shared/my work'\n", "")
    assert node.count("torch.distributed.run") == 1
    # What a shell makes of it, with another program in place of torchrun.
    shown = node.replace("exec /opt/venv/bin/python", "exec env #")
    done = subprocess.run(["bash", "-s", "2"], input=shown, capture_output=True, text=True, check=True, timeout=10)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert found["TEXT"] == "a b $HOME" and found["PET_NODE_RANK"] == "2" and found["PET_NNODES"] == "3"
    assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == ("172.31.0.1", "29511")
    assert found["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] == "[${rank}] "


def test_runs_in_different_folders_have_different_ports(job):
    ports = {
        re.search(
            r"PET_MASTER_PORT=(\d+)", text_of(replace(job, start="torchrun", folder=Path(f"/runs/{number}")), "node.sh")
        )
        for number in range(3)
    }
    assert len({port[1] for port in ports if port}) == 3


def test_no_hostfile_no_ssh_and_too_few_hosts_are_refused_without_asking_anybody(job, monkeypatch):
    with pytest.raises(PacelineError, match="--hostfile FILE"):
        hostfile.HOSTFILE.check(replace(job, hostfile=None))
    with pytest.raises(PacelineError, match=r"--nodes 25: .*hosts lists 24 hosts"):
        hostfile.HOSTFILE.check(replace(job, nodes=25))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    check_text(hostfile.HOSTFILE.missing(job), "ssh")
    hostfile.HOSTFILE.check(job)  # its files can be written all the same
    with raises(PacelineError, "srun", "Slurm"):
        check_combination(replace(job, start="srun"))


@pytest.fixture
def here(job, tmp_path) -> LaunchJob:
    """A job of this machine alone, which needs no ssh."""
    job = replace(job, folder=tmp_path, workdir=tmp_path, nodes=1, start="torchrun", python=(sys.executable,))
    job.launch_folder.mkdir()
    return job


def said_of(job: LaunchJob, port: int = 0) -> str:
    with pytest.raises(PacelineError) as refused:
        check_hosts(job, (Host("127.0.0.1", 8),), port)
    return str(refused.value)


def test_a_host_that_can_take_part_is_asked_and_nothing_is_left_in_the_folder(here):
    path = EnvVariable("PYTHONPATH", str(Path(paceline.__file__).parents[1]), "for this test")
    check_hosts(replace(here, environ=(path,)), (Host("127.0.0.1", 8),), 0)
    assert list(here.launch_folder.iterdir()) == []


def test_what_a_host_lacks_is_said_in_one_line(here):
    # Where the paceline of this test is is said by PYTHONPATH or an installation; another one is found first.
    other = here.folder / "other" / "paceline"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "9.9"')
    strange = replace(here, environ=(EnvVariable("PYTHONPATH", str(other.parent), "for this test"),))
    assert check_text(said_of(strange), "127.0.0.1", "paceline 9.9", f"{paceline.__version__} on")
    (other / "__init__.py").write_text("raise ImportError('a\\x1b[2J\\nb')")
    said = said_of(strange)
    assert check_text(said, r"ImportError: a\x1b[2J\nb") and "\n" not in said
    assert check_text(said_of(replace(here, python=("/no/python",))), "127.0.0.1", "/no/python")
    assert check_text(said_of(replace(here, python=("false",))), "127.0.0.1", "false", "ssh")


def test_an_interface_that_a_host_does_not_have_is_named_with_those_that_it_has(here, monkeypatch):
    found = {
        "paceline": paceline.__version__,
        "torch": asking.importlib.metadata.version("torch"),
        "token": "t",
        "port": "",
    }
    answer = {**found, "workdir": True, "programs": [], "interfaces": ["lo", "eth0"], "python": "p", "why": ""}
    job = replace(here, system=System(interface="ens5"))
    assert check_lines(
        asking._missing(job, json.loads(json.dumps(answer)), "t"), ("ens5", "--system.interface", "lo, eth0")
    )
    lacking = asking._missing(replace(job, start="mpirun", system=System()), answer, "t")
    assert check_lines(lacking, ("Open MPI", "--launcher torchrun"))

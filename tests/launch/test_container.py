"""What `paceline doctor` says inside a container: nothing where all is as on the host, a line and a flag where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from messages import check_line, check_text

from paceline._utils.errors import PacelineError
from paceline.launch.containers import host_facts
from paceline.launch.doctor.local_checks import compare_host, read_host

HOST = {
    "driver": "580.65.06",
    "libcuda": "580.65.06",
    "gpus": "8",
    "infiniband": "9",
    "mpi": "Open MPI 4.1.4",
    "pmix": "4.2.2",
    "user": "1000:1000",
    "memlock": "unlimited",
    "stack": "8192",
    "shm_mib": "515000",
}


def test_a_container_like_its_host_has_one_line() -> None:
    ((level, text),) = compare_host(HOST, HOST)
    assert level == "ok" and check_text(text, "driver 580.65.06", "mpirun Open MPI 4.1.4", "PMIx 4.2.2", "user 1000:1000")


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({"gpus": "", "libcuda": ""}, "problem", "--gpus all"),
        ({"gpus": "4"}, "problem", "8 GPUs ... 4"),
        ({"libcuda": ""}, "problem", "nvidia-container-toolkit"),
        ({"libcuda": "550.54.15"}, "problem", "550.54.15 ... 580.65.06"),
        ({"infiniband": ""}, "note", "--device /dev/infiniband"),
        ({"mpi": "Open MPI 5.0.8"}, "note", "mpirun Open MPI 5.0.8 ... Open MPI 4.1.4"),
        ({"pmix": "5.0.1"}, "note", "PMIx ... 5.0.1 ... 4.2.2"),
        ({"user": "0:0"}, "note", '--user "$(id -u):$(id -g)"'),
        ({"memlock": "8192"}, "note", "--ulimit memlock=-1"),
        ({"shm_mib": "64"}, "note", "--ipc host"),
    ],
    ids=["no GPUs", "fewer", "no library", "own library", "no IB", "mpi", "pmix", "user", "memlock", "shm"],
)
def test_each_difference_is_a_line_with_its_flag(change: dict[str, str], level: str, text: str) -> None:
    told = compare_host(HOST, {**HOST, **change})[1:]
    check_line([line for found, line in told if found == level], text)
    assert len(told) <= len(change)


def test_what_the_host_did_not_tell_is_not_compared() -> None:
    nothing = dict.fromkeys(HOST, "")
    assert [level for level, _ in compare_host(nothing, {**HOST, "memlock": "8192"})] == ["note"]
    assert compare_host({"user": HOST["user"]}, nothing | {"user": HOST["user"]}) == [
        ("ok", "same as the host: user 1000:1000")
    ]


@pytest.mark.parametrize("text", ["", "x", "[1]", '{"user": 3}', '{"a": "' + "b" * 20_000 + '"}', '{"user": NaN}'])
def test_facts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(PacelineError, match="PACELINE_HOST=") as told:
        read_host(text)
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


def test_a_hosts_words_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in str(read_host(json.dumps({"mpi": "\x1b[2J"})))


def test_the_program_runs_without_paceline_and_tells_what_python_tells() -> None:
    """As container.sh does: another interpreter process, isolated, in an empty environment."""
    file = Path(host_facts.__file__)
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-I", "-S", str(file)], env=path, capture_output=True, text=True, check=True)
    told = read_host(done.stdout)
    assert told == host_facts.collect_host_facts() and told["user"] == f"{os.getuid()}:{os.getgid()}"


def test_doctor_compares_where_the_host_told_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.launch.doctor.local_checks import _host

    monkeypatch.delenv(host_facts.VARIABLE, raising=False)
    assert _host() == []
    monkeypatch.setenv(host_facts.VARIABLE, json.dumps({"gpus": "8"}))
    assert any(finding.level == "problem" and "8 GPUs" in finding.text for finding in _host())
    monkeypatch.setenv(host_facts.VARIABLE, "{")
    assert [finding.level for finding in _host()] == ["problem"]

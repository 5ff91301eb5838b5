"""What nvidia-smi and hl-smi print, read: written here after its own format, and asked of stand-ins for the program."""

from __future__ import annotations

import stat

import pytest
from messages import check_lines
from tiny_runs import command

from paceline.distributed.comm.launcher import SINGLE
from paceline.launch.containers.host_facts import get_kernel_driver
from paceline.launch.doctor.node import (
    collect_node_facts,
    explain_old_driver,
    format_links,
    get_gaudi_driver,
    query_gpus,
    query_links,
    read_gpus,
    read_links,
)

QUERY = """\
0, NVIDIA H100 80GB HBM3, 550.54.15, 1980, 1980, 0, 0x0000000000000004
1, NVIDIA H100 80GB HBM3, 550.54.15, 345, 1980, 2, 0x0000000000000001
2, NVIDIA A30, 550.54.15, [N/A], [Not Supported], [N/A], 0x0000000000000068
"""
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-55,112-167\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tSYS\t0-55,112-167\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tSYS\t56-111,168-223\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
)


def test_a_query_gives_clocks_errors_and_reasons():
    at_work, idle, hot = read_gpus(QUERY)
    assert (at_work.name, at_work.driver, at_work.sm_mhz) == ("NVIDIA H100 80GB HBM3", "550.54.15", 1980)
    assert at_work.slowed() == [] and check_lines(at_work.usual(), ("power",))
    assert idle.usual() == ["idle"] and idle.errors == 2
    assert hot.sm_mhz is hot.most_sm_mhz is hot.errors is None
    assert len(hot.slowed()) == 3 and all("slowed down" in reason for reason in hot.slowed())


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "0, a, b\n", "x, " * 6 + "y\n", QUERY.replace(", 0x", ",, 0x")]
)
def test_what_is_no_answer_has_no_gpus(text):
    assert read_gpus(text) == []


def test_unknown_reasons_are_no_reasons():
    (gpu,) = read_gpus("0, NVIDIA T4, 470.1, 300, 1590, 0, [N/A]")
    assert gpu.reasons is None and gpu.slowed() == gpu.usual() == []


def test_links_between_gpus_are_read_without_adapters_and_colours():
    links = read_links(TOPOLOGY)
    assert links == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}
    assert format_links(links) == "2 x SYS, 1 x NV18"
    assert format_links({(0, 1): "NV18", (0, 2): "NV18"}) == "NV18 between all GPUs"
    assert read_links("GPU0\t X \t0-3\t0\n") == {} and format_links({}) == "" and read_links("GPU0\nGPU1\n") == {}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a shell script in nvidia-smi's place."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "query.txt").write_text(QUERY)

    def make(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return make


def test_an_older_driver_is_asked_by_the_reasons_former_name(stand_in):
    stand_in('case "$*" in *event_reasons*) echo "Field is not a valid field to query."; exit 2;; esac; cat query.txt')
    assert len(query_gpus()) == 3


def test_a_program_that_is_absent_fails_or_hangs_says_nothing(stand_in, monkeypatch):
    assert query_gpus() == [] and query_links() == {}
    stand_in("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9")
    assert query_gpus() == []
    monkeypatch.setattr("paceline.launch.doctor.node.ANSWER_SECONDS", 0.2)
    stand_in("exec sleep 60")
    assert query_links() == {}


HL_SMI = """\
+-----------------------------------------------------------------------------+
| HL-SMI Version:                              hl-1.18.0-fw-53.1.1.1          |
| Driver Version:                                     1.18.0-ee698fb          |
|-------------------------------+----------------------+----------------------+
"""


def test_doctor_has_the_versions_that_hl_smi_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = command(capsys, "doctor", "--system", "gaudi8")
    assert said.code == 0 and "hl-smi" in said.out and "SynapseAI" not in said.out
    assert get_gaudi_driver() == "" and "hl-smi" not in command(capsys, "doctor").out
    program = tmp_path / "hl-smi"
    program.write_text(f"#!/bin/sh\ncat <<'TABLE'\n{HL_SMI}TABLE\n")
    program.chmod(0o755)
    assert "driver 1.18.0-ee698fb, SynapseAI 1.18.0" in command(capsys, "doctor", "--system", "gaudi8").out
    assert collect_node_facts(SINGLE, tmp_path).driver == get_gaudi_driver() == "1.18.0-ee698fb, SynapseAI 1.18.0"
    program.write_text("#!/bin/sh\necho no device\n")
    assert get_gaudi_driver() == ""


@pytest.mark.parametrize(
    ("driver", "torch", "refused"),
    [
        ("12.4", "12.1", False), ("12.4", "12.8", False), ("13.0", "12.6", False), ("12.4", "13.0", True),
        ("11.8", "12.1", True), ("", "12.1", False), ("12.4", "", False), ("unknown", "12.1", False),
    ],
)  # fmt: skip
def test_a_driver_runs_its_own_major_version_and_older_ones(driver, torch, refused):
    assert bool(explain_old_driver(driver, torch)) == refused
    assert not refused or (
        driver in explain_old_driver(driver, torch) and f"CUDA {driver[:2]}" in explain_old_driver(driver, torch)
    )


def test_the_drivers_version_is_read_from_its_module(tmp_path):
    file = tmp_path / "version"
    assert get_kernel_driver([str(file)]) == ""
    file.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.3.0\n"
    )
    assert get_kernel_driver([str(file)]) == "550.54.15"

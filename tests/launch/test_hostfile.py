"""Hostfiles: every spelling of the two MPIs, and each line that is not understood named with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises

from paceline._utils.errors import PacelineError
from paceline.launch.schedulers.hostfile import Host, read_hostfile, select_hosts


def hosts_in(folder: Path, text: str, per_node: int = 8) -> tuple[Host, ...]:
    path = folder / "hosts"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_hostfile(path, per_node)


def test_the_spellings_of_open_mpi_and_mpich_say_the_same(tmp_path):
    text = "# the rack\n\n10.0.0.1 slots=4\r\n  node-2.rack:4   # the second\nnode_3\n"
    assert hosts_in(tmp_path, text, 4) == (Host("10.0.0.1", 4), Host("node-2.rack", 4), Host("node_3", 4))


def test_the_24_hosts_of_a_published_run(tmp_path):
    found = hosts_in(tmp_path, "".join(f"172.31.0.{number} slots=8\n" for number in range(1, 25)))
    assert len(found) == 24 and sum(host.slots for host in found) == 192


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("node1 slots=0", "'0' ... slots"),
        ("node1 slots=-1", "'-1'"),
        ("node1 slots=8.0", "'8.0'"),
        ("node1 slots=9999999", "'9999999'"),
        ("node1 slots=\u0664", "number of"),
        ("node1 slots = 8", "'slots'"),
        ("node1 max_slots=8", "'max_slots=8'"),
        ("node1 8", "'8'"),
        ("node1:8 slots=8", "slots ... twice"),
        ("node1 slots=8 slots=8", "slots ... twice"),
        ("node1:", "''"),
        ("node1:ssh", "'ssh'"),
        ("fe80::1", "'fe80::1' is an IPv6 address"),
        ("[fe80::1]:8", "is an IPv6 address"),
        ("root@node1", "~/.ssh/config"),
        ("-oProxyCommand=reboot", "host name"),
        ("node1,node2", "'node1,node2'"),
        ("node1;reboot", "host name"),
        ("$(reboot)", "host name"),
        ("n\x1b[31mode", "'n\\x1b[31mode'"),
        ("a" * 256, "host name"),
        ("NODE0 slots=2", "NODE0 ... line 1"),
    ],
    ids=range(22),
)
def test_a_line_that_is_not_understood_is_named(tmp_path, line, why):
    with pytest.raises(PacelineError) as refused:
        hosts_in(tmp_path, f"node0\n\n{line}\n")
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}/hosts, line 3: ") and "\n" not in text and check_text(text, why)


@pytest.mark.parametrize("text", ["", "# nobody\n\n", "\udcff\udcfe\n"], ids=["empty", "comments", "no-text"])
def test_a_file_without_hosts_says_what_is_expected(tmp_path, text):
    with raises(PacelineError, "line", "node1"):
        hosts_in(tmp_path, text)


def test_files_that_cannot_be_read_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PacelineError, match=f"--hostfile {path}: "):
            read_hostfile(path, 8)
    (tmp_path / "long").write_bytes(b"#" * (2**20 + 1))
    with raises(PacelineError, "1,048,577 bytes"):
        read_hostfile(tmp_path / "long", 8)


@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
@examples(100)
def test_any_text_gives_hosts_or_one_clear_line(text, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    try:
        found = hosts_in(folder, text)
    except PacelineError as refused:
        assert "\n" not in str(refused)
        return
    assert found
    for host in found:
        assert host.address[0] != "-" and host.address.isascii() and host.slots >= 1


def test_a_job_takes_the_first_hosts(tmp_path):
    hosts = hosts_in(tmp_path, "a:8\nb:8\nc:2\n")
    assert select_hosts(hosts, 2, 8, tmp_path / "hosts") == hosts[:2]


@pytest.mark.parametrize(
    ("text", "nodes", "why"),
    [
        ("a\nb\n", 3, "--nodes 3 ... hosts lists 2 hosts ... --nodes 2"),
        ("a\nb slots=4\n", 2, "b has 4 slots ... 8 ranks"),
        ("a\nlocalhost\n", 2, "localhost ... machine"),
        ("a\n127.0.0.2\n", 2, "127.0.0.2 ... machine"),
    ],
    ids=["too-few", "too-small", "localhost", "loopback"],
)
def test_a_job_that_the_hosts_cannot_take_is_refused(tmp_path, text, nodes, why):
    with raises(PacelineError, why):
        select_hosts(hosts_in(tmp_path, text), nodes, 8, tmp_path / "hosts")


def test_localhost_alone_is_one_host(tmp_path):
    assert select_hosts(hosts_in(tmp_path, "localhost:8"), 1, 8, tmp_path / "hosts") == (Host("localhost", 8),)

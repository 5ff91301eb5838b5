"""Variables of a System: which, when, what stays, what is refused; and that nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._utils.errors import RecipeError
from paceline.config.system import System, check_system, parse_env
from paceline.distributed.comm.environment import apply_environment, recommended_variables
from paceline.distributed.comm.interfaces import list_interfaces
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.device.systems import c4140, dgx_a100, p3dn

TWO_NODES = replace(SINGLE, nodes=2, world=2)
LOOPBACK = "lo" if "lo" in list_interfaces() else "lo0"


def asked(system: System, nodes: int = 1, **more) -> dict[str, str]:
    found = recommended_variables(system, nodes=nodes, **more)
    assert all(variable.why for variable in found)
    return {variable.name: variable.value for variable in found}


def test_an_exchange_that_is_captured_asks_nccl_not_to_watch_it():
    assert (
        asked(System("cuda", cuda_graph="on")) == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"} and asked(System("cuda")) == {}
    )


def test_a_published_machine_on_several_nodes_asks_for_its_fabric_interface_and_own_variables():
    found = asked(p3dn(), 24, named=False)
    assert found["FI_PROVIDER"] == "efa" and found["FI_EFA_TX_MIN_CREDITS"] == "64"
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "ens5"
    assert asked(dgx_a100(), 8, named=False) == {
        "NCCL_IB_DISABLE": "0", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0",
    }  # fmt: skip
    assert asked(c4140(), 4) == {}  # its sheet says nothing


def test_one_node_needs_no_fabric_and_no_interface_that_nobody_named():
    assert asked(dgx_a100(), 1, named=False) == {}
    assert asked(dgx_a100(), 1, named=True).keys() == {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}


def test_plain_sockets_are_asked_for_as_such_and_gaudis_library_has_its_own_name():
    tcp = System("cuda", fabric="tcp", interface="eth1")
    assert asked(tcp, 2) == {
        "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1",
    }  # fmt: skip
    # NCCL would take eth10 too.
    assert asked(tcp, 2, there=["lo", "eth1", "eth10"])["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert asked(tcp, 2, there=["lo", "eth1", "eth10"])["GLOO_SOCKET_IFNAME"] == "eth1"
    gaudi = System("hpu", fabric="roce", interface="eth1")
    assert asked(gaudi, 2) == {"HCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}


def test_what_is_given_by_hand_stands_over_what_fabric_and_interface_bring():
    system = System("cuda", fabric="tcp", interface="eth1", env=("NCCL_NET=IB", "GLOO_SOCKET_IFNAME=eth0"))
    found = asked(system, 2)
    assert (found["NCCL_NET"], found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("IB", "eth0", "eth1")


def test_variables_are_there_inside_and_gone_after_and_what_was_set_stays_and_is_said():
    environ = {"NCCL_DEBUG": "INFO", "SAME": "1", "HOME": "/home/me"}
    before = dict(environ)
    system = System(env=("NCCL_DEBUG=WARN", "SAME=1", "EMPTY=", "PATHS=a=b:c"), interface=LOOPBACK)
    with apply_environment(system, SINGLE, named=True, environ=environ) as notes:
        assert environ == {
            **before, "EMPTY": "", "PATHS": "a=b:c", "NCCL_SOCKET_IFNAME": LOOPBACK, "GLOO_SOCKET_IFNAME": LOOPBACK,
        }  # fmt: skip
        assert len(notes) == 1 and "NCCL_DEBUG=INFO" in notes[0] and "WARN" in notes[0]
    assert environ == before
    with pytest.raises(ZeroDivisionError), apply_environment(system, SINGLE, named=True, environ=environ):
        _ = 1 / 0
    assert environ == before


@pytest.mark.parametrize(("launch", "named"), [(SINGLE, True), (TWO_NODES, False)])
def test_an_interface_that_is_not_here_is_refused_with_those_that_are(launch, named):
    environ: dict[str, str] = {}
    system = System(interface="nope0", env=("A=1",))
    with pytest.raises(RecipeError) as refusal, apply_environment(system, launch, named=named, environ=environ):
        pass
    assert "nope0" in str(refusal.value) and LOOPBACK in str(refusal.value) and "\n" not in str(refusal.value)
    assert environ == {}


def test_a_menus_interface_is_not_looked_for_on_one_node():
    with apply_environment(System(interface="nope0"), SINGLE, named=False, environ={}) as notes:
        assert notes == []


@pytest.mark.parametrize(
    "pair", ["A", "=1", "A B=1", "1A=2", "A-B=1", "RANK=1", "LOCAL_WORLD_SIZE=2", "SLURM_PROCID=1", "OMPI_COMM_WORLD_RANK=0",
             "MASTER_PORT=1", "PMI_RANK=0", "PACELINE_SECRET=0123456789abcdef", "A=\0"]
)  # fmt: skip
def test_what_is_no_variable_or_the_launchers_is_refused(pair):
    with pytest.raises(RecipeError, match=r"--system\.env"):
        check_system(System(env=(pair,)))


def test_a_variable_with_two_values_is_refused_and_the_same_twice_is_one():
    with pytest.raises(RecipeError, match="given twice"):
        check_system(System(env=("A=1", "A=2")))
    assert parse_env(System(env=("A=1", "A=1"))) == {"A": "1"}


@given(st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]{0,8}X\Z"), st.text(st.characters(exclude_characters="\0"))))
def test_any_pairs_come_back_as_they_were_given(wanted):
    assert parse_env(System(env=tuple(f"{name}={value}" for name, value in wanted.items()))) == wanted


@pytest.mark.parametrize(
    "changes", [{"ddp_bucket_mib": 0}, {"ddp_bucket_mib": float("nan")}, {"interface": "a b"}, {"interface": "x" * 16},
    {"sockets": -1},
                {"host_memory_gib": float("inf")}, {"threads_per_core": 10**9}]
)  # fmt: skip
def test_numbers_and_names_that_no_machine_has_are_refused(changes):
    with pytest.raises(RecipeError, match=rf"--system\.{next(iter(changes)).replace('_', '-')}"):
        check_system(System(**changes))

"""A rank that does not reach the others directly says over which interface it tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from messages import check_text

from paceline._utils.errors import RankError
from paceline.distributed.comm.gloo import explain_unreachable
from paceline.distributed.comm.launcher import SINGLE

TWO_HOSTS = replace(SINGLE, kind="torchrun", rank=1, world=2, node=1, nodes=2, address="node1", port=29500)
# As gloo writes it (torch 2.11 to 2.15).
GLOO = (
    "[enforce fail at /w/third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: No route to host"
)


def test_gloos_error_between_hosts_names_the_interface(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "docker0")
    with pytest.raises(RankError) as refused, explain_unreachable(TWO_HOSTS):
        raise RuntimeError(GLOO)
    first, second = str(refused.value).splitlines()
    assert first.startswith("rank 1 (of 2) on ")
    assert check_text(first, "interface docker0", "(connect: No route to host)")
    assert "lo 127.0.0.1" in second and second.endswith("--system.interface NAME")


@pytest.mark.parametrize(("launch", "text"), [(TWO_HOSTS, "out of memory"), (SINGLE, GLOO)], ids=["other", "one-host"])
def test_any_other_error_passes_as_it_is(launch, text):
    with pytest.raises(RuntimeError) as passed, explain_unreachable(launch):
        raise RuntimeError(text)
    assert str(passed.value) == text

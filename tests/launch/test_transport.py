"""What NCCL's log says of the network it chose. The lines are written here after NCCL's own format."""

from __future__ import annotations

import pytest
from messages import check_text

from paceline.launch.doctor.multi_node import LONGEST_WARNING, parse_nccl_log

BOTH = "gpu01:4711:4711 [0] NCCL INFO Bootstrap : Using ens5:10.1.2.3<0>\n"
IB = (
    BOTH
    + "gpu01:4711:4750 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ens5:10.1.2.3<0>\n"
    + "gpu01:4711:4750 [0] NCCL INFO Using network IB\n"
    + "gpu01:4711:4750 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA\n"
    + "gpu01:4711:4750 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
)
EFA = (
    BOTH
    + "ip-10-1:9:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\n"
    + "ip-10-1:9:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)\n"
    + "ip-10-1:9:9 [0] NCCL INFO Initialized NET plugin AWS Libfabric\n"
    + "ip-10-1:9:9 [0] NCCL INFO Assigned NET plugin AWS Libfabric to comm\n"
    + "ip-10-1:9:9 [0] NCCL INFO Using network AWS Libfabric\n"
)
SOCKETS = (
    BOTH
    + "gpu01:4711:4750 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.\n"
    + "gpu01:4711:4750 [0] NCCL INFO NET/IB : No device found.\n"
    + "gpu01:4711:4750 [0] NCCL INFO NET/Socket : Using [0]ens5:10.1.2.3<0> [1]ib0:192.168.0.3<0>\n"
    + "gpu01:4711:4750 [0] NCCL INFO Using network Socket\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IB, "NCCL uses InfiniBand on mlx5_0, mlx5_1, GPUDirect"),
        (IB.replace("/IB [", "/RoCE [").replace("GDRDMA", "0"), "NCCL uses RoCE on mlx5_0, mlx5_1"),
        (IB.replace("mlx5_1:1/IB", "mlx5_1:1/RoCE"), "NCCL uses InfiniBand and RoCE on mlx5_0, mlx5_1, GPUDirect"),
        (EFA, "NCCL uses OFI/efa"),
        (EFA.replace("Using network AWS Libfabric\n", "\n"), "NCCL uses OFI/efa"),
        (EFA.replace("efa,", "tcp,"), "NCCL uses OFI/tcp"),
        (SOCKETS, "NCCL fell back to sockets on ens5, ib0"),
        (SOCKETS.replace("Using network Socket", "Assigned NET plugin Socket to comm"), "NCCL fell back to sockets on ens5, ib0"),
        (SOCKETS.replace("Socket\n", "Quick\n"), "NCCL uses Quick"),
        ("", "NCCL did not report its network"),
        ("hello\n\x1b[31m NCCL\n", "NCCL did not report its network"),
    ],
    ids=["ib", "roce", "mixed", "efa", "efa-newer", "ofi-tcp", "sockets", "sockets-newer", "other", "empty", "foreign"],
)  # fmt: skip
def test_the_network_that_nccl_chose_is_named(text, words):
    assert parse_nccl_log(text).format_line() == words


def test_of_one_node_the_way_inside_it_counts():
    assert parse_nccl_log(IB).within == ("P2P",) and parse_nccl_log(IB).bootstrap == "ens5"
    assert check_text(parse_nccl_log(IB).format_line(nodes=1), "NCCL", "node", "P2P")
    assert "unknown" in parse_nccl_log("").format_line(nodes=1)


def test_a_socket_chosen_beside_adapters_is_sockets_all_the_same():
    text = IB.replace("Using network IB", "Using network Socket") + SOCKETS
    assert parse_nccl_log(text).format_line().startswith("NCCL fell back to sockets")


def test_warnings_are_kept_and_cut():
    warned = "".join(f"gpu01:1:2 [3] misc/socket.cc:57 NCCL WARN number {number} {'x' * 999}\n" for number in range(9))
    found = parse_nccl_log(IB + warned).warnings
    assert len(found) == 3 and found[0].startswith("number 0 xx") and len(found[0]) == LONGEST_WARNING

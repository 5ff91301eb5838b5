"""The network adapter near each device: DGX A100's, as its PCI tree has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_machines import add_adapter, add_device

from paceline.distributed.device.affinity import find_nearest_adapters, make_adapter_variables, read_adapters, read_device

# Below one PCI switch: two devices and two adapters. mlx5_4, 5, 10 and 11 lead to storage and have root ports of their own.
SWITCHES = (
    ("pci0000:00/0000:00:01.1/0000:01:00.0", 3, ("07", "0f"), (("mlx5_0", "0c"), ("mlx5_1", "12"))),
    ("pci0000:40/0000:40:01.1/0000:41:00.0", 1, ("47", "4e"), (("mlx5_2", "4b"), ("mlx5_3", "54"))),
    ("pci0000:80/0000:80:01.1/0000:81:00.0", 7, ("87", "90"), (("mlx5_6", "8d"), ("mlx5_7", "94"))),
    ("pci0000:b0/0000:b0:01.1/0000:b1:00.0", 5, ("b7", "bd"), (("mlx5_8", "ba"), ("mlx5_9", "cc"))),
)
ADDRESSES = [f"0000:{bus}:00.0" for _, _, devices, _ in SWITCHES for bus in devices]


@pytest.fixture
def dgx_a100(tmp_path) -> Path:
    for switch, node, devices, adapters in SWITCHES:
        for bus in devices:
            add_device(tmp_path, f"0000:{bus}:00.0", f"{switch}/0000:02:{bus[0]}0.0", node)
        for name, bus in adapters:
            add_adapter(tmp_path, name, f"0000:{bus}:00.0", f"{switch}/0000:02:{bus[0]}8.0", node)
    add_adapter(tmp_path, "mlx5_4", "0000:61:00.0", "pci0000:60/0000:60:03.2", 1)
    add_adapter(tmp_path, "mlx5_10", "0000:e1:00.0", "pci0000:e0/0000:e0:03.1", 4)
    return tmp_path


def test_each_device_has_the_adapter_below_its_switch(dgx_a100):
    adapters = read_adapters("ib", dgx_a100)
    assert [adapter.name for adapter in adapters] == [f"mlx5_{n}" for n in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)]
    chosen = find_nearest_adapters(adapters, [read_device(address, dgx_a100) for address in ADDRESSES])
    # The list that bind.sh has for this machine: mlx5_0, 1, 2, 3, 6, 7, 8, 9.
    assert [adapter.name for adapter in chosen] == [f"mlx5_{n}" for n in (0, 1, 2, 3, 6, 7, 8, 9)]
    assert make_adapter_variables(chosen, 5) == {
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{n}:1" for n in (0, 1, 2, 3, 6, 7, 8, 9)),
        "UCX_NET_DEVICES": "mlx5_7:1",
    }


def test_other_link_layers_and_links_that_are_down_are_passed_over(dgx_a100):
    add_adapter(dgx_a100, "rocep1", "0000:05:00.0", "pci0000:00/0000:00:02.0", 3, layer="Ethernet")
    add_adapter(dgx_a100, "mlx5_20", "0000:08:00.0", SWITCHES[0][0], 3, state="1: DOWN")
    assert [adapter.name for adapter in read_adapters("roce", dgx_a100)] == ["rocep1"]
    assert "mlx5_20" not in [adapter.name for adapter in read_adapters("ib", dgx_a100)]


def test_where_no_pci_tree_is_known_the_numa_node_decides(tmp_path):
    for number, node in ((0, 1), (1, 0)):
        add_adapter(tmp_path, f"mlx5_{number}", f"0000:0{number}:00.0", "virtual", node)
    add_device(tmp_path, "0000:07:00.0", "virtual", 0)
    (only,) = find_nearest_adapters(read_adapters("ib", tmp_path), [read_device("0000:07:00.0", tmp_path)])
    assert only.name == "mlx5_1"


def test_a_machine_without_adapters_has_none(tmp_path):
    assert read_adapters("ib", tmp_path) == ()

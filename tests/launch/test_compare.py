"""Nodes side by side: facts made up, as of machines that are alike but for one thing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from messages import check_text

from paceline.config.system import System
from paceline.launch.doctor.compare import examine_nodes, format_node, merge_ranks, name_nodes, worst_level
from paceline.launch.doctor.node import Device, NodeFacts, node_from_json

GPU = Device("NVIDIA H100 80GB HBM3", 79.1, "1980 of 1980 MHz (at its power limit)")
NODE = NodeFacts(
    node=0,
    host="gpu00",
    ranks=8,
    versions={"paceline": "0.1.0", "torch": "2.11.0"},
    kernel="6.8.0",
    devices=(GPU,) * 8,
    driver_devices=8,
    driver="550.54.15",
    driver_cuda="12.4",
    torch_cuda="12.1",
    links="NV18 between all",
    sockets=2,
    numa_nodes=2,
    cores=112,
    allowed="0-223",
    shares=("0-223",) * 8,
    memory_gib=2015.0,
    huge_pages="madvise, 0 reserved",
    shm_gib=1007.5,
    run_gib=3400.0,
    temp_gib=400.0,
    adapters=("mlx5_0", "mlx5_1"),
    offset=2e-4,
    offset_error=1e-4,
    network="NCCL uses InfiniBand on mlx5_0, mlx5_1, GPUDirect",
    teraflops=(700.0,) * 8,
)


def nodes(count: int = 4, **odd: object) -> list[NodeFacts]:
    """Nodes that are alike, but for the second."""
    made = [replace(NODE, node=number, host=f"gpu{number:02d}") for number in range(count)]
    made[1] = replace(made[1], **odd)  # type: ignore[arg-type]
    return made


def test_nodes_that_are_alike_and_healthy_have_no_findings():
    assert examine_nodes(nodes()) == [] and examine_nodes(nodes(2)) == []
    assert examine_nodes(nodes(), System("cuda", ranks_per_node=8, sockets=2, host_memory_gib=2048)) == []


slow = replace(GPU, slowed=("slowed down by its hardware for heat",))
LIES = [
    ({"versions": {"paceline": "0.1.0", "torch": "2.10.0"}}, "problem", "torch: 2.10.0; 2.11.0 on 3 of 4"),
    ({"versions": {**NODE.versions, "timm": "1.0"}}, "problem", "timm: 1.0; absent on 3 of 4"),
    ({"devices": (GPU,) * 7, "ranks": 7, "driver_devices": 7}, "problem", "GPUs: 7 x NVIDIA H100 80GB HBM3 79 GiB; 8 x"),
    ({"devices": (GPU,) * 7}, "problem", "nvidia-smi lists 8 GPUs, but torch finds 7"),
    ({"devices": (GPU,) * 7, "driver_devices": 7}, "problem", "8 ranks for 7 GPUs"),
    ({"devices": (*(GPU,) * 7, slow)}, "problem", "GPU 7 is slowed down by its hardware for heat"),
    ({"devices": (replace(GPU, errors=3), *(GPU,) * 7)}, "problem", "GPU 0 has 3 uncorrected memory errors"),
    ({"driver": "535.1"}, "note", "driver: 535.1; 550.54.15 on 3 of 4"),
    ({"driver_cuda": "11.8"}, "problem", "the driver supports CUDA up to 11.8, and this torch needs 12.1"),
    ({"links": "28 x PHB"}, "problem", "links between GPUs: 28 x PHB"),
    ({"numa_nodes": 8}, "problem", "processors: 2 sockets, 8 NUMA nodes, 112 cores"),
    ({"allowed": "0-111", "shares": ("0-111",) * 8}, "problem", "binding: 112 hardware threads allowed"),
    (
        {"allowed": "0-7", "shares": tuple(map(str, range(8)))}, "problem",
        "the launcher bound each rank to one hardware thread (0, 1, 2, 3)",
    ),
    ({"memory_gib": 1007.0}, "problem", "1007 GiB of memory, 2015 GiB on the other nodes"),
    ({"huge_pages": "never"}, "note", "huge pages: never"),
    ({"shm_gib": 0.06}, "problem", "/dev/shm has 0.06 GiB"),
    ({"run_gib": 1.5}, "note", "1.5 GiB free for runs"),
    ({"run_trouble": "/runs is another folder here"}, "problem", "/runs is another folder here"),
    (
        {"network": "NCCL fell back to sockets on eth0"}, "problem",
        "NCCL fell back to sockets on eth0, although mlx5_0, mlx5_1 is available",
    ),
    ({"network": "NCCL uses RoCE on mlx5_0"}, "problem", "network: NCCL uses RoCE on mlx5_0; NCCL uses InfiniBand"),
    ({"network_trouble": ("a sum over NCCL was wrong",)}, "problem", "a sum over NCCL was wrong"),
    ({"network_warnings": ("no libnccl-net.so",)}, "note", "NCCL warning: no libnccl-net.so"),
    ({"adapters": ()}, "problem", "adapters: none; mlx5_0, mlx5_1 on 3 of 4"),
    ({"offset": 0.3}, "note", "the clock is 0.3 s ahead of rank 0 (±0.0001 s)"),
    ({"offset": -40.0}, "problem", "the clock is 40 s behind rank 0"),
    ({"offset": 1.0, "offset_error": 0.95}, "ok", ""),
    (
        {"teraflops": (*(700.0,) * 3, 610.0, *(700.0,) * 4)}, "problem",
        "GPU 3 computes 610 TFLOP/s in matrix multiplication (median: 700)",
    ),
    ({"kernel": "6.5.0"}, "note", "kernel: 6.5.0"),
    ({"links": "", "driver": "", "huge_pages": ""}, "ok", ""),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "level", "text"), LIES, ids=[f"{'-'.join(lie)}-{n}" for n, (lie, *_) in enumerate(LIES)])
def test_the_node_that_differs_is_named_with_what_differs(lie, level, text):
    found = examine_nodes(nodes(**lie))
    assert worst_level(found, 1) == level and all(finding.nodes == (1,) for finding in found), found
    assert [worst_level(found, other) for other in (0, 2, 3)] == ["ok"] * 3
    assert any(finding.text.startswith(text) for finding in found) or not text, found
    called = [finding.with_names(["a", "b", "c", "d"]) for finding in found]
    assert all(finding.about == "b" for finding in called)


def test_many_nodes_that_differ_alike_are_one_finding():
    made = [replace(NODE, node=n, host=f"gpu{n:02d}", driver="535" if 2 <= n < 8 else "550") for n in range(16)]
    (found,) = examine_nodes(made)
    assert (
        found.nodes == tuple(range(2, 8))
        and found.with_names(name_nodes(made)).about == "gpu02, gpu03, gpu04, gpu05 and 2 more"
    )


def test_a_system_says_what_its_nodes_should_have():
    found = examine_nodes(
        [replace(NODE, devices=(), driver_devices=-1)], System("cuda", 8, sockets=4, host_memory_gib=4096)
    )
    assert [finding.level for finding in found] == ["problem", "note", "note"]
    assert check_text(found[0].text, "0 GPUs", "8") and "4 sockets" not in found[0].text


def test_ranks_are_merged_into_nodes_and_nodes_on_one_host_keep_apart():
    ranks = [
        replace(NODE, node=rank // 2, allowed=str(rank), shares=(str(rank),), teraflops=(float(rank),)) for rank in range(4)
    ]
    ranks[3] = replace(ranks[3], network_trouble=("bad",))
    first, second = merge_ranks(ranks)
    assert (first.ranks, first.allowed, first.shares, first.teraflops) == (2, "0-1", ("0", "1"), (0.0, 1.0))
    assert second.network_trouble == ("bad",) and first.network_trouble == ()
    assert name_nodes([first, second]) == ["gpu00/0", "gpu00/1"] and name_nodes([first]) == ["gpu00"]


def test_facts_survive_the_journey_and_those_of_another_version_are_read_as_far_as_known():
    sent = json.loads(json.dumps(asdict(NODE)))
    assert node_from_json(sent) == NODE
    assert node_from_json({**sent, "moods": [1]}) == NODE
    assert node_from_json({name: value for name, value in sent.items() if name != "links"}) == replace(NODE, links="")


def test_a_line_tells_everything_once():
    text = format_node(NODE)
    assert "\n" not in text
    for part in (
        "8 ranks", "8 x NVIDIA H100 80GB HBM3 79 GiB", "NV18 between all", "driver 550.54.15 (CUDA 12.4, torch: CUDA 12.1)",
        "clocks 8 x 1980 of 1980 MHz", "700 to 700 TFLOP/s", "2 sockets, 2 NUMA nodes, 112 cores",
        "224 hardware threads allowed (all ranks on 0-223)", "2015 GiB memory", "huge pages madvise, 0 reserved",
        "/dev/shm 1007.5 GiB", "disk 3400 GiB, temporary 400 GiB", "NCCL uses InfiniBand", "clock +0.2 ms ±0.1", "torch 2.11.0",
    ):  # fmt: skip
        assert text.count(part) == 1, part
    bare = format_node(NodeFacts(0, "vm", 1, {}))
    assert "no GPU" in bare and "memory unknown" in bare and "no /dev/shm" in bare and "clock: reference" in bare


def test_cores_and_hardware_threads_are_compared_with_the_systems():
    system = System("cuda", len(NODE.devices), sockets=2, cores_per_socket=24, threads_per_core=2)
    right = replace(NODE, sockets=2, cores=48, threads=96)
    assert examine_nodes([right], system) == []
    (fewer,) = examine_nodes([replace(right, threads=48)], system)
    assert check_text(fewer.text, "48 hardware threads", "48 cores", "2 threads")
    (less,) = examine_nodes([replace(right, cores=40, threads=80)], system)
    check_text(less.text, "40 cores", "48")

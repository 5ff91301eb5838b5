"""Which cores each rank gets: recorded machines, and what must hold of any."""

from __future__ import annotations

from itertools import combinations

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from sysfs_machines import even_machine, lay_out

from paceline._utils.errors import RecipeError
from paceline.distributed.device.topology import (
    UNKNOWN,
    Core,
    Topology,
    count_processing_elements,
    count_usable_cores,
    format_cpu_list,
    parse_cpu_list,
    read_topology,
    select_cores,
    topology_from_sheet,
)

HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
FAR = {0: "10 21", 1: "21 10"}


def placed(topology, binding="exclusive", near=HALVES, world=8) -> list[str]:
    return [format_cpu_list(select_cores(topology, rank, world, binding, near)) for rank in range(world)]


def test_p3dn_gives_each_rank_the_cores_of_the_published_binding_script(tmp_path):
    # Local rank r: 6r..6r+5 and 48+6r..53+6r; ranks 0 to 3 on node 0 (GluonCV's ompi_bind_DGX1.sh, 2 x 24 cores).
    lay_out(tmp_path, even_machine(2, 24), FAR)
    topology = read_topology(tmp_path, allowed=range(96))
    assert placed(topology) == [f"{6 * r}-{6 * r + 5},{48 + 6 * r}-{53 + 6 * r}" for r in range(8)]
    assert placed(topology, "no-smt") == [f"{6 * r}-{6 * r + 5}" for r in range(8)]
    assert placed(topology, "node") == ["0-23,48-71"] * 4 + ["24-47,72-95"] * 4
    assert placed(topology, "off") == ["0-95"] * 8
    assert [count_usable_cores(topology, 3, 8, kind, HALVES) for kind in ("exclusive", "no-smt", "node", "off")] == [
        12,
        6,
        12,
        12,
    ]


@pytest.mark.parametrize("name, cores", [("DGX-1", 20), ("DGX H100", 56)])
def test_two_sockets_with_four_devices_each(tmp_path, name, cores):
    lay_out(tmp_path, even_machine(2, cores), FAR)
    topology, each = read_topology(tmp_path, allowed=range(4 * cores)), cores // 4
    firsts = [(each * r, 2 * cores + each * r) for r in range(8)]
    assert placed(topology) == [f"{a}-{a + each - 1},{b}-{b + each - 1}" for a, b in firsts], name


def test_dgx_2_has_sixteen_devices():
    near = (0,) * 8 + (1,) * 8
    assert placed(topology_from_sheet(2, 24, 2), near=near, world=16)[15] == "45-47,93-95"


def test_dgx_a100_whose_devices_are_not_near_the_nodes_of_their_number(tmp_path):
    # Two sockets of four nodes of 16 cores; `nvidia-smi topo -m` there has devices 0 and 1 on node 3, 2 and 3 on 1, ...
    near = (3, 3, 1, 1, 7, 7, 5, 5)
    rows = {a: " ".join("10" if a == b else "12" if a // 4 == b // 4 else "32" for b in range(8)) for a in range(8)}
    lay_out(tmp_path, even_machine(2, 64, nodes=4), rows)
    topology = read_topology(tmp_path, allowed=range(256))
    assert topology.nodes == tuple(range(8)) and topology.distance(0, 3) == 12 and topology.distance(3, 4) == 32
    assert placed(topology, "node", near)[:3] == ["48-63,176-191", "48-63,176-191", "16-31,144-159"]
    found = [select_cores(topology, rank, 8, "exclusive", near) for rank in range(8)]
    for rank, cpus in enumerate(found):
        firsts = [cpu for cpu in cpus if cpu < 128]
        nodes = [cpu // 16 for cpu in firsts]
        # Half from the device's own node; the other half from a node of the same socket that has no device.
        assert len(firsts) == 16 and nodes.count(near[rank]) == 8
        assert {node // 4 for node in nodes} == {near[rank] // 4}
        assert set(cpus) == {cpu + more for cpu in firsts for more in (0, 128)}
    assert sorted(cpu for cpus in found for cpu in cpus) == list(range(256))


def test_cores_that_are_numbered_in_turn_over_the_sockets(tmp_path):
    cores = [((cpu, cpu + 40), cpu % 2, cpu % 2) for cpu in range(40)]
    topology = read_topology(lay_out(tmp_path, cores, FAR), allowed=range(80))
    found = placed(topology, near=(0, 0, 1, 1), world=4)
    assert parse_cpu_list(found[0])[:10] == tuple(range(0, 20, 2)) and parse_cpu_list(found[2])[:10] == tuple(
        range(1, 21, 2)
    )


@pytest.mark.parametrize("nodes", [None, {0: "10"}], ids=["nothing said of nodes", "one node"])
def test_one_socket(tmp_path, nodes):
    cores = even_machine(1, 8)
    topology = read_topology(lay_out(tmp_path, cores, nodes), allowed=range(16))
    assert placed(topology, near=(UNKNOWN,) * 3, world=3) == ["0-1,8-9", "2-4,10-12", "5-7,13-15"]
    assert placed(topology, "node", near=(), world=2) == ["0-15", "0-15"]
    assert count_usable_cores(topology, 0, 2, "node") == 8


def test_without_nodes_in_sysfs_sockets_stand_in(tmp_path):
    topology = read_topology(lay_out(tmp_path, even_machine(2, 4, 1)), allowed=range(8))
    assert topology.nodes == (0, 1)
    assert placed(topology, near=(), world=4) == ["0-1", "2-3", "4-5", "6-7"]


def test_without_sysfs_each_hardware_thread_is_a_core(tmp_path):
    assert placed(read_topology(tmp_path / "none", allowed={3, 5}), near=(), world=2) == ["3", "5"]


def test_a_control_group_s_limit_is_kept(tmp_path):
    lay_out(tmp_path, even_machine(2, 24), FAR)
    topology = read_topology(tmp_path, allowed={4, 5, 6, 7, 53, 54, 30, 31})  # two cores with both of their threads
    assert [core.cpus for core in topology.cores] == [(4,), (5, 53), (6, 54), (7,), (30,), (31,)]
    assert placed(topology, near=(0, 0, 1, 1), world=4) == ["4-5,53", "6-7,54", "30", "31"]
    # All devices are near the first node: cores of the other one are dealt out too.
    assert placed(topology, near=(0, 0), world=2) == ["4-5,30,53", "6-7,31,54"]
    # Five devices there, and four cores: the last rank goes to the other node.
    assert placed(topology, near=(0,) * 5, world=5) == ["4", "5,53", "6,54", "7", "30-31"]


def test_more_ranks_than_cores_are_refused_unless_they_share(tmp_path):
    topology = topology_from_sheet(1, 2)
    with raises(RecipeError, "--system.cpu-bind exclusive", "3 ranks", "2 are", "bind node"):
        select_cores(topology, 0, 3, "exclusive")
    assert placed(topology, "node", (), 3) == ["0-1"] * 3
    assert count_usable_cores(topology, 0, 3, "node") == 1


@pytest.mark.parametrize(
    "sockets, cores, ranks, each", [(2, 28, 8, 7), (2, 24, 8, 6), (2, 20, 8, 5), (1, 2, 2, 1), (2, 4, 3, 2), (1, 1, 4, 1)]
)
def test_mpirun_s_processing_elements(sockets, cores, ranks, each):
    assert count_processing_elements(topology_from_sheet(sockets, cores, 2), ranks) == each


@st.composite
def machines(draw) -> Topology:
    counts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    threads, first, made = draw(st.integers(1, 2)), 0, []
    for node, count in enumerate(counts):
        for _ in range(count):
            made.append(Core(tuple(range(first, first + threads)), node, node // 2))
            first += threads
    return Topology(tuple(made))


@given(machines(), st.data())
@examples(100)
def test_exclusive_cores_are_apart_allowed_near_and_all_used(topology, data):
    world = data.draw(st.integers(1, len(topology.cores)))
    near = data.draw(st.lists(st.sampled_from([UNKNOWN, *topology.nodes, 99]), min_size=world, max_size=world))
    found = [set(select_cores(topology, rank, world, "exclusive", near)) for rank in range(world)]
    assert all(found) and not any(one & other for one, other in combinations(found, 2))
    assert set().union(*found) == set(topology.cpus)  # all of them: nothing larger is possible
    for rank, cpus in enumerate(found):
        whole = [core for core in topology.cores if cpus & set(core.cpus)]
        assert cpus == {cpu for core in whole for cpu in core.cpus}  # no core is shared by two ranks
        thin = select_cores(topology, rank, world, "no-smt", near)
        assert set(thin) == {core.cpus[0] for core in whole} and count_usable_cores(
            topology, rank, world, "no-smt", near
        ) == len(thin)
        # Whoever shares its device's node with no more ranks than that has cores has some of them.
        home = near[rank]
        if home in topology.nodes and all(
            near.count(node) <= sum(c.node == node for c in topology.cores) for node in topology.nodes
        ):
            unsettled = sum(node not in topology.nodes for node in near)
            assert unsettled or home in {core.node for core in whole}


@given(machines(), st.data())
@examples(100)
def test_ranks_whose_devices_are_on_one_node_get_as_many_cores_each(topology, data):
    home = data.draw(st.sampled_from([UNKNOWN, *topology.nodes]))
    here = [core for core in topology.cores if home in (UNKNOWN, core.node)]
    world = data.draw(st.integers(1, len(here)))
    counts = [len(select_cores(topology, rank, world, "no-smt", (home,) * world)) for rank in range(world)]
    assert max(counts) - min(counts) <= 1


@given(machines(), st.data())
@examples(50)
def test_all_bindings_stay_within_what_is_allowed(topology, data):
    allowed = data.draw(st.sets(st.sampled_from(topology.cpus), min_size=1))
    left = topology.only(allowed)
    world = data.draw(st.integers(1, len(left.cores)))
    for binding in ("off", "node", "no-smt", "exclusive"):
        for rank in range(world):
            assert set(select_cores(left, rank, world, binding)) <= allowed
            assert 1 <= count_usable_cores(left, rank, world, binding) <= len(allowed)


@given(st.sets(st.integers(0, 300)))
@examples(50)
def test_lists_are_written_as_linux_writes_them(numbers):
    assert parse_cpu_list(format_cpu_list(numbers)) == tuple(sorted(numbers))


def test_what_is_no_list_has_no_numbers():
    assert parse_cpu_list("\n") == parse_cpu_list("all") == parse_cpu_list("-3") == ()
    assert len(parse_cpu_list("0-999999999999")) < 10_000  # a damaged file is not unrolled

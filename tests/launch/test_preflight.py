"""Which nodes may train: judged from facts, and from what one real process finds on this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from messages import check_line, check_lines, check_text

from paceline.config.system import System
from paceline.launch.doctor.compare import MachineFact, count_problems
from paceline.launch.doctor.measure import (
    Listener,
    find_folder_problems,
    measure_bandwidth,
    measure_cores,
    measure_round_trips,
    ring_neighbors,
)
from paceline.launch.doctor.node import Device, NodeFacts
from paceline.launch.preflight import node
from paceline.launch.preflight.rank import FileBoard
from paceline.launch.preflight.report import LocalChecks, NetworkChecks, judge_nodes

NAMES = ("a", "b", "c")
TOKEN = "a start's name"


def look(number: int, **facts) -> LocalChecks:
    return LocalChecks(
        number, NAMES[number], "10.0.0.1", (40000,), 0, NodeFacts(number, NAMES[number], 1, {"torch": "2"}, **facts)
    )


def reach(number: int, **changes) -> NetworkChecks:
    others = {str(other): 1000.0 for other in range(3) if other != number}
    plain = NetworkChecks(number, {"0": 500.0, "1": 490.0}, {}, others, {other: (0.0, 1e-3) for other in others})
    return replace(plain, **changes)


def judged(
    looks: dict[int, LocalChecks] | None = None,
    reaches: dict[int, NetworkChecks] | None = None,
    system: System | None = None,
) -> dict[str, list[str]]:
    """name -> its problems; of three nodes that are good but for what is told."""
    every = {number: look(number) for number in range(3)} | (looks or {})
    told = {number: reach(number) for number in range(3)} | (reaches or {})
    found = judge_nodes(NAMES, every, told, system)
    return {NAMES[number]: [one.text for one in own] for number, own in found.items() if count_problems(own)}


def test_good_nodes_are_good():
    assert judged() == {}
    assert not count_problems([MachineFact("note", "a", "worth knowing")])


def test_who_never_answered_or_fell_silent_is_named():
    looks = {number: look(number) for number in range(3)}
    found = judge_nodes(NAMES, {0: looks[0], 2: looks[2]}, {0: reach(0)}, None)
    assert check_lines([one.text for one in found[1]], ("respond",))
    assert check_lines([one.text for one in found[2]], ("stopped responding",)) and not count_problems(found[0])


def test_a_slow_core_is_measured_by_the_slowest_cores_of_the_others():
    slow = reach(1, cores={"0": 500.0, "7": 0.69 * 490})
    found = judged(reaches={1: slow})
    assert list(found) == ["b"] and check_lines(found["b"], ("core 7", "338 MB/s", "490", "0.7"))
    assert judged(reaches={1: reach(1, cores={"0": 500.0, "7": 0.71 * 490})}) == {}
    assert list(judged(reaches={number: reach(number, cores={"0": 100.0}) for number in (0, 1)})) == ["a", "b"]
    # Efficient cores are slow on every node.
    assert judged(reaches={number: reach(number, cores={"0": 900.0, "8": 300.0}) for number in range(3)}) == {}


def test_a_slow_link_names_the_node_all_of_whose_links_are_slow():
    """Between a good node and the bad one the link is slow too, and the good one has another."""
    reaches = {0: reach(0, rates={"1": 1000.0, "2": 200.0}), 1: reach(1, rates={"2": 210.0, "0": 1000.0}),
               2: reach(2, rates={"0": 1000.0, "1": 190.0})}  # fmt: skip
    assert judged(reaches=reaches) == {}
    four = ("a", "b", "c", "d")
    looks = {number: replace(look(0), number=number, name=four[number]) for number in range(4)}
    rates = {
        0: {"1": 1000.0, "2": 1000.0},
        1: {"2": 1000.0, "3": 300.0},
        2: {"3": 310.0, "0": 990.0},
        3: {"0": 320.0, "1": 300.0},
    }
    found = judge_nodes(four, looks, {number: NetworkChecks(number, rates=own) for number, own in rates.items()}, None)
    assert check_lines([one.text for one in found.pop(3)], ("320 MB/s", "990", "0.5"))
    assert not any(map(count_problems, found.values()))


@pytest.mark.parametrize(
    ("failures", "named"),
    [
        ({0: {"1": "x"}}, {"b": "a does not reach this node at x"}),
        ({0: {"2": "x"}, 1: {"2": "y"}}, {"c": "a does not reach this node at x (failed connections: 2)"}),
        ({2: {"0": "x", "1": "y"}}, {"c": "this node does not reach a at x (failed connections: 2)"}),
        ({0: {"1": "x"}, 1: {"0": "y"}}, {"b": "a does not reach this node at x"}),
        ({0: {"1": "x"}, 1: {"2": "y"}, 2: {"1": "z"}}, {"b": "a does not reach this node at x (failed connections: 2)"}),
    ],
)
def test_the_fewest_nodes_are_taken_away_so_that_all_others_reach_each_other(failures, named):
    found = judged(reaches={number: reach(number, failures=own) for number, own in failures.items()})
    assert found == {name: [text] for name, text in named.items()}


def test_a_clock_is_measured_by_the_median_of_all():
    off = {
        0: {"1": (0.0, 1e-3), "2": (-30.0, 1e-3)},
        1: {"0": (0.0, 1e-3), "2": (-30.0, 1e-3)},
        2: {"0": (30.0, 1e-3), "1": (30.0, 1e-3)},
    }
    found = judged(reaches={number: reach(number, clocks=clocks) for number, clocks in off.items()})
    assert list(found) == ["c"] and check_text(found["c"][0], "clock", "30 s")


def test_what_doctor_finds_counts_and_a_gpu_that_is_not_there_is_found():
    gpu = Device("H100", 80)
    eight = {number: look(number, devices=(gpu,) * 2) for number in range(3)}
    system = System("cuda", ranks_per_node=2)
    assert judged(eight, system=system) == {}
    found = judged({**eight, 1: look(1, devices=(gpu,))}, system=system)
    assert list(found) == ["b"] and check_line(found["b"], "1 GPUs", "2")
    assert judged({2: look(2, run_trouble="/runs cannot be written")}) == {"c": ["/runs cannot be written"]}


def test_a_folder_that_is_full_or_data_that_is_not_there_is_a_trouble(tmp_path, monkeypatch):
    there = tmp_path / "data"
    there.mkdir()
    assert find_folder_problems(tmp_path / "to" / "come", [("cache", tmp_path)], [("data", there)]) == []
    assert find_folder_problems(tmp_path, [], [("data", tmp_path / "none")]) == [f"data {tmp_path / 'none'}: not found"]
    monkeypatch.setattr("paceline.launch.doctor.measure.MIN_MIB", 10**9)
    (text,) = find_folder_problems(tmp_path, [("temporary", tmp_path)], [])
    assert text.startswith(f"temporary folder {tmp_path}: ") and text.endswith("at least 1000000000 MiB are required")
    monkeypatch.setattr("paceline.launch.doctor.measure.MIB", 1 << 10)
    (text,) = find_folder_problems(Path("/dev/full/x"), [], [])
    assert text.startswith("run folder /dev/full/x: ")


def test_nodes_reach_each_other_over_tcp_and_strangers_get_no_answer():
    with Listener(TOKEN) as listener:
        trips = measure_round_trips("127.0.0.1", listener.ports[0], TOKEN)
        assert all(asked <= theirs <= came for asked, theirs, came in trips)
        assert measure_bandwidth("127.0.0.1", listener.ports[0], TOKEN) > 1
        with pytest.raises(OSError):
            measure_round_trips("127.0.0.1", listener.ports[0], "another's name")
        taken = Listener(TOKEN, listener.ports[0])
        assert "(Address already in use)" in taken.trouble and len(taken.ports) == 1
        taken.close()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            measure_round_trips("127.0.0.1", closed.getsockname()[1], TOKEN)


def test_who_sends_to_whom():
    assert [ring_neighbors(own, (0, 3, 5, 9)) for own in (0, 5, 9)] == [[3, 5], [9, 0], [0, 3]]
    assert ring_neighbors(1, (0, 1)) == [0] and ring_neighbors(4, (4,)) == []


def test_a_core_has_a_rate():
    rates = measure_cores([0], rounds=3, seconds=0.01)
    assert list(rates) == [0] and rates[0] > 1


def test_one_node_and_one_rank_are_looked_at_without_ranks_and_the_verdict_is_of_this_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.launch.preflight.node.measure_cores", lambda cpus: dict.fromkeys(cpus, 400.0))
    folder = tmp_path / "launch" / "preflight"
    folder.mkdir(parents=True)
    (folder / "start").write_text("second\n")
    (folder / "verdict").write_text("first refused\n")
    words = ["--folder", str(folder), "--nodes", "1", "--ranks", "1", "--system", "cpu", "--name", "mine", "--number", "0"]
    assert node.run_node(words) == 0
    assert (folder / "verdict").read_text() == "second good\n"
    said = capsys.readouterr().out
    assert "<td>trains</td><td>mine</td>" in (folder.parent / "preflight.html").read_text()
    check_line(said, "preflight", "training", "mine")
    assert node.run_node([*words, "--reads", str(tmp_path / "nothing")]) == 0
    assert (folder / "verdict").read_text() == "second refused\n"
    said = capsys.readouterr().out
    check_line(said, "preflight", "mine", tmp_path / "nothing", "0 of 1")
    facts = json.loads((folder.parent / "preflight.json").read_text())
    assert facts["good"] is False and facts["nodes"][0]["state"] == "excluded"


def test_a_node_that_never_comes_is_named(tmp_path, capsys, monkeypatch):
    """Two of three processes; all but the first are threads here."""
    monkeypatch.setattr("paceline.launch.preflight.node.measure_cores", lambda cpus: dict.fromkeys(cpus, 400.0))
    monkeypatch.setattr("paceline.launch.preflight.node.LOOK_SECONDS", 2.0)
    folder = tmp_path / "launch" / "preflight"
    folder.mkdir(parents=True)
    (folder / "start").write_text("one\n")
    words = ["--folder", str(folder), "--nodes", "3", "--ranks", "1", "--system", "cpu"]
    other = threading.Thread(target=node.run_node, args=([*words, "--number", "2", "--name", "third"],))
    other.start()
    began = time.monotonic()
    node.run_node([*words, "--number", "0", "--name", "first"])
    other.join()
    assert time.monotonic() - began >= 2.0
    assert (folder / "verdict").read_text() == "one refused\n"
    said = capsys.readouterr().out
    check_text(said, "problem  node 1")
    check_line(said, "good", "third")
    check_line(said, "preflight", "2 of 3")


def test_files_of_an_earlier_start_are_as_if_they_were_not_there(tmp_path):
    (tmp_path / "start").write_text("one\n")
    first = FileBoard(tmp_path)
    first.leave("look-0", {"name": "a"})
    (tmp_path / "start").write_text("two\n")
    second = FileBoard(tmp_path)
    assert first.find("look-0") == {"start": "one", "name": "a"} and second.find("look-0") is None
    (tmp_path / "look-0.json").write_text("[1, ")  # being written, on a file system that renames in two steps
    assert (
        first.find("look-0") is None and second.gather("look", [0], 0.0) == {} and second.wait(["look-0"], 0.0) == ("", {})
    )


@pytest.mark.parametrize("trouble", [(), ("NCCL failed on GPU 1: unhandled cuda error",)], ids=["good", "bad"])
def test_a_node_that_the_ranks_together_find_bad_is_named(tmp_path, capsys, trouble):
    folder = tmp_path / "preflight"
    folder.mkdir()
    (folder / "start").write_text("one\n")
    flags = node._flags(["--folder", str(folder), "--nodes", "2", "--ranks", "2", "--names", "a,b"])
    board = FileBoard(folder)
    first = node._First(flags, board, System())
    for number in range(2):
        board.leave(f"look-{number}", asdict(look(number)))
        board.leave(f"reach-{number}", asdict(reach(number)))
        board.leave(f"done-{number}", {})
    first.call()
    first.judge()
    assert board.find("together") is not None and board.find("decided") is None
    facts = [replace(look(0).facts, ranks=2), replace(look(1).facts, ranks=2, network_trouble=trouble)]
    sums = {"sums_are_right": True, "rows": [], "fit": {}}
    board.leave("ranks", {"nodes": [asdict(one) for one in facts], "comm": sums})
    first.after_ranks()
    first.finish(1.0)
    said = capsys.readouterr().out
    if trouble:
        assert (folder / "verdict").read_text() == "one refused\n"
        check_line(said, "problem  b", "NCCL", "GPU 1", trouble[0][-10:])
    else:
        assert (folder / "verdict").read_text() == "one good\n" and check_line(said, "preflight", "a, b")


def test_ranks_that_break_off_refuse_the_job_with_their_words(tmp_path, capsys):
    folder = tmp_path / "preflight"
    folder.mkdir()
    (folder / "start").write_text("one\n")
    board = FileBoard(folder)
    first = node._First(
        node._flags(["--folder", str(folder), "--nodes", "1", "--ranks", "2", "--names", "a"]), board, System()
    )
    board.leave("look-0", asdict(look(0)))
    board.leave("reach-0", asdict(NetworkChecks(0)))
    first.call()
    first.judge()
    board.leave("failed-0", {"text": "rank 1 (of 2) failed: it was killed"})
    board.leave("done-0", {})
    first.after_ranks()
    first.finish(1.0)
    assert (folder / "verdict").read_text() == "one refused\n"
    check_text(capsys.readouterr().out, "preflight", "rank 1", "killed")

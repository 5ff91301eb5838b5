"""`paceline doctor` between real ranks: two nodes that are this host, and what one of them has otherwise."""

from __future__ import annotations

import json

import pytest
from messages import check_text
from small_run import PLAIN, Trainer, said, torchrun
from tiny_runs import command, refused
from zygote import Ended, by_hand

from paceline.distributed.comm.interfaces import find_free_port

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


def on_two_nodes(trainer: Trainer, folder, *words: str, own=(), ranks: int = 3) -> list[Ended]:
    """Ranks 0 and 1 on the first node, rank 2 on the second, as torchrun's agents would number them."""
    port, first = find_free_port(), ranks - 1
    environs = []
    for rank in range(ranks):
        node = int(rank == first)
        more = {"LOCAL_RANK": str(rank - node * first), "LOCAL_WORLD_SIZE": str(1 if node else first)}
        more |= {"GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
        environs.append({**by_hand(rank, ranks, port), **more, "PACELINE_SECRET": "0123456789abcdef0123"})
    return trainer.zygote.run(folder, environs, "doctor", *words, module="training_rank", own=own, deadline=90)


def test_two_nodes_that_are_alike_have_a_line_each_and_no_problem(trainer, tmp_path):
    out = tmp_path / "facts.json"
    ended = on_two_nodes(trainer, tmp_path, "--check-dir", str(tmp_path), "--output", str(out), ranks=2)
    assert [rank.code for rank in ended] == [0, 0], said(ended)
    lines = ended[0].text.splitlines()
    assert len(lines) == 3 and check_text(lines[2], "2 nodes", "healthy")
    first, second = json.loads(out.read_text())["nodes"]
    assert first["network"] == second["network"] == "gloo on lo" and first["node"] == 0 < second["node"]
    assert (
        first["offset_error"] == 0 < second["offset_error"] < 1 and abs(second["offset"]) <= second["offset_error"] + 1e-3
    )
    assert not list(tmp_path.glob(".paceline-doctor*"))
    assert not ended[1].text


def test_a_node_that_sees_another_folder_and_has_fewer_ranks_is_named(trainer, tmp_path):
    folders = [tmp_path / "shared", tmp_path / "shared", tmp_path / "own"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    ended = on_two_nodes(trainer, tmp_path, "--json", own=[("--check-dir", str(folder)) for folder in folders])
    assert [rank.code for rank in ended] == [2, 0, 0], said(ended)
    facts = json.loads(ended[0].text)
    assert [node["ranks"] for node in facts["nodes"]] == [2, 1] and not any(rank.text for rank in ended[1:])
    uneven, elsewhere = sorted(facts["findings"], key=lambda finding: "--check-dir" in finding["text"])
    assert elsewhere["nodes"] == uneven["nodes"] == [facts["nodes"][1]["name"]] and facts["problems"] == 2
    assert uneven["text"] == "ranks: 1 rank; 2 ranks on 1 of 2"


def test_a_system_that_the_nodes_are_not_is_a_problem_and_a_folder_that_is_not_there_is_refused(trainer, tmp_path):
    ended = on_two_nodes(trainer, tmp_path, "--check-dir", str(tmp_path / "later" / "runs"), "--system", "h100x8", ranks=2)
    assert [rank.code for rank in ended] == [2, 0], said(ended)
    assert ended[0].text.count("0 GPUs") == 2 and "later/runs: No such file" in ended[0].text


@pytest.mark.nightly("live ranks once more, by another launcher")
def test_under_torchrun_a_node_says_how_it_is(trainer, tmp_path):
    done = trainer.launched(torchrun(2), ["doctor", "--check-dir", str(tmp_path)])
    assert done.returncode == 0 and "2 ranks" in done.stdout and check_text(done.stdout, "1 node", "healthy"), done.stdout


@pytest.mark.nightly("live ranks once more, by another launcher")
@pytest.mark.parametrize("start", ["torchrun", "mpirun"])
def test_started_by_its_own_flags_it_prints_what_rank_0_found(trainer, tmp_path, start, need_program, monkeypatch):
    if start == "mpirun":
        need_program("mpirun", "openmpi-bin")
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--nproc-per-node", "2", "--launcher", start, "--output", str(tmp_path / "facts.json")]
    done = trainer.launched(PLAIN, words)
    assert done.returncode == 0 and check_text(done.stdout, "1 node", "healthy"), done.stdout
    assert json.loads((tmp_path / "facts.json").read_text())["nodes"][0]["ranks"] == 2
    assert (tmp_path / "runs" / "doctor-001" / "launch" / "run.sh").is_file()
    done = trainer.launched(PLAIN, [*words, "--check-dir", str(tmp_path / "nowhere")])
    # Lines are wrapped, the earlier the longer the folder's name is; mpirun marks each of them.
    said = " ".join(done.stdout.replace("[1,0]<stdout>:", "").split())
    assert done.returncode == 2 and "nowhere: No such file" in said, done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nodes", "2"], "not --nodes 2"),
        (["--nodes", "0"], "--nodes 0"),
        (["--scheduler", "slurm"], "--system NAME"),
        (["--scheduler", "slurm", "--system", "h100x9"], "h100x9"),
        (["--scheduler", "local", "--launcher", "srun"], "srun"),
        (["--nproc-per-node", "-1"], "--nproc-per-node -1"),
        (["--scheduler", "slurm", "--system", "cpu", "--walltime", "auto"], "--walltime 10m"),
        (["--nproc-per-node", "8", "--system", "h100x8"], "0 CUDA devices"),
        (["--node", "2"], "--nodes"),
        (["--scheduler", "hostfile", "--system", "cpu", "--hostfile", "/nowhere/hosts"], "/nowhere/hosts"),
    ],
)
def test_what_cannot_be_started_is_refused(capsys, monkeypatch, tmp_path, words, named):
    monkeypatch.chdir(tmp_path)
    refused(command(capsys, "doctor", *words), named)


def test_ranks_that_a_launcher_started_start_no_others(capsys, monkeypatch):
    for name, value in by_hand(0, 2, 29999).items():
        monkeypatch.setenv(name, value)
    refused(command(capsys, "doctor", "--nodes", "2"), "torchrun")
    refused(command(capsys, "bench", "comm", "--nodes", "2"), "torchrun")

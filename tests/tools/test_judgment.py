"""The verdict on made-up measurements: what passes, what fails, and with which advice."""

from __future__ import annotations

import json

import pytest
from messages import check_line, check_text
from tiny_runs import command, refused

from paceline.cli.commands.check_performance import QualifyFlags, _finish, format_report
from paceline.config.reference_rates import RECORDED
from paceline.tools.qualify.judgment import SLOW, UNJUDGED, cpu_cost_ratio, expected_scales, find_slowest, judge_ranks

RECORD = RECORDED[0]
STEPS = [f"{task}/step" for task in ("classification", "detection", "instance-segmentation")]


def cpu_rank(rank: int = 0, *, kind_of_core: float = 1.0, share: float = 1.0, busy: float = 120.0, **changes) -> dict:
    """A rank of one thread of two on the recorded CPU.

    kind_of_core  times as fast as it
    share         of the time that it is there
    busy          CPU-seconds of the machine's processes in the minute that is measured, of which ours are 60 * share a rank
    """
    measured = {
        name: {
            "rate": (rate := kind_of_core * share / cpu_seconds),
            "cpu_seconds": cpu_seconds / kind_of_core,
            "rates": [rate, rate],
        }
        for name, cpu_seconds in RECORD.cpu_seconds.items()
    }
    counters = {"wall": 60.0, "busy": busy, "stolen": 0.0, "throttled": 0, "throttled_seconds": 0.0, "quota": 0.0}
    return {
        **{"rank": rank, "node": 0, "host": "n1", "cores": 2, "kind": "cpu", "name": "CPU", "device": RECORD.cpu},
        **{"threads": 1, "cores_own": 1.0, "tests": {name: test * kind_of_core for name, test in RECORD.tests.items()}},
        **{"measured": measured, "cpu": 60.0 * share, "counters": counters},
        "disk": 0.0 if rank else 1e5,
        "comm": {"bytes": 102_000_000, "rate": RECORD.all_reduce * kind_of_core * share, "right": True},
        **changes,
    }


def two(**changes) -> list[dict]:
    return [cpu_rank(0, **changes), cpu_rank(1, **changes)]


def slow_rows(found) -> list[str]:
    return [row.name for row in found.rows if row.verdict == SLOW]


def test_the_recorded_machine_itself_is_as_fast_as_expected():
    found = judge_ranks(two())
    assert found.good and not found.advice and len(found.rows) == 14
    assert all(row.ratio == pytest.approx(1) for row in found.rows if "disk" not in row.name)


@pytest.mark.parametrize("times", [0.3, 3.0])
def test_another_kind_of_core_is_expected_to_be_as_fast_as_its_tests(times):
    found = judge_ranks(two(kind_of_core=times, disk=1e5))
    assert found.good and {round(row.ratio, 6) for row in found.rows if "disk" not in row.name} == {1}
    assert found.rows[0].expected == pytest.approx(2 * times / RECORD.cpu_seconds["classification/step"])


def test_more_threads_are_expected_to_do_more():
    rank = cpu_rank(threads=4, cores_own=4.0, cores=4)
    assert not judge_ranks([rank]).good and judge_ranks([rank]).rows[0].ratio == pytest.approx(1 / 4)


def test_busy_neighbours_are_named_and_the_cores_found_to_be_fast():
    found = judge_ranks(two(share=0.5, busy=120))
    assert not found.good and slow_rows(found)[0] == "ResNet-50, step"
    assert next(row for row in found.rows if row.name == "core speed while computing").ratio == pytest.approx(1)
    assert check_text(found.advice[0], "n1", "1.0 of 2 cores", "1.00 times")
    assert len(found.advice) == 1
    ranks = two(share=0.5, busy=120)
    ranks[0]["measured"]["detection/photos"]["rate"] /= (
        3  # in a round when the neighbors were busier: no reason to name the input
    )
    assert len(judge_ranks(ranks).advice) == 1


def test_a_control_groups_limit_is_named_with_its_numbers():
    counters = {"wall": 60.0, "busy": 60.0, "stolen": 0.0, "throttled": 590, "throttled_seconds": 58.0, "quota": 1.0}
    found = judge_ranks(two(share=0.5, counters=counters))
    assert not found.good and "(1 of 2 cores)" in found.advice[0] and "590 periods" in found.advice[0]
    assert "other processes" not in " ".join(found.advice)
    counters |= {"busy": 118.0}  # they have what the group may not use
    assert len(judge_ranks(two(share=0.5, counters=counters)).advice) == 1


def test_a_host_that_takes_time_is_named():
    counters = {"wall": 60.0, "busy": 84.0, "stolen": 36.0, "throttled": 0, "throttled_seconds": 0.0, "quota": 0.0}
    (text,) = judge_ranks(two(share=0.7, counters=counters)).advice
    check_text(text, "30%")


def test_time_that_nobody_used_is_a_limiter_and_dear_images_are_clocks_or_memory():
    (text,) = judge_ranks(two(share=0.5, busy=60)).advice
    assert check_text(text, "SIGSTOP") and "SIGSTOP" in text
    ranks = two(share=0.6, busy=120)
    for rank in ranks:
        rank["cpu"] = 60.0
        for one in rank["measured"].values():
            one["cpu_seconds"] /= 0.6
    assert cpu_cost_ratio(ranks) == pytest.approx(1 / 0.6)
    (text,) = judge_ranks(ranks).advice
    assert "1.67 times the CPU-seconds" in text and "power cap" in text


def test_a_disk_far_slower_than_decoding_fails_with_every_other_row_as_expected():
    found = judge_ranks(two(disk=0.9 / RECORD.cpu_seconds["classification/input"]))
    assert slow_rows(found) == ["reading from disk"] and "disk" in found.advice[0] and len(found.advice) == 1


def test_steps_that_wait_for_photos_are_named():
    ranks = two()
    for rank in ranks:
        rank["measured"]["detection/photos"]["rate"] /= 2
    found = judge_ranks(ranks)
    assert slow_rows(found) == ["SSD, step with input"] and "SSD: the steps" in " ".join(found.advice)


def test_the_slowest_rank_is_named_and_fails_where_it_is_far_behind():
    ranks = [cpu_rank(rank, cores=4) for rank in range(4)]
    for name in STEPS:
        ranks[2]["measured"][name]["rate"] *= 0.85
    assert find_slowest(ranks) == ("rank 2 on n1 (CPU)", pytest.approx(0.85))
    found = judge_ranks(ranks)
    assert slow_rows(found) == ["slowest rank (of the median)"] and check_text(
        found.advice[0], "rank 2 on n1 (CPU)", "slow"
    )
    assert find_slowest(ranks[:1]) == ("", 1.0)


def test_scales_follow_the_tests():
    rank = cpu_rank()
    rank["tests"]["matmul"] *= 4
    assert expected_scales(rank) == pytest.approx({"step": 2, "input": 1, "all-reduce": 1})


# Accelerators ---------------------------------------------------------------------------------------------------------


def gpu_rank(rank: int = 0, *, device: str = "NVIDIA H100 80GB HBM3", rate: float = 1.0, **changes) -> dict:
    steps = {"classification": 7165 * rate, "detection": 3000 * rate, "instance-segmentation": 180 * rate}
    measured = {}
    for task, one in steps.items():
        for part, times in (("step", 1.0), ("input", 1.2), ("photos", 0.97)):
            measured[f"{task}/{part}"] = {"rate": one * times, "cpu_seconds": 0.001}
    measured["scores"] = {"rate": 400.0, "cpu_seconds": 0.001}
    return {
        **cpu_rank(rank),
        **{"kind": "cuda", "name": f"cuda:{rank}", "device": device, "measured": measured, "cores": 128},
        **{"tests": {"matmul": 780.0, "copy": 3.0, "inflate": 300.0}},
        **changes,
    }


def test_eight_healthy_devices_are_judged_by_the_published_row_of_eight():
    found = judge_ranks([gpu_rank(rank) for rank in range(8)])
    by_name = {row.name: row for row in found.rows}
    assert found.good and by_name["ResNet-50, step"].expected == 8 * 7165 and "v4.0" in by_name["ResNet-50, step"].basis
    assert by_name["SSD, step"].verdict == UNJUDGED  # nobody published one
    assert by_name["matrix multiplication, slowest rank"].ratio == pytest.approx(780 / 790)


def test_a_program_without_fused_kernels_is_allowed_its_distance_to_one_with_them_and_no_more():
    assert judge_ranks([gpu_rank(rate=0.5)]).good
    assert "ResNet-50, step" in slow_rows(judge_ranks([gpu_rank(rate=0.4)]))
    a100 = gpu_rank(device="NVIDIA A100-SXM4-80GB", rate=2470 / 7165 * 0.85)
    assert "ResNet-50, step" in slow_rows(judge_ranks([a100]))  # of a plain one's rate


def test_a_device_that_multiplies_slowly_fails_alone():
    ranks = [gpu_rank(rank) for rank in range(8)]
    ranks[5]["tests"]["matmul"] = 600.0
    for name in STEPS:
        ranks[5]["measured"][name]["rate"] *= 0.8
    found = judge_ranks(ranks)
    assert slow_rows(found) == ["matrix multiplication, slowest rank", "slowest rank (of the median)"]
    assert found.slowest == "rank 5 on n1 (cuda:5)"


def test_an_input_that_does_not_feed_the_steps_starves_them():
    rank = gpu_rank()
    rank["measured"]["instance-segmentation/input"]["rate"] = 100.0
    found = judge_ranks([rank])
    assert slow_rows(found) == ["Mask R-CNN, input pipeline"] and "Mask R-CNN: the steps" in found.advice[0]


def test_what_the_doctor_found_is_passed_on():
    found = judge_ranks([gpu_rank(rate=0.3)], ["n1: NCCL fell back to sockets, although mlx5_0 is available"])
    assert check_text(found.advice[0], "paceline doctor", "n1", "NCCL", "sockets", "mlx5_0")


def test_an_unknown_device_is_measured_and_not_judged():
    found = judge_ranks([gpu_rank(device="Some GPU 9000")])
    assert {row.verdict for row in found.rows if row.name.endswith((", step", "slowest"))} == {UNJUDGED} and found.good


# What is printed ------------------------------------------------------------------------------------------------------


def facts(ranks: list[dict]) -> dict:
    return {"minutes": 3.0, "versions": {"torch": "2.11"}, "doctor": [], "ranks": ranks}


def test_lines_fit_eighty_columns_and_end_with_verdict_and_advice(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    slow = facts(two(share=0.5))
    text = format_report(judge_ranks(slow["ranks"]), slow)
    assert max(map(len, text)) <= 80 and check_line(text, "slower", "1")
    assert any(line.startswith("check: n1: other processes") for line in text)
    fast = facts(two())
    assert "fast" in format_report(judge_ranks(fast["ranks"]), fast)[-1]


def test_json_page_and_exit_code(tmp_path, capsys):
    assert _finish(QualifyFlags(output_dir=str(tmp_path), json=True), facts(two())) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["good"] is True and answer["rows"][0]["verdict"] == "as expected" and len(answer["ranks"]) == 2
    assert json.loads((tmp_path / "qualify.json").read_text()) == answer
    assert _finish(QualifyFlags(output_dir=str(tmp_path)), facts(two(share=0.5, host="<b>"))) == 1  # ours are replaced
    page = (tmp_path / "qualify.html").read_text()
    assert "slower than" in page and "other processes" in page and "&lt;b&gt;" in page and "<b>:" not in page
    assert _finish(QualifyFlags(), None) == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--minutes", "0"], "--minutes 0"),
        (["--minutes", "1e9"], "--minutes"),
        (["--check-dir", "/nowhere/at/all"], "--check-dir /nowhere/at/all"),
        (["--nodes", "2"], "not --nodes 2"),
        (["--scheduler", "slurm"], "--system NAME"),
        (["--system", "h100x8"], "0 CUDA devices"),
        (["--nproc-per-node", "-1"], "--nproc-per-node -1"),
        (["--fast"], "--fast"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    refused(command(capsys, "check-performance", *words), named)
    assert not (tmp_path / "runs").exists()


def test_files_of_the_users_stay(capsys, tmp_path):
    (tmp_path / "qualify.html").write_text("mine")
    refused(command(capsys, "check-performance", "--output-dir", tmp_path), "qualify.html")
    refused(command(capsys, "check-performance", "--output-dir", tmp_path / "qualify.html"), "a file")

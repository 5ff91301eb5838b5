"""What every benchmark does: turns, ratios with their intervals, the gate, the ceiling, contenders that fail alone, peers."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch
from messages import raises

import paceline.tools.bench as bench_package
from paceline._utils.errors import PacelineError
from paceline.config.system import System
from paceline.distributed.device.timing import CallSeconds, find_host_wait, measure_seconds
from paceline.tools.bench import harness, require_peers, roofline
from paceline.tools.bench.harness import (
    Case,
    Operation,
    ReadyCase,
    compare_operation,
    format_ratio,
    list_variants,
    median_interval,
    ratio_interval,
    run_interleaved,
    run_steps,
    select_possible,
)
from paceline.tools.bench.profile import resolve_part
from paceline.tools.bench.roofline import ConvFlops, MachinePeak, describe_above_peak, list_kernels
from paceline.tools.bench.step_resnet import ResNetBench

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BENCH = ResNetBench(batch=4, depth=18, size=32, rounds=2, seconds=0.0, precisions=("fp32",), system=System(), matrix=32)


def test_every_round_begins_with_another_contender_and_one_that_fails_leaves_all_rounds():
    order: list[str] = []
    absent: dict[str, str] = {}

    def fails() -> None:
        if len(order) > 3:
            raise OSError("gone")
        order.append("c")

    works = {"a": partial(order.append, "a"), "b": partial(order.append, "b"), "c": fails}
    sizes = [{name: len(found) for name, found in taken.items()} for taken in run_interleaved(works, 3, absent)]
    assert "".join(order) == "abcbaab" and absent == {"c": "gone"}
    assert sizes == [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2}, {"a": 3, "b": 3}]
    with pytest.raises(OSError, match="gone"):
        list(run_interleaved(works, 1))


@pytest.mark.parametrize("rounds", [1, 2, 5, 6, 9, 20])
def test_an_interval_holds_the_median_as_often_as_it_says(rounds):
    draw = random.Random(rounds)
    hits = 0
    for _ in range(2000):
        values = [draw.lognormvariate(0, 1) for _ in range(rounds)]  # its median is 1
        low, high, coverage = median_interval(values)
        assert low <= statistics.median(values) <= high
        hits += low <= 1 <= high
    assert hits / 2000 == pytest.approx(coverage, abs=0.03)
    assert coverage == (
        0.0 if rounds == 1 else 0.5 if rounds == 2 else 0.9375 if rounds == 5 else pytest.approx(0.97, abs=0.02)
    )


def test_a_ratio_is_of_times_of_one_round():
    found = ratio_interval([2.0, 40.0, 6.0], [1.0, 10.0, 2.0])
    assert found == {"median": 3.0, "low": 2.0, "high": 4.0, "coverage": 0.75}
    assert format_ratio(found) == "3.00 x (2.00 to 4.00)" and format_ratio(None) == ""
    assert format_ratio(ratio_interval([3.0], [2.0])) == "1.50 x (one round)"


def test_a_peer_with_another_result_is_called_different():
    works = {"paceline": lambda: 5, "same": lambda: 5, "other": lambda: 7, "unasked": lambda: 9}
    differences = {name: lambda mine, theirs: abs(mine - theirs) for name in ("same", "other")}
    row, results = compare_operation(Operation("sum", works, differences), 2, 0.0, CPU)
    assert row["agrees"] == {"same": True, "other": False} and row["difference"]["other"] == 2
    assert set(row["times_faster"]) == {"same", "other", "unasked"} and results["unasked"] == 9
    assert all(len(seconds) == 2 for seconds in row["seconds"].values())


def test_graphs_come_last_and_only_what_a_device_can_have():
    menu = list_variants("a", lambda **_: ReadyCase(torch.empty), ours=True) | list_variants(
        "b", lambda **_: ReadyCase(torch.empty), ", c"
    )
    assert list(select_possible(menu, CPU, compile=False)) == ["a", "b, c"]
    assert list(select_possible(menu, CPU, compile=True)) == ["a", "b, c", "a compiled", "b compiled, c"]
    assert list(select_possible(menu, CUDA, compile=True))[5:] == [
        "a CUDA graph",
        "a Triton CUDA graph",
        "b CUDA graph, c",
        "a compiled CUDA graph",
    ]
    assert list(select_possible(menu, CUDA, compile=True, only=("a Triton", "a compiled"))) == ["a Triton", "a compiled"]
    assert list(select_possible(menu, CPU, compile=True, only=("a", "a Triton"))) == ["a"]


def product() -> torch.Tensor:
    """A step of one matrix product."""
    return (torch.ones(32, 32) @ torch.ones(32, 32)).mean()


def steps(**menu) -> list[dict]:
    made = {name: Case(make) for name, make in menu.items()}
    known = run_steps(made, BENCH, "fp32", CPU)
    return [dict(facts) for facts in known]


def test_a_contender_that_fails_is_absent_with_its_reason_and_ours_is_not_excused():
    def fails() -> ReadyCase:
        # What torch raises where a kernel has no form for a device.
        raise NotImplementedError("no such kernel\nmore of it")

    facts = steps(paceline=lambda: ReadyCase(product), theirs=fails, late=lambda: ReadyCase(fails))[-1]  # type: ignore[arg-type]
    assert facts["absent"] == {name: "NotImplementedError: no such kernel" for name in ("theirs", "late")}
    assert facts["first_losses"] == {"paceline": 32.0} and facts["gflop"]["paceline"] == 2 * 32**3 / 1e9
    with pytest.raises(NotImplementedError):
        steps(paceline=fails)


def test_a_contender_that_is_many_times_slower_is_not_in_the_rounds(monkeypatch):
    def slow() -> torch.Tensor:
        return product()

    # Seconds by contender instead of by the clock: a busy machine makes any short step many times slower.
    taken = {product: CallSeconds(0.02, 0.02), slow: CallSeconds(0.5, 0.5)}
    monkeypatch.setattr(harness, "measure_seconds", lambda step, *_: taken[step])
    made = {
        name: Case(partial(ReadyCase, step)) for name, step in (("paceline", product), ("slow", slow), ("alike", product))
    }
    *_, facts = run_steps(made, replace(BENCH, slowest=10.0), "fp32", CPU)
    assert set(facts["images_per_second"]) == {"paceline", "alike"}
    assert facts["absent"]["slow"].startswith("25.0 times slower") and set(facts["before_the_rounds"]) == set(made)


def test_what_is_known_is_told_after_each_contender_and_each_round():
    told_so_far = steps(
        paceline=lambda: ReadyCase(product), theirs=lambda: ReadyCase(product, extra_facts=lambda: {"size": 3})
    )
    assert [len(facts.get("seconds", {}).get("paceline", [])) for facts in told_so_far][:2] == [0, 0]
    assert len(told_so_far) == 2 + 2 + 1 and told_so_far[-1]["size"] == {"theirs": 3}
    assert set(told_so_far[-1]["times_faster"]) == {"theirs"} and told_so_far[-1]["waits_for_the_device"] is None


def test_the_share_of_the_ceiling_is_of_a_contender_s_own_work():
    def twice() -> torch.Tensor:
        return product() + product()

    facts = steps(paceline=lambda: ReadyCase(product), theirs=lambda: ReadyCase(twice))[-1]
    reached = {name: share * facts["median_seconds"][name] for name, share in facts["share_of_ceiling"].items()}
    assert reached["theirs"] == pytest.approx(2 * reached["paceline"])


def network_step() -> torch.Tensor:
    image = torch.ones(1, 3, 16, 16, requires_grad=True)
    weight, line = torch.ones(4, 3, 3, 3, requires_grad=True), torch.ones(4, 5, requires_grad=True)
    loss = (torch.nn.functional.conv2d(image, weight, padding=1).mean((2, 3)) @ line).sum()
    loss.backward()
    return loss.detach()


def test_the_ceiling_is_the_best_of_products_and_of_the_steps_own_calls_in_both_layouts():
    with ConvFlops() as work:
        network_step()
    forward, backward = 2 * 16 * 16 * 4 * 27 / 1e9, 2 * 2 * 16 * 16 * 4 * 27 / 1e9
    assert work.gflop == pytest.approx(forward + backward + 3 * 2 * 4 * 5 / 1e9)
    names = [kernel.name for kernel in list_kernels(work, 32, torch.float32, CPU)]
    assert names[:2] == ["mm 32x32, 32x32 float32", "mm 256x8, 8x256 float32"]
    for layout in ("", " channels_last"):
        assert f"convolution 1x3x16x16, 4x3x3x3 float32{layout}" in names
        assert f"convolution_backward 1x4x16x16, 1x3x16x16, 4x3x3x3 float32{layout}" in names
    assert sum("mm " in name for name in names) == 5 and all("channels_last" not in name for name in names if "mm " in name)
    found = MachinePeak(work, 32, torch.float32, CPU)
    found.measure(0.0)
    facts = found.facts()
    assert set(facts["kernels"]) == set(names) and facts["gflops"] == max(facts["kernels"].values()) > 0


def test_a_step_above_the_ceiling_is_told_with_the_kernel_and_its_sizes(monkeypatch):
    monkeypatch.setattr(roofline, "measure_seconds", lambda *_: CallSeconds(1000.0, 0.0))
    facts = steps(paceline=lambda: ReadyCase(product))[-1]
    assert facts["share_of_ceiling"]["paceline"] > 1
    assert "GFLOP/s of mm " in facts["above_the_ceiling"]
    assert (
        describe_above_peak({"paceline": 1.0}, facts["ceiling"])
        == ""
        != describe_above_peak({"paceline": 1.01}, facts["ceiling"])
    )


def test_one_call_at_least_is_timed():
    calls = []
    wall, cpu = measure_seconds(lambda: calls.append(1), 0.0, CPU)
    assert len(calls) == 1 and cpu >= 0 and 0 < wall < 1


def test_a_step_on_a_cpu_waits_for_nothing_and_is_taken():
    taken = []
    assert find_host_wait(lambda: taken.append(1) or torch.zeros(()), CPU) == "" and taken == [1]


def test_a_part_that_is_not_called_by_its_name_there_is_an_error():
    with pytest.raises((AssertionError, KeyError)):
        resolve_part("products", torch.addmm, called_in=bench_package)


def test_without_a_checkout_there_are_no_peers(monkeypatch, tmp_path):
    assert bench_package.find_peers("ssd").contenders and bench_package.find_peers("nobody") is None
    monkeypatch.setattr(bench_package, "CHECKOUT", tmp_path)
    assert bench_package.find_peers("ssd") is None
    with raises(PacelineError, "--part ops", "benchmarks/"):
        require_peers("ssd", "--part ops")

"""The estimate: its constants are the fit's, its arithmetic is the model's, its errors are those that it prints."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.plan import BatchPlan, limit_steps, make_plan
from paceline.config.recipe import DATA_IMAGES, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.tools.estimate import run_time as exchange
from paceline.tools.estimate.run_time import (
    LINK_SHARE,
    PUBLISHED,
    Estimate,
    RankSpeed,
    estimate,
    exchange_seconds,
    exposed_seconds,
    given_speed,
    measured_speed,
    predicted_minutes,
    published_speed,
    run_minutes,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import fit_estimate

H100 = System("cuda", ranks_per_node=8, memory_gib=80, precision="bf16", device_name="H100-SXM5-80GB")
PARAMETERS = 25_560_000


def resnet_plan(name: str, world: int) -> BatchPlan:
    train, val = DATA_IMAGES["imagenet"]
    return make_plan(RECIPES[name](), H100, world=world, most=512, train_images=train, val_images=val)


def dgx(plan: BatchPlan, speed: RankSpeed | None = None, system: System = H100) -> Estimate:
    speed = speed or PUBLISHED["classification", "H100-SXM5"]
    return estimate(plan, system, speed, parameters=PARAMETERS, system_name="dgx-h100")


def test_two_nodes_ring_by_hand():
    # Each node sends and receives every byte once: G / B, and two hops.
    assert exchange_seconds(2, 1e9, 80.0) == pytest.approx(1e9 / (LINK_SHARE * 10e9) + 2 * exchange.HOP_SECONDS)
    assert exchange_seconds(1, 1e9, 80.0) == 0
    # Sixteen nodes: 15/16 of the bytes twice, four levels of the tree up and down.
    assert exchange_seconds(16, 1e9, 80.0) == pytest.approx(
        2 * 15 / 16 * 1e9 / (LINK_SHARE * 10e9) + 8 * exchange.HOP_SECONDS
    )


@given(nodes=st.integers(2, 4096), size=st.floats(1e3, 1e9), gbit=st.floats(1, 4000), compute=st.floats(0, 1))
def test_what_is_exposed_lies_between_the_last_bucket_and_the_whole(nodes, size, gbit, compute):
    whole = exchange_seconds(nodes, size, gbit)
    exposed = exposed_seconds(nodes, size, gbit, compute_seconds=compute, bucket_bytes=25 * 2**20)
    assert exchange_seconds(nodes, min(size, 25 * 2**20), gbit) <= exposed <= whole * (1 + 1e-9)
    assert exposed_seconds(nodes, size, gbit, compute_seconds=compute, bucket_bytes=0) == whole


def test_the_constants_are_the_fit_of_the_rows_of_8_and_64():
    fits = {(family.workload, family.chip): family for family in fit_estimate.FAMILIES}
    for key, speed in PUBLISHED.items():
        rate, fixed = fits[key].fit()
        assert speed.rate == pytest.approx(rate, rel=1e-3) and speed.fixed == pytest.approx(fixed, abs=1e-5)
        assert (fits[key].eight.devices, fits[key].sixty_four.devices) == (8, 64)
        for row in (fits[key].eight, fits[key].sixty_four):
            assert fits[key].predicted(row) == pytest.approx(row.rate, rel=1e-6)
            # The round is said as the row has it, or that it is not known.
            assert (row.source.split()[0] if row.source.startswith("v") else "not noted") in speed.basis
    assert fit_estimate.link_share() == pytest.approx(LINK_SHARE, abs=5e-3)


def test_the_errors_told_are_those_seen_at_384_and_more():
    seen: dict[tuple[str, str], list[float]] = {}
    for family in fit_estimate.FAMILIES:
        key = (family.workload, family.chip)
        seen.setdefault(key, []).extend(family.predicted(row) / row.rate - 1 for row in family.larger)
    for key, speed in PUBLISHED.items():
        assert (speed.slow, speed.fast) == (round(min(seen[key]), 2), round(max(seen[key]), 2)), key


@pytest.mark.parametrize(
    ("name", "world", "published"),
    [
        ("resnet50-mlperf-3200", 8, 7009),
        ("resnet50-mlperf-3200-8x8", 64, 4606),
        ("resnet50-mlperf-20480", 512, 4390),
        ("resnet50-mlperf-57344", 3584, 2815),
    ],
)
def test_a_published_plan_is_predicted_within_the_errors_told(name, world, published):
    told = dgx(resnet_plan(name, world))
    assert told.images_per_second / world == pytest.approx(published, rel=0.15)
    assert (told.exchange_seconds > 0) == (world > 8) and told.links_known


def test_times_add_up():
    plan = resnet_plan("resnet50-mlperf-3200-8x8", 64)
    told = dgx(plan)
    assert told.step_seconds == told.compute_seconds + told.exposed_seconds
    assert told.compute_seconds == pytest.approx(50 / 7510 + 3.81e-3)
    evaluations = len(plan.eval_steps)
    seconds = plan.total_steps * told.step_seconds + evaluations * told.evaluation_seconds
    assert told.minutes == pytest.approx(seconds / 60)
    assert told.evaluation_seconds == pytest.approx(50_000 / (64 * 7510))
    short = dgx(limit_steps(plan, steps=100))
    assert short.minutes == pytest.approx((100 * short.step_seconds + short.evaluation_seconds) / 60)


def test_ranks_that_only_evaluate_are_waited_for_at_the_end_or_where_they_are_late():
    plan = replace(resnet_plan("resnet50-mlperf-3200", 8), total_steps=100, stop_after=100, eval_steps=(40, 80, 100))
    beside = replace(plan, eval_ranks=4)
    assert run_minutes(plan, 100, 1.0, 6.0) == pytest.approx((100 + 3 * 6) / 60)
    assert run_minutes(beside, 100, 1.0, 6.0) == pytest.approx((100 + 6) / 60)
    # 30 s: the first two have 40 and 20 steps to the next one.
    assert run_minutes(beside, 100, 1.0, 30.0) == pytest.approx((100 + 10 + 30) / 60)
    assert dgx(beside).evaluation_seconds == pytest.approx(2 * dgx(plan).evaluation_seconds)


def test_fewer_bits_and_slower_links_change_the_exchange_alone():
    plan = resnet_plan("resnet50-mlperf-3200-8x8", 64)
    speed = PUBLISHED["classification", "H100-SXM5"]
    slow = estimate(plan, H100, speed, parameters=PARAMETERS, link_gbit=10)
    half = estimate(plan, System(**{**vars(H100), "grad_compression": "bf16"}), speed, parameters=PARAMETERS, link_gbit=10)
    assert slow.exposed_seconds > 0.1 > slow.compute_seconds == half.compute_seconds
    assert half.exchange_seconds == pytest.approx(slow.exchange_seconds / 2, rel=0.01)


def test_unknown_links_are_said_and_not_guessed():
    told = estimate(resnet_plan("resnet50-mlperf-3200-8x8", 64), H100, given_speed(5000), parameters=PARAMETERS)
    assert not told.links_known and told.exchange_seconds == 0
    assert estimate(resnet_plan("resnet50-mlperf-3200", 8), H100, given_speed(7000), parameters=1).links_known


def test_a_rate_that_is_given_is_the_rate():
    told = dgx(resnet_plan("resnet50-mlperf-3200", 8), given_speed(6000))
    assert told.images_per_second == pytest.approx(8 * 6000)


def test_a_measured_rate_is_met_at_its_own_size_and_keeps_the_chips_share_of_fixed_cost():
    published = PUBLISHED["classification", "H100-SXM5"]
    measured = measured_speed(3500, 400, published, "a run")
    assert 400 / measured.seconds(400) == pytest.approx(3500)
    assert measured.seconds(50) / published.seconds(50) == pytest.approx(measured.seconds(400) / published.seconds(400))
    assert measured_speed(3500, 400, None, "a run").fixed == 0


def test_walltimes_reserve_more_than_the_published_runs_took():
    for name, world, minutes in (("resnet50-mlperf-3200", 8, 13.6), ("resnet50-mlperf-57344", 3584, 0.183)):
        plan = resnet_plan(name, world)
        found = predicted_minutes(RECIPES[name](), plan, H100, parameters=PARAMETERS, system_name="dgx-h100")
        assert found is not None and found.minutes == pytest.approx(1.25 * dgx(plan).minutes + 5, abs=1)
        assert minutes < found.minutes < 3 * minutes + 10
        assert f"{found.minutes} min" in found.reason and "estimate" in found.reason and "margin of 25%" in found.reason


def test_nothing_known_is_no_walltime():
    recipe, plan = RECIPES["resnet50-mlperf-3200-8x8"](), resnet_plan("resnet50-mlperf-3200-8x8", 64)
    assert predicted_minutes(recipe, plan, System(), parameters=1) is None
    assert predicted_minutes(recipe, plan, H100, parameters=1, system_name="./my_site.py:rack") is None
    assert published_speed(RECIPES["maskrcnn"](), "V100-SXM2-32GB") is None


def test_another_network_or_size_has_no_published_speed():
    for name in ("resnet50", "ssd", "maskrcnn"):
        assert published_speed(RECIPES[name](), "A100-SXM4-40GB") is not None
    for name in ("classify-demo", "ssd-demo", "maskrcnn-demo"):
        assert published_speed(RECIPES[name](), "A100-SXM4-40GB") is None
    smaller = override(RECIPES["resnet50"](), {"input.image_size": 160})
    assert published_speed(smaller, "H100-SXM5-80GB") is None


def test_accumulated_forwards_all_compute_and_the_last_alone_hides_the_exchange():
    plan = resnet_plan("resnet50-mlperf-3200-8x8", 64)
    cut = replace(plan, micro_batches=5, micro_batch_size=plan.micro_batch_size // 5)
    speed = PUBLISHED["classification", "H100-SXM5"]
    whole, parts = (estimate(one, H100, speed, parameters=PARAMETERS, link_gbit=100) for one in (plan, cut))
    assert parts.compute_seconds == pytest.approx(whole.compute_seconds)
    assert parts.exposed_seconds > whole.exposed_seconds

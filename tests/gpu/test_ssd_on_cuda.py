"""SSD on a GPU: a step that never waits, the same step as one CUDA graph, the CPU's matching, mining and detections.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from benchmarks.ssd import peer_step
from benchmarks.ssd_operations import RULES, guesses, loss_of
from paceline.config.system import Precision, System
from paceline.distributed.device.timing import find_host_wait
from paceline.models.ops.boxes import to_ltrb
from paceline.models.ops.matching import Tie, match
from paceline.models.ssd.loss import background_loss, select_hardest
from paceline.models.ssd.postprocess import postprocess_ssd
from paceline.tools.bench.harness import Step
from paceline.tools.bench.step import make_step
from paceline.tools.bench.step_ssd import SSDBench, SSDInputs, make_ssd_inputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TINY = SSDBench(
    depth=18, batch=4, size=96, classes=5, rounds=1, seconds=0.0, precisions=("bf16",), system=System("cuda"),
)  # fmt: skip


def scene(device: torch.device, classes: int = TINY.classes) -> SSDInputs:
    return make_ssd_inputs(TINY.batch, classes, TINY.size, device)


def step_of(precision: Precision = "fp32", **forms: bool) -> Step:
    return make_step(TINY, precision, scene(CUDA), CUDA, **forms).step


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_never_waits_for_the_device(precision: Precision) -> None:
    step = step_of(precision)
    step()
    assert find_host_wait(step, CUDA) == ""


def test_a_step_that_waits_is_noticed() -> None:
    loss = step_of()
    assert find_host_wait(lambda: loss().cpu(), CUDA) != ""


def test_losses_follow_the_cpu_and_the_plain_formulation() -> None:
    steps = [
        step_of(),
        make_step(replace(TINY, system=System("cpu")), "fp32", scene(CPU), CPU).step,
        peer_step(TINY, "fp32", scene(CUDA), CUDA).step,
    ]
    for _ in range(5):
        ours, on_cpu, plain = (float(step()) for step in steps)
        assert ours == pytest.approx(on_cpu, rel=2e-2) and ours == pytest.approx(plain, rel=2e-2)


def test_a_graph_of_the_whole_step_trains_as_the_step_does() -> None:
    plain, graph = (step_of(), step_of(graph=True))
    for _ in range(5):
        assert float(graph()) == pytest.approx(float(plain()), rel=2e-2)


def test_a_compiled_step_gives_the_losses_of_the_eager_one() -> None:
    compiled = step_of("bf16", compile=True)
    eager = step_of("bf16")
    for _ in range(3):
        assert float(compiled()) == pytest.approx(float(eager()), rel=3e-2)


@pytest.mark.parametrize("tie", ["last", "first"])
def test_matching_is_the_cpus(tie: Tie) -> None:
    here, there = scene(CPU), scene(CUDA)
    slots, positives = match(here.batch.boxes, here.batch.labels, to_ltrb(here.anchors), tie=tie)
    found = match(there.batch.boxes, there.batch.labels, to_ltrb(there.anchors), tie=tie)
    assert torch.equal(found[1].cpu(), positives) and torch.equal(found[0].cpu()[positives], slots[positives])


def test_mining_is_the_cpus_with_equal_losses_and_with_too_few_candidates() -> None:
    losses = background_loss(guesses(scene(CPU), TINY.classes).noise[1])
    losses[0] = losses[0].round()
    candidates = torch.rand(losses.shape, generator=torch.Generator().manual_seed(0)) > 0.2
    candidates[1, 5:] = False
    wanted = torch.tensor([40, 40, 0, 10_000])
    found = select_hardest(losses.to(CUDA), candidates.to(CUDA), wanted.to(CUDA))
    assert torch.equal(found.cpu(), select_hardest(losses, candidates, wanted))


def test_loss_and_gradients_are_the_cpus() -> None:
    results = []
    for device in (CPU, CUDA):
        there = scene(device)
        deltas, logits = (part.clone().requires_grad_() for part in guesses(there, TINY.classes).noise)
        loss = loss_of(logits, deltas, there)
        results.append([part.cpu() for part in (loss.detach(), *torch.autograd.grad(loss, (deltas, logits)))])
    for mine, theirs in zip(*results):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("topk_per", ["class", "image"])
@pytest.mark.parametrize("trained", [True, False])
def test_detections_are_the_cpus(topk_per: Literal["class", "image"], trained: bool) -> None:
    rows = []
    for device in (CPU, CUDA):
        there = scene(device)
        guess = guesses(there, TINY.classes)
        deltas, logits = guess.trained if trained else guess.noise
        rules = replace(RULES.detect, topk_per=topk_per)
        found = postprocess_ssd(logits, deltas, there.anchors, rules, rules.nms_iou)
        rows.append(found.cpu())
    assert (rows[0][..., 5] > 0).sum() > 10
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-5)

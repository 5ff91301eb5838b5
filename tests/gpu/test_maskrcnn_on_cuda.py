"""Mask R-CNN on a GPU: forward and backward that never wait, the same step as one CUDA graph, the CPU's numbers.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.maskrcnn_operations import SCORE, operations, unlike
from paceline.config.maskrcnn import MaskRCNNModel
from paceline.config.system import Precision, System
from paceline.distributed.device.timing import find_host_wait
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.tools.bench.harness import compare_operation
from paceline.tools.bench.step import make_step
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench, scale_logits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
RULES = MaskRCNNModel(depth=18)
RULES = replace(
    RULES,
    rpn=replace(
        RULES.rpn,
        pre_nms_topk_train=300,
        post_nms_topk_train=200,
        pre_nms_topk_test=200,
        post_nms_topk_test=100,
        samples_per_image=64,
    ),
    roi=replace(RULES.roi, samples_per_image=64),
    mask=replace(RULES.mask, target_buffer_size=32),
)
TINY = MaskRCNNBench(
    batch=2, height=128, width=160, classes=5, objects=4, positives=(12,), rounds=1, seconds=0.0,
    precisions=("fp32",), system=System("cuda"), net=RULES,
)  # fmt: skip


def scene(device: torch.device):
    return TINY.scene(12).to(device)


def losses_and_gradients(device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Of one forward with the scene's proposals, so that both devices sample the same regions."""
    there = scene(device)
    model = TINY.trained(there, device)
    found = model(there.batch)
    (found["sums"] / found["counts"].clamp(min=1)).sum().backward()
    gradients = {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}
    return torch.cat((found["sums"].detach(), found["counts"])).cpu(), gradients


@pytest.fixture(autouse=True)
def exact_products():
    """fp32 stays fp32 on the GPU: TF32 would be compared with the CPU otherwise."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_whole_step_never_waits_for_the_device(precision: Precision) -> None:
    step = make_step(TINY, precision, scene(CUDA), CUDA).step
    step()
    assert find_host_wait(step, CUDA) == ""


def test_own_proposals_never_wait_for_the_device_either() -> None:
    model, there = TINY.model(CUDA).train(), scene(CUDA)

    def step() -> torch.Tensor:
        found = model(there.batch)
        (found["sums"] / found["counts"].clamp(min=1)).sum().backward()
        return found["sums"]

    step()
    assert find_host_wait(step, CUDA) == ""


def test_prediction_never_waits_for_the_device() -> None:
    model, there = TINY.model(CUDA).eval(), scene(CUDA)
    model.predict(there.batch)
    assert find_host_wait(lambda: model.predict(there.batch).masks, CUDA) == ""


def test_losses_counts_and_gradients_are_the_cpus() -> None:
    (mine, gradients), (theirs, wanted) = losses_and_gradients(CUDA), losses_and_gradients(CPU)
    torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=1e-3)
    assert gradients.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = float(value.abs().max().clamp(min=1e-6))
        assert float((gradients[name] - value).abs().max()) < 2e-2 * scale, name


def test_a_graph_of_the_whole_step_trains_as_the_step_does() -> None:
    eager = make_step(TINY, "fp32", scene(CUDA), CUDA).step
    graph = make_step(TINY, "fp32", scene(CUDA), CUDA, graph=True).step
    for _ in range(5):
        assert float(graph()) == pytest.approx(float(eager()), rel=2e-2)


def test_detections_and_masks_are_the_cpus() -> None:
    detections, masks = predicted(CUDA)
    wanted, wanted_masks = predicted(CPU)
    assert len(wanted) > 5
    assert unlike(detections, wanted) < 0.05  # scores within rounding of each other may swap places, or win over the other
    apart = torch.cdist(detections, wanted, p=float("inf")).min(dim=1)
    mine, theirs = masks[apart.values < SCORE], wanted_masks[apart.indices[apart.values < SCORE]]
    torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def predicted(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Detections (n, 6) in fractions of the photo, score and class, and masks (n, S, S), with scores that lie apart."""
    model, there = TINY.model(device).eval(), scene(device)
    scale_logits(TINY.model(CPU).eval(), scene(CPU).batch, model.network)
    found = model.predict(there.batch)
    rows = (found.detections[..., 5] > 0).flatten().cpu()
    return found.detections.flatten(0, 1).cpu()[rows], found.masks.flatten(0, 1).cpu()[rows]


def test_pasted_masks_are_the_cpus_but_for_rounding() -> None:
    draw = torch.Generator().manual_seed(0)
    masks, boxes = torch.rand(5, 28, 28, generator=draw), TINY.scene(12).proposals[0, :5]
    here, there = paste_to_rle(masks, boxes, 128, 160), paste_to_rle(masks.to(CUDA), boxes.to(CUDA), 128, 160)
    assert sum(bytes(a) != bytes(b) for a, b in zip(here, there)) <= 1


def test_every_operation_gives_what_torchvisions_gives() -> None:
    pytest.importorskip("pycocotools")
    for operation in operations(TINY, CUDA):
        row, _ = compare_operation(operation, 1, 0.0, CUDA)
        assert all(row["agrees"].values()), row

"""The Mask R-CNN benchmarks, shrunken: contenders do the same work, and the report says what they did."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torchvision  # noqa: F401  (what its kernels are on the meta device)
from messages import raises

from benchmarks.maskrcnn import detectron2_model
from benchmarks.shapes_maskrcnn import count_shapes
from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.commands import bench as benches
from paceline.cli.printing import Printer
from paceline.config.maskrcnn import InstanceInput, MaskRCNNModel
from paceline.config.system import System
from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.roi_align import mask_targets
from paceline.tools.bench import step
from paceline.tools.bench.step import make_step, run_step_bench
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench, make_maskrcnn_inputs

CPU = torch.device("cpu")
RULES = MaskRCNNModel(depth=18)
RULES = replace(
    RULES,
    rpn=replace(
        RULES.rpn,
        pre_nms_topk_train=100,
        post_nms_topk_train=64,
        pre_nms_topk_test=60,
        post_nms_topk_test=30,
        samples_per_image=32,
    ),
    roi=replace(RULES.roi, samples_per_image=32),
    mask=replace(RULES.mask, target_buffer_size=24),
    detect=replace(RULES.detect, max_detections=10),
)
TINY = MaskRCNNBench(
    batch=1, height=64, width=96, classes=3, objects=2, positives=(6,), rounds=1, seconds=0.0,
    precisions=("fp32",), matrix=64, threads=1, system=System("cpu"), net=RULES,
)  # fmt: skip
PARTS = {
    "input", "backbone", "FPN", "proposal head", "proposals", "matching and sampling", "pooling", "box head", "mask head",
}  # fmt: skip


FACTS = pytest.mark.nightly("whole steps of four contenders with all their parts: 7 CPU seconds")


@pytest.fixture(scope="module")
def facts():
    torch.manual_seed(0)  # torchvision samples anchors with torch's own generator, whatever tests ran before
    return run_step_bench(TINY, CPU, lambda known: None)


@pytest.mark.parametrize("positives", [2, 5, 16])
def test_a_scene_has_as_many_positive_regions_as_asked_for(positives):
    made = make_maskrcnn_inputs(2, 96, 128, classes=3, objects=2, positives=positives, proposals=50, canvas=16)
    for boxes, proposals in zip(made.boxes, made.proposals):
        overlap = pairwise_iou(torch.cat((proposals, boxes)), boxes).amax(dim=1)
        assert int((overlap >= 0.5).sum()) == positives
        assert ((overlap - 0.5).abs() > 0.04).all()  # none on the edge


def test_a_scenes_canvases_are_its_bitmaps():
    made = make_maskrcnn_inputs(1, 64, 96, classes=3, objects=4, positives=4, proposals=8, canvas=64)
    batch = made.batch
    assert (batch.frames[0, :, 2:] == 1).all()
    targets = mask_targets(batch.canvases[0], batch.frames[0], batch.boxes[0], side=28, target="soft")
    for place, (bitmap, (left, top, _, _)) in enumerate(zip(made.bitmaps[0], batch.frames[0].long())):
        rows = bitmap[top : top + 64, left : left + 64]
        assert torch.equal(batch.canvases[0, place, 1 : 1 + rows.shape[0], 1 : 1 + rows.shape[1]], rows)
        assert targets[place].mean() == pytest.approx(torch.pi / 4, abs=0.1)


@FACTS
def test_every_contender_has_the_positives_and_our_weights_give_torchvisions_loss(facts):
    step = facts["step"]["fp32, 6 positive regions per image"]
    names = {"paceline", "torchvision", "torchvision channels_last"}
    assert names <= set(step["median_seconds"]) == set(step["positives_an_image"])
    assert set(step["positives_an_image"].values()) == {6.0}
    losses = step["first_losses"]
    # The regions and anchors that are sampled differ, so the losses do a little.
    assert losses["torchvision"] == pytest.approx(losses["torchvision channels_last"], rel=0.05)
    assert losses["paceline"] == pytest.approx(losses["torchvision"], rel=0.05)


@FACTS
def test_the_report_says_where_the_time_goes_and_what_is_absent(facts):
    step = facts["step"]["fp32, 6 positive regions per image"]
    for name in ("paceline", "torchvision"):
        where = step["where_milliseconds"][name]
        assert set(where) >= {*PARTS, "optimizer", "mask targets", "losses", "backbone, backward", "mask head, backward"}
        assert all(where[part] > 0 for part in PARTS)
    assert set(step["times_faster"]) == set(step["median_seconds"]) - {"paceline"}
    assert {"detectron2"} == set(step["absent"]) | ({"detectron2"} & set(step["median_seconds"]))
    assert step["gflop"]["paceline"] <= step["gflop"]["torchvision"]
    json.dumps(facts)


def test_a_detectron2_that_is_not_there_is_absent_with_a_reason(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "detectron2", None)
    with pytest.raises(PacelineError, match="detectron2"):
        detectron2_model(RULES, 3)


@FACTS
def test_every_operation_and_prediction_gives_what_torchvisions_gives(facts):
    assert len(facts["operations"]) == 9
    for row in (*facts["operations"], facts["predict"]["fp32"]):
        assert row["agrees"] == {"torchvision": True}, row
    *_, (_, scene) = TINY.scenes(CPU)
    predict = TINY.predictor("fp32", scene, CPU)
    assert len(predict()[0]) > 3 and facts["predict"]["fp32"]["difference"] == {"torchvision": 0.0}


def test_an_accelerators_whole_step_reads_nothing_back():
    """The meta device has no data to look at: forward, sampling, losses, backward and update."""
    meta = torch.device("meta")
    step = make_step(TINY, "fp32", TINY.scene(6).to(meta), meta).step
    assert step().shape == step().shape == ()


def test_an_epoch_of_coco_has_no_more_shapes_than_buckets(shared_data):
    facts = count_shapes(shared_data / "coco_mini", InstanceInput(), batch=4, each=2, positives=(32, 128), epochs=1)
    assert 1 < facts["distinct_shapes"] <= len(facts["buckets"]) <= 10
    assert 0 < facts["padding"] < 0.2 and 0 <= facts["empty_object_slots"] < 1
    assert sum(facts["shapes"].values()) * 2 >= facts["images"]
    assert facts["mask_slots"]["32"]["empty_on_an_accelerator"] == 0.75
    assert facts["mask_slots"]["128"]["gflop_of_empty_slots_forward"] == 0.0


@FACTS
def test_the_command_prints_tables_and_writes_json(tmp_path, capsys, monkeypatch, facts):
    monkeypatch.setattr(step, "run_step_bench", lambda bench, device, tell: (tell(facts), facts)[1])
    out = tmp_path / "new" / "step.json"
    assert (
        benches.run(
            Printer(),
            ["step", "--task", "instance-segmentation", "--system", "cpu", "--part", "step", "--output", str(out)],
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "Mask R-CNN, ResNet-50, 1 x 800 x 1216 px" in printed and "mask head" in printed
    assert json.loads(out.read_text()) == {"paceline": "answer"} | json.loads(json.dumps(facts))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--depth 152", "--depth 152"),
        ("--height 100", "--height 100"),
        ("--positives 3", "--positives 3"),
        ("--positives 200", "--positives 200"),
        ("--part eval", "--part eval"),
        ("--threads -1", "--threads"),
        ("--compile", "compiled"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags, message):
    with raises(PacelineError, message):
        benches.run(Printer(), ["step", "--task", "instance-segmentation", "--system", "cpu", *flags.split()])


def test_shapes_without_data_are_refused():
    with pytest.raises(RecipeError, match="--data"):
        benches.run(Printer(), ["step", "--task", "instance-segmentation", "--part", "shapes"])

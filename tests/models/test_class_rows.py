"""Class rows by name: what both sides have keeps its numbers, what is new starts anew, row by row, in every network and head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from messages import check_line, check_lines, check_text, raises
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec, init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.ssd.model import SSD, FusedHead, init_ssd
from paceline.models.weights.classes import COCO, COCO_90, MAX_LINES, Labels, count_class_rows, match_rows, select_rows
from paceline.models.weights.load import WeightReport, load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights

THEIRS = ("person", "traffic_light", "dog", "cat")
OURS = Labels(("Helmet", "Dog", "traffic light"))
PLACES = (None, 2, 1)


def test_names_match_without_regard_to_capitals_spaces_and_dashes():
    rows = match_rows([(name,) for name in THEIRS], OURS)
    assert rows.places == PLACES and rows.any and not rows.same
    assert check_lines(
        rows.lines(),
        ("2 of 3", "4"),
        ("class 1 Helmet", "new"),
        ("class 2 Dog", "row 3", "dog"),
        ("class 3 traffic light", "row 2", "traffic_light"),
    )


@pytest.mark.parametrize(
    ("theirs", "labels", "places"),
    [
        ([("crane",), ("crane",)], Labels(("crane",)), (None,)),  # two of theirs: which one is unknown
        ([("crane",)], Labels(("crane", "Crane")), (None, None)),  # two of ours
        ([("tench", "n01440764")], Labels(("fish",), folders=("n01440764",)), (0,)),  # a folder's name tells too
        ([("",), ("a",)], Labels(("", "a")), (None, 1)),  # a row of no category is nobody's
        ([("a",), ("b",)], Labels(("a", "b")), (0, 1)),
        ([], Labels(("a",)), (None,)),
        ([("a",)], Labels(()), ()),
    ],
    ids=["theirs twice", "ours twice", "folders", "no name", "the same", "none there", "none here"],
)
def test_a_name_that_tells_nothing_keeps_nothing(theirs, labels, places):
    assert match_rows(theirs, labels).places == places


def test_of_many_classes_the_new_ones_are_named():
    rows = match_rows([(str(number),) for number in range(100)], Labels(tuple(str(number) for number in range(85, 125))))
    lines = rows.lines()
    check_text(lines[0], "15 of 40", "100")
    few = match_rows([("a",)], Labels(tuple(str(number) for number in range(MAX_LINES))))
    assert len(few.lines()) == 1 + MAX_LINES  # a line each
    assert lines[1].startswith("  new: 100, 101, ") and lines[1].endswith(" and 15 more") and len(lines) == 2


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=6), st.booleans())
def test_rows_are_taken_as_the_obvious_loop_does(cells, each, places, bias):
    random = np.random.RandomState(0)
    tail = () if bias else (2, 3, 3)
    own = torch.from_numpy(random.rand(cells * len(places) * each, *tail))
    saved = torch.from_numpy(random.rand(cells * 5 * each, *tail))
    wanted = own.clone()
    for cell in range(cells):
        for row, place in enumerate(places):
            for number in range(each):
                if place is not None:
                    wanted[(cell * len(places) + row) * each + number] = saved[(cell * 5 + place) * each + number]
    before = own.clone()
    assert torch.equal(select_rows(own, saved, places, cells=cells, each=each), wanted)
    assert torch.equal(own, before)


def filed(model: nn.Module, folder: Path, names: tuple[str, ...]) -> Path:
    """As `weights convert --class-names-file` leaves it."""
    metadata = {"format": "pt", "paceline": json.dumps({"classes": names})}
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "w.safetensors", metadata
    )
    return folder / "w.safetensors"


def classifier(classes: int, seed: int) -> ResNet:
    model = ResNet(10, classes, width=4)
    init_weights(model, "torchvision", torch.Generator().manual_seed(seed))
    return model


def ssd(classes: int, seed: int, heads: str = "separate") -> SSD:
    settings = SSDModel(depth=10, width=4, extra_channels=8, heads=heads)  # type: ignore[arg-type]
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), classes, settings, grid_sizes(96))
    init_ssd(model, torch.Generator().manual_seed(seed))
    return model


def mask_rcnn(classes: int, seed: int) -> MaskRCNN:
    model = MaskRCNN(
        MaskRCNNModel(depth=10, width=4, fpn_channels=8, roi=RoI(fc_channels=16), mask=MaskHead(num_convs=1)), classes
    )
    init_mask_rcnn(model, torch.Generator().manual_seed(seed))
    return model


def test_a_classifier_keeps_the_rows_of_its_classes(tmp_path):
    source, model, fresh = classifier(4, 1), classifier(3, 2), classifier(3, 2)
    report = load_weights(model, filed(source, tmp_path, THEIRS), OURS)
    check_line(report.lines(), "2 of 3", "4")
    for own, first, saved in zip(model.fc.parameters(), fresh.fc.parameters(), source.fc.parameters()):
        check_rows([own], [first], [saved])
    assert torch.equal(model.conv1.weight, source.conv1.weight)


def check_rows(own: list[Tensor], first: list[Tensor], saved: list[Tensor], background: bool = False) -> None:
    """Each list has a tensor a cell's box; rows are those of OURS and of THEIRS."""
    places = (0, *(None if place is None else place + 1 for place in PLACES)) if background else PLACES
    for mine, fresh, theirs in zip(own, first, saved, strict=True):
        for row, place in enumerate(places):
            assert torch.equal(mine[row], fresh[row] if place is None else theirs[place]), row


def class_parts(model: SSD, level: int, part: str, classes: int) -> list[Tensor]:
    """A level's class rows, box by box."""
    head = model.heads[level]
    tensor = getattr(head.fused if isinstance(head, FusedHead) else head.conf, part).detach()
    boxes = (head.deltas if isinstance(head, FusedHead) else head.loc.out_channels) // 4
    return list(tensor[: boxes * (classes + 1)].unflatten(0, (boxes, classes + 1)))


def box_part(model: SSD, level: int, classes: int) -> Tensor:
    head = model.heads[level]
    if not isinstance(head, FusedHead):
        return head.loc.weight
    boxes = head.deltas // 4
    return head.fused.weight[boxes * (classes + 1) : boxes * (classes + 5)]


@pytest.mark.parametrize("there", ["separate", "fused"])
@pytest.mark.parametrize("here", ["separate", "fused"])
def test_an_ssd_keeps_the_rows_of_its_classes_with_either_kind_of_head(here, there, tmp_path):
    source, model, fresh = ssd(4, 1, there), ssd(3, 2, here), ssd(3, 2, here)
    report = load_ssd_weights(model, filed(source, tmp_path, THEIRS), OURS)
    assert not report.reinitialised and not report.unexpected
    for level in range(len(model.heads)):
        for part in ("weight", "bias"):
            parts = [class_parts(net, level, part, classes) for net, classes in ((model, 3), (fresh, 3), (source, 4))]
            check_rows(*parts, background=True)
        assert torch.equal(box_part(model, level, 3), box_part(source, level, 4))
    assert torch.equal(model.trunk.conv1.weight, source.trunk.conv1.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("here", ["separate", "fused"])
def test_an_ssd_of_other_classes_keeps_its_boxes_alone(here, tmp_path):
    source, model, fresh = ssd(4, 1), ssd(4, 2, here), ssd(4, 2, here)
    load_ssd_weights(model, filed(source, tmp_path, THEIRS), Labels(("a", "b", "c", "d")))
    assert torch.equal(box_part(model, 0, 4), box_part(source, 0, 4))
    for own, first in zip(class_parts(model, 0, "weight", 4), class_parts(fresh, 0, "weight", 4), strict=True):
        assert torch.equal(own, first)


def test_a_mask_rcnn_keeps_the_rows_of_its_classes_in_all_three_layers(tmp_path):
    source, model, fresh = mask_rcnn(4, 1), mask_rcnn(3, 2), mask_rcnn(3, 2)
    load_mask_rcnn_weights(model, filed(source, tmp_path, THEIRS), OURS)
    for layer, each in (
        ("box_predictor.cls_score", 1),
        ("box_predictor.bbox_pred", 4),
        ("mask_predictor.mask_fcn_logits", 1),
    ):
        for part in ("weight", "bias"):
            mine, first, theirs = (
                net.state_dict()[f"roi_heads.{layer}.{part}"].unflatten(0, (-1, each)) for net in (model, fresh, source)
            )
            check_rows([mine], [first], [theirs], background=True)


LOADERS = {
    "classifier": (classifier, load_weights, ("fc.weight",)),
    "ssd": (ssd, load_ssd_weights, ("heads.0.conf.weight",)),
    "mask r-cnn": (mask_rcnn, load_mask_rcnn_weights, ("roi_heads.box_predictor.bbox_pred.weight",)),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_same_classes_in_another_order_are_put_in_order(kind, tmp_path):
    make, load, (name,) = LOADERS[kind]
    source, model = make(4, 1), make(4, 2)
    report: WeightReport = load(model, filed(source, tmp_path, THEIRS), Labels(THEIRS[::-1]))
    assert not report.reinitialised and name in report.converted
    again = make(4, 3)
    file = filed(model, tmp_path, THEIRS[::-1])
    load(again, file, Labels(THEIRS))
    assert all(torch.equal(tensor, source.state_dict()[key]) for key, tensor in again.state_dict().items())


@pytest.mark.parametrize("kind", LOADERS)
def test_names_that_nobody_knows_change_nothing(kind, tmp_path):
    """A plain file of as many classes is copied as it is; of other classes as many, whose names are known, is not."""
    make, load, (name,) = LOADERS[kind]
    source, model = make(4, 1), make(4, 2)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    load(model, tmp_path / "w.pth", Labels(("a", "b", "c", "d")))
    assert torch.equal(model.state_dict()[name], source.state_dict()[name])
    model = make(4, 2)
    report = load(model, filed(source, tmp_path, THEIRS), Labels(("a", "b", "c", "d")))
    assert name in report.reinitialised and torch.equal(model.state_dict()[name], make(4, 2).state_dict()[name])


def test_cocos_names_stand_at_the_ids_of_its_annotations(shared_data):
    record = json.loads((shared_data / "coco_mini" / "annotations" / "instances_val2017.json").read_text())
    told = {entry["id"]: entry["name"] for entry in record["categories"]}
    assert list(COCO.items()) == sorted(told.items()) and len(COCO) == 80
    assert [COCO_90[number - 1] for number in told] == list(told.values()) and COCO_90.count("") == 10


def test_what_was_published_with_cocos_90_rows_has_their_names(tmp_path):
    source, model, fresh = mask_rcnn(90, 1), mask_rcnn(2, 2), mask_rcnn(2, 2)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    report = load_mask_rcnn_weights(model, tmp_path / "w.pth", Labels(("helmet", "Stop Sign"), (1, 2)))
    check_line(report.lines(), "class 2 Stop Sign", "row 13", "stop sign")
    name = "roi_heads.box_predictor.cls_score.weight"
    own, first, theirs = (net.state_dict()[name] for net in (model, fresh, source))
    assert torch.equal(own, torch.stack((theirs[0], first[1], theirs[13])))


@pytest.mark.parametrize(("kind", "rows"), [("classifier", 4), ("ssd", 4), ("mask r-cnn", 4)])
def test_rows_are_counted_without_the_background(kind, rows):
    counted = count_class_rows(LOADERS[kind][0](4, 1).state_dict())
    assert (counted, type(counted)) == (rows, int)


def test_garbled_names_of_ours_are_refused_by_the_file(tmp_path):
    from paceline._utils.errors import CheckpointError

    for garbled in (
        "{",
        "[]",
        json.dumps({"classes": [1]}),
        json.dumps({"needs": {"depth": "50"}}),
        json.dumps({"needs": 3}),
    ):
        save_file({"conv1.weight": torch.zeros(4, 3, 7, 7)}, tmp_path / "w.safetensors", {"paceline": garbled})
        with raises(CheckpointError, "metadata", "damaged"):
            load_weights(classifier(4, 1), tmp_path / "w.safetensors")

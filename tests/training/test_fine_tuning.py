"""Rates of fine-tuning: each parameter's by a table typed by hand, measured by what a step moves; stages that do not train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_night import ONE_MORE
from messages import raises
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.constraints import check_bounds
from paceline.config.maskrcnn import InstanceInput, MaskHead, MaskRCNNModel, RoI
from paceline.config.plan import StepRates
from paceline.config.recipe import Optim, Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.run import from_json
from paceline.config.ssd import BoxInput, SSDModel
from paceline.config.system import System
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import Backbone, BackboneSpec, get_lr_factors
from paceline.models.layers.batch_norm import update_running_statistics
from paceline.models.registry import WORKLOADS
from paceline.training.factory import build_state
from paceline.training.optim.step_scalars import StepScalars

LITE = "timm/tf_efficientnet_lite0"
# Beginning of a name -> stage, counted from the images on: of a ResNet; of timm's network, whose five maps end with these blocks.
RESNET = {"conv1.": 1, "bn1.": 1, "layer1.": 2, "layer2.": 3, "layer3.": 4, "layer4.": 5}
BLOCKS = {"net.conv_stem.": 1, "net.bn1.": 1, "net.blocks.0.": 1, "net.blocks.1.": 2, "net.blocks.2.": 3,
          "net.blocks.3.": 4, "net.blocks.4.": 4, "net.blocks.5.": 5, "net.blocks.6.": 5}  # fmt: skip
# Task -> (the trunk's name in the network, stages of a ResNet there).
TRUNKS = {"classification": ("", 5), "detection": ("trunk.", 4), "instance-segmentation": ("backbone.body.", 5)}
CASES = [
    *((task, "resnet") for task in TRUNKS),
    ("classification", LITE),
    *(pytest.param(task, LITE, marks=ONE_MORE) for task in ("detection", "instance-segmentation")),
]


def recipe_of(task: str, trunk: str = "resnet", freeze: int = 0, optim: Optim | None = None) -> Recipe[Any, Any]:
    shared: dict[str, Any] = {"backbone": trunk, "depth": 10, "width": 8, "freeze_stages": freeze}
    if task == "classification":
        model, given = ResNetModel(**shared), ImageInput(image_size=64)
    elif task == "detection":
        model, given = SSDModel(**shared, extra_channels=8, extra_norm=True), BoxInput(image_size=64)
    else:
        small = {"fpn_channels": 8, "roi": RoI(fc_channels=8), "mask": MaskHead(num_convs=1)}
        model, given = MaskRCNNModel(**shared, **small, norm="batch"), InstanceInput()
    return Recipe(task, model, given, optim=optim or Optim(lr=1.0, momentum=0.0, weight_decay=0.0))


def built(recipe: Recipe[Any, Any]) -> Any:
    if recipe.model.backbone != "resnet":
        pytest.importorskip("timm")
    model = WORKLOADS[recipe.task].network.build(recipe, 3)
    WORKLOADS[recipe.task].network.initialize(recipe, model, torch.Generator().manual_seed(1))
    return model


def state_of(model: nn.Module, recipe: Recipe[Any, Any]) -> Any:
    """The state as a run builds it."""
    run: Any = SimpleNamespace(recipe=recipe, system=System("cpu"))
    world: Any = SimpleNamespace(device=torch.device("cpu"))
    return build_state(model, run, world)


def stage_at(task: str, trunk: str, name: str) -> tuple[int, int]:
    """(A parameter's stage, 0 outside of the trunk; the trunk's stages), by the tables above."""
    prefix, stages = TRUNKS[task]
    table = RESNET if trunk == "resnet" else BLOCKS
    if trunk != "resnet":
        stages = 3 if task == "detection" else 5  # its maps of stride 2, 4, 8, and then 16 and 32
    name = name.removeprefix("network.")
    if not name.startswith(prefix):
        return 0, stages
    found = [stage for begin, stage in table.items() if name.removeprefix(prefix).startswith(begin)]
    return (found[0] if found else 0), stages


@pytest.mark.parametrize(("task", "trunk"), CASES)
def test_what_a_step_moves_is_the_rate_that_an_obvious_formula_gives(task, trunk):
    recipe = recipe_of(task, trunk)
    recipe = replace(recipe, optim=replace(recipe.optim, head_lr_factor=8.0, layer_decay=0.5, bias_lr_factor=4.0))
    model = built(recipe)
    state, numbers = state_of(model, recipe), StepScalars(recipe.optim, "cpu")
    assert numbers.lr == 0.0
    for weight in model.parameters():
        weight.data.zero_()
        weight.grad = torch.ones_like(weight)
    numbers.write(StepRates(1.0, 1.0))
    assert numbers.lr == 1.0  # what is logged stays the base rate
    state.optimizer.step(numbers)
    seen, (_, stages) = set(), stage_at(task, trunk, "")
    for name, weight in model.named_parameters():
        stage, _ = stage_at(task, trunk, name)
        expected = 8.0
        if stage:
            expected = 1.0
            for _ in range(stages - stage + 1):
                expected *= 0.5
        if name.endswith(".bias"):
            expected *= 4.0
        assert torch.equal(weight.data, torch.full_like(weight, -expected)), name
        seen.add(stage)
    assert seen == set(range(stages + 1))


@pytest.mark.parametrize(
    ("optim", "factors"), [({"head_lr_factor": 3.0}, {"conv1.weight": 1.0, "fc.weight": 3.0}),
                           ({"layer_decay": 0.5}, {"conv1.weight": 0.5**5, "layer4.0.bn1.bias": 0.5, "fc.weight": 1.0})]
)  # fmt: skip
def test_each_of_the_two_acts_alone(optim, factors):
    found = get_lr_factors(built(recipe_of("classification")), Optim(**optim))
    assert {name: found[f"network.{name}"] for name in factors} == factors


def forward_of(task: str, model: Any) -> Callable[[Tensor], Tensor]:
    """Images -> a number that every layer of the trunk has a part in."""
    if task == "classification":
        return lambda images: model.network.classify(images).square().sum()
    part = model.network if task == "detection" else model.network.backbone
    return lambda images: torch.stack([found.square().mean() for found in part(images)]).sum()


@pytest.mark.parametrize(("task", "trunk"), CASES)
@pytest.mark.parametrize("freeze", [1, 3])
def test_frozen_stages_keep_weights_and_statistics_to_the_bit_and_the_rest_learns(task, trunk, freeze):
    recipe = recipe_of(task, trunk, freeze, Optim(lr=0.01, head_lr_factor=2.0, layer_decay=0.9))
    model = built(recipe)
    state, numbers, forward = state_of(model, recipe), StepScalars(recipe.optim, "cpu"), forward_of(task, model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.Generator().manual_seed(3)
    for _ in range(2):
        model.eval()  # an evaluation between steps
        model.train()
        numbers.write(StepRates(0.01, 0.01))
        forward(torch.randn(4, 3, 64, 64, generator=random)).backward()
        state.optimizer.step(numbers)
        state.optimizer.zero_grad()
        update_running_statistics(model)
    stages, trained = set(), [entry.name for entry in state.optimizer.parameters]
    for name, tensor in model.state_dict().items():
        stage, _ = stage_at(task, trunk, name)
        if stage:
            assert torch.equal(tensor, before[name]) == (stage <= freeze), name
            stages.add(stage)
    for name, _ in model.named_parameters():
        assert (name in trained) == (not 1 <= stage_at(task, trunk, name)[0] <= freeze), name
    assert len(stages) == stage_at(task, trunk, "")[1]
    if task == "classification":
        assert not torch.equal(model.network.fc.weight, before["network.fc.weight"])


def test_freeze_stages_freezes_the_whole_backbone_or_its_first_stages():
    recipe = recipe_of("classification", freeze=5)
    model = built(recipe)
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == [
        "network.fc.weight",
        "network.fc.bias",
    ]
    model.train()
    assert model.network.training and not any(norm.training for norm in model.modules() if isinstance(norm, nn.BatchNorm2d))
    for freeze, still in ((2, 3), (3, 4)):
        body = built(recipe_of("instance-segmentation", freeze=freeze)).network.backbone.body
        beginnings = {name.partition(".")[0] for name, weight in body.named_parameters() if not weight.requires_grad}
        assert len(beginnings) == still and not body.train().layer1.training
        assert body.layer2.training == (freeze < 3) and body.layer3.training


def test_without_them_steps_are_torch_s_to_the_bit_in_the_groups_that_were():
    recipe = recipe_of("classification", optim=Optim(lr=0.1, momentum=0.9, weight_decay=1e-3))
    model, other = built(recipe), built(recipe)
    assert get_lr_factors(model, recipe.optim) == {}
    state, numbers = state_of(model, recipe), StepScalars(recipe.optim, "cpu")
    assert {entry.rate for entry in state.optimizer.parameters} == {1.0}
    theirs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for step in range(3):
        images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(step))
        for net in (model, other):
            forward_of("classification", net.train())(images).backward()
        numbers.write(StepRates(0.1, 0.1))
        state.optimizer.step(numbers)
        theirs.step()
        state.optimizer.zero_grad()
        theirs.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters()))
    # A run's file from before has none of the three.
    facts = asdict(recipe)
    del facts["model"]["freeze_stages"], facts["optim"]["head_lr_factor"], facts["optim"]["layer_decay"]
    assert from_json(recipe, facts, "recipe") == recipe


class Bare(Backbone):
    """A trunk without stages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, images):
        return [self.conv(images)]

    def draw(self, init, generator, *, zero_init_residual): ...

    def of_file(self, saved):
        return {}, ()


@pytest.mark.parametrize(
    ("model", "stride", "says"),
    [
        (
            ResNetModel(depth=10, width=8, freeze_stages=6),
            0,
            "--model.freeze-stages 6: must be from 0 to 5, its number of stages.",
        ),
        (
            SSDModel(depth=10, width=8, freeze_stages=5),
            8,
            "--model.freeze-stages 5: must be from 0 to 4, its number of stages.",
        ),
        (
            ResNetModel(backbone=LITE, freeze_stages=6),
            0,
            "--model.freeze-stages 6: must be from 0 to 5, its number of stages.",
        ),
        (ResNetModel(freeze_stages=-1), 0, "--model.freeze-stages -1: must be 0 or more."),
    ],
)
def test_more_stages_than_there_are_is_refused(model, stride, says):
    if model.backbone == LITE:
        pytest.importorskip("timm")
    with pytest.raises(RecipeError) as refusal:
        build_backbone(model, BackboneSpec(stride=stride))
    assert str(refusal.value) == says


def test_what_has_no_stages_or_no_trunk_is_refused_where_it_would_need_them():
    rates = Optim(head_lr_factor=2.0), Optim(layer_decay=0.5)
    bare = Bare()
    bare.freeze_stages(0)
    assert get_lr_factors(bare, rates[0]) == {"conv.weight": 1.0, "conv.bias": 1.0}
    for asks in (lambda: bare.freeze_stages(1), lambda: get_lr_factors(bare, rates[1])):
        with raises(RecipeError, "--model.freeze-stages", "--optim.layer-decay", "Bare"):
            asks()
    for optim in rates:
        with raises(RecipeError, "backbone", "1"):
            get_lr_factors(nn.Linear(2, 2), optim)


@pytest.mark.parametrize(
    ("optim", "flag"),
    [(Optim(head_lr_factor=0.0), "--optim.head-lr-factor 0"), (Optim(layer_decay=0.0), "--optim.layer-decay 0"),
     (Optim(layer_decay=1.1), "--optim.layer-decay 1.1")],
)  # fmt: skip
def test_factors_outside_their_bounds_are_refused(optim, flag):
    with pytest.raises(RecipeError, match=flag):
        check_bounds(recipe_of("classification", optim=optim))

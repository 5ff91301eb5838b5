"""From a recipe's name of a trunk to the trunk: ours, timm's where it is installed, or a registered one."""

from __future__ import annotations

from paceline.config.constraints import check_bounds
from paceline.config.recipe import refuse_outside
from paceline.config.resnet import RESNET, TRUNKS, TrunkModel, trunk_rules
from paceline.models.backbones.base import Form, Trunk
from paceline.models.backbones.resnet import make_resnet


def make_trunk(model: TrunkModel, form: Form) -> Trunk:
    """The trunk that a recipe names, its weights not drawn yet and its first stages frozen where the recipe says so.

    Raises RecipeError for an unknown name, and for a form that this trunk cannot have.
    """
    check_bounds(model, "--model.", of=TrunkModel)
    refuse_outside(*trunk_rules(model))
    trunk = _made(model, form)
    trunk.freeze_stages(model.freeze)
    return trunk


def _made(model: TrunkModel, form: Form) -> Trunk:
    family, _, name = model.trunk.partition("/")
    if family in TRUNKS:
        return TRUNKS[family](name, model, form)
    if family == RESNET:
        return make_resnet(name, model, form)
    from paceline.models.backbones.timm_adapter import make_timm_trunk

    return make_timm_trunk(name, model, form)

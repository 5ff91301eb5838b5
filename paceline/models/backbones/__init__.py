"""Trunks, and from a recipe's name of one to it: ours, timm's where it is installed, or a registered one."""

from __future__ import annotations

from paceline.config.constraints import check_bounds
from paceline.config.recipe import check_rules
from paceline.config.resnet import RESNET, TRUNKS, BackboneModel, backbone_rules
from paceline.models.backbones.base import Backbone, BackboneSpec
from paceline.models.backbones.resnet import build_resnet


def build_backbone(model: BackboneModel, form: BackboneSpec) -> Backbone:
    """The trunk that a recipe names, its weights not drawn yet and its first stages frozen where the recipe says so.

    Raises RecipeError for an unknown name, and for a form that this trunk cannot have.
    """
    check_bounds(model, "--model.", of=BackboneModel)
    check_rules(*backbone_rules(model))
    backbone = _made(model, form)
    backbone.freeze_stages(model.freeze_stages)
    return backbone


def _made(model: BackboneModel, form: BackboneSpec) -> Backbone:
    family, _, name = model.backbone.partition("/")
    if family in TRUNKS:
        return TRUNKS[family](name, model, form)
    if family == RESNET:
        return build_resnet(name, model, form)
    from paceline.models.backbones.timm_adapter import build_timm_backbone

    return build_timm_backbone(name, model, form)

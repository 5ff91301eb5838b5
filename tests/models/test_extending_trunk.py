"""docs/how-to/extend/backbone.md: its code is written to files and carried out, as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
from tiny_runs import make_photos, without_report

import paceline
from paceline.config.maskrcnn import MaskRCNNModel
from paceline.config.resnet import TRUNKS, BackboneModel
from paceline.config.ssd import SSDModel
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec
from paceline.models.layers.batch_norm import list_batch_norms
from paceline.models.maskrcnn.model import MaskRCNN

PAGE = Path(paceline.__file__).parents[1] / "docs/how-to/extend/backbone.md"


def test_the_page_s_trunk_trains_predicts_and_fits_under_every_network(tmp_path, monkeypatch):
    file, training, checks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    (tmp_path / "my_backbone.py").write_text(file)
    photos = make_photos(tmp_path / "photos")
    (tmp_path / "photo.jpg").write_bytes(next(photos.rglob("*.jpg")).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(TRUNKS, "plain", None)  # taken out again after the test
    without_report(monkeypatch)
    names = {"torch": torch}
    exec(training, names)
    assert names["trained"].step == 4 and len(names["result"].names) == 3
    exec(checks, names)
    # The two detectors, from the same field.
    trunk = build_backbone(SSDModel(backbone="plain", width=4), BackboneSpec(stride=8))
    assert trunk.strides == [4, 8] and len(list(list_batch_norms(trunk))) == 3
    network = MaskRCNN(MaskRCNNModel(backbone="plain", width=4, fpn_channels=8, norm="batch", freeze_stages=1), 3)
    assert [level.shape[-1] for level in network.backbone(torch.zeros(1, 3, 64, 64))] == [16, 8, 4, 2, 1]
    # A classifier's file fills the shorter trunk.
    whole = build_backbone(BackboneModel(backbone="plain", width=4), BackboneSpec())
    tensors, beyond = trunk.of_file(whole.state_dict())
    assert {name for name in tensors if not name.startswith(beyond)} <= set(trunk.state_dict())

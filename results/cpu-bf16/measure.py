"""fp32 and bf16 autocast by turns: a forward and backward of SSDs on this CPU, best of four rounds each."""

import time

import torch

from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec
from paceline.models.ssd.model import SSD, init_ssd

NETWORKS = ((256, 10, 24, 128, 16), (256, 10, 32, 256, 16), (192, 10, 16, 128, 32), (300, 34, 64, 512, 4))

for size, depth, width, extras, batch in NETWORKS:
    settings = SSDModel(depth=depth, width=width, extra_channels=extras, extra_norm=True)
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), 80, settings, grid_sizes(size))
    init_ssd(model, torch.Generator().manual_seed(0))
    model = model.to(memory_format=torch.channels_last).train()
    images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    seconds = {False: [], True: []}
    for _ in range(4):
        for low in (False, True):
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                logits, deltas = model(images)
                loss = logits.float().square().mean() + deltas.float().square().mean()
            loss.backward()
            seconds[low].append(time.perf_counter() - began)
    full, low = batch / min(seconds[False]), batch / min(seconds[True])
    print(f"{size} px, depth {depth}, width {width}: fp32 {full:.1f}, bf16 {low:.1f} images/s, {low / full:.2f} times")

"""Images/s of a small ResNet's forward and backward on two threads: python measure.py THREADS. Environment decides the waiting."""

import sys
import time

import torch
import torch.nn.functional as F

from paceline.models.backbones.base import init_weights
from paceline.models.backbones.resnet import ResNet

torch.set_num_threads(int(sys.argv[1]))
model = ResNet(10, 10, width=32)
init_weights(model, "torchvision", torch.Generator().manual_seed(0))
model = model.to(memory_format=torch.channels_last)
images = torch.randn(32, 3, 128, 128).contiguous(memory_format=torch.channels_last)
labels = torch.randint(0, 10, (32,))


def step() -> None:
    F.cross_entropy(model.classify(images), labels).backward()
    model.zero_grad()


step()
step()
wall, cpu, steps = time.time(), time.process_time(), 0
while time.time() - wall < 6:
    step()
    steps += 1
print(f"{32 * steps / (time.time() - wall):.0f} images/s, {32 * steps / (time.process_time() - cpu):.0f} per CPU-second")

"""MXNet 1.9.1's own ResNet-50 v1 (6 % less work than v1.5: it strides in 1x1 convolutions), hybridised, with static memory.

python mxnet_loop.py SECONDS prints images/s; in an environment with Python 3.8, mxnet==1.9.1 and numpy<1.24.
"""

import sys
import time

import mxnet as mx  # pyright: ignore[reportMissingImports]
from mxnet import autograd, gluon  # pyright: ignore[reportMissingImports]
from mxnet.gluon.model_zoo import vision  # pyright: ignore[reportMissingImports]

BATCH = 8
network = vision.resnet50_v1(classes=1000)
network.initialize(mx.init.Xavier())
network.hybridize(static_alloc=True, static_shape=True)
trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
images, labels = mx.nd.random.uniform(shape=(BATCH, 3, 224, 224)), mx.nd.arange(BATCH)


def step() -> None:
    with autograd.record():
        loss = loss_of(network(images), labels)
    loss.backward()
    trainer.step(BATCH)
    mx.nd.waitall()


for _ in range(3):
    step()
began, steps, seconds = time.perf_counter(), 0, float(sys.argv[1])
while time.perf_counter() - began < seconds:
    step()
    steps += 1
print(BATCH * steps / (time.perf_counter() - began), 0, 0, 0)

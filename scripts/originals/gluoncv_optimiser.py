"""What moves the weights in GluonCV's training: MXNet's SGD as train_mask_rcnn.py sets it up, and its loop's learning rates.

Letters: I iterations of an epoch   E epochs
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np

BATCH, WD, CLIP, MOMENTUM = 2, 1e-4, 1.5, 0.9


def steps(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> gradients and rates of eight steps, and a weight and a bias after each; rates fall, gradients pass the clip."""
    rates = np.array([0.02, 0.02, 0.02, 0.01, 0.01, 0.002, 0.002, 0.0002])
    weight, bias = mx.gluon.Parameter("weight", shape=(40,)), mx.gluon.Parameter("bias", shape=(40,))
    start = random.normal(size=(2, 40)).astype(np.float32)
    for parameter, values in zip((weight, bias), start):
        parameter.initialize(init=mx.init.Constant(mx.nd.array(values)))
    bias.wd_mult = 0.0
    dictionary = mx.gluon.ParameterDict()
    dictionary.update({"weight": weight, "bias": bias})
    trainer = mx.gluon.Trainer(
        dictionary, "sgd", {"learning_rate": 0.02, "wd": WD, "momentum": MOMENTUM, "clip_gradient": CLIP}, kvstore=None
    )
    gradients = (3 * random.normal(size=(len(rates), 2, 40))).astype(np.float32)
    after = []
    for rate, pair in zip(rates, gradients):
        trainer.set_learning_rate(float(rate))
        for parameter, gradient in zip((weight, bias), pair):
            with mx.autograd.record():
                loss = (parameter.data() * mx.nd.array(BATCH * gradient)).sum()
            loss.backward()
        trainer.step(BATCH)
        after.append([weight.data().asnumpy(), bias.data().asnumpy()])
    return {"start": start, "rates": rates, "gradients": gradients, "after": np.array(after)}


def schedule(script: Path) -> dict[str, np.ndarray]:
    """-> the rate of every iteration of train_mask_rcnn.py's own loop, around a net, data and a task that do nothing.

    script  scripts/instance/mask_rcnn/train_mask_rcnn.py of a checkout of github.com/dmlc/gluon-cv
    """
    spec = importlib.util.spec_from_file_location("train_mask_rcnn", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parameter = mx.gluon.Parameter("weight", shape=(1,))
    parameter.initialize()
    dictionary = mx.gluon.ParameterDict()
    dictionary.update({"weight": parameter})
    net = SimpleNamespace(
        collect_params=lambda *_: dictionary, collect_train_params=lambda: dictionary, hybridize=lambda **_: None
    )
    seen: list[float] = []

    class Trainer(mx.gluon.Trainer):
        def step(self, batch_size: int) -> None:
            seen.append(self.learning_rate)

    numbers = [mx.nd.zeros((1,))] * 5 + [[[mx.nd.zeros((1,))] * 2, [mx.nd.zeros((1,))] * 2]] * 6
    module.gluon = SimpleNamespace(Trainer=Trainer)
    # A rank that reports nothing.
    module.hvd = SimpleNamespace(rank=lambda: 1, broadcast_parameters=lambda *_, **__: None, DistributedTrainer=Trainer)
    module.split_and_load = lambda batch, ctx_list: [batch]
    data = [[mx.nd.zeros((1,))]] * 7
    module.ForwardBackwardTask = lambda *_: SimpleNamespace(forward_backward=lambda _: numbers)
    module.validate = module.save_params = lambda *_: None
    for name in ("RPNAcc", "RPNL1Loss", "RCNNAcc", "RCNNL1Loss", "MaskAcc", "MaskFGAcc"):
        setattr(module, f"{name}Metric", lambda: mx.metric.Loss("unused"))
    cases, arrays = ((("16", 0.02, "8,10", 0.03, 16, 9), ("192", 0.16, "10,14", 0.001, 192, 14)), {})  # warm-up: iterations
    for name, rate, decays, factor, batch, warmup in cases:
        seen.clear()
        arguments = SimpleNamespace(
            kv_store="local", amp=False, lr=rate, wd=WD, momentum=MOMENTUM, clip_gradient=CLIP, horovod=True,
            lr_decay=0.1, lr_decay_epoch=decays, lr_warmup=warmup, lr_warmup_factor=factor, rpn_smoothl1_rho=1 / 9,
            rcnn_smoothl1_rho=1.0, verbose=False, start_epoch=0, epochs=12, executor_threads=1, static_alloc=False,
            disable_hybridization=True, log_interval=10**9, val_interval=1, save_interval=1, save_prefix="", batch_size=batch,
        )  # fmt: skip
        module.train(net, data, None, None, batch, [mx.cpu()], logging.getLogger("schedule"), arguments)
        arrays[f"rates_{name}"] = np.array(seen)
        arrays[f"facts_{name}"] = np.array([rate, factor, warmup, len(data), *map(float, decays.split(","))])
    return arrays

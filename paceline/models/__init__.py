"""Networks: one folder each, with all that is its own (`resnet`, `ssd`, `maskrcnn`), and what they share.

Each network's folder has its loss, transforms, task (data module and evaluator) and workload; `registry.py` lists the workloads.
Shared: backbones/, layers/, ops/ (geometry of boxes and masks), metrics/, weights/ (files of weights), and the files here.
"""

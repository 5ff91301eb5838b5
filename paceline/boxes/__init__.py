"""Geometry of boxes and masks as functions of tensors: anchors, coding, matching, suppression, pooling, pasting, run lengths.

Here belongs what has neither parameters nor files. An operation `x` with two forms has `x_cpu` and `x_fixed`; `forms` chooses.
Parameters are in models/, scores in tasks/metrics/, annotation files in data/. Imports torch, numpy, torchvision's compiled kernels
and, where a run asks for it, Triton, and nothing else of paceline.
"""

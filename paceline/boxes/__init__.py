"""Geometry of boxes and masks as functions of tensors: anchors, coding, matching, suppression, pooling, pasting, run lengths.

Here belongs what has neither parameters nor files. An operation `x` with two forms has `x_cpu` and `x_fixed`; `forms` chooses.
What has weights is in models/, what scores detections in metrics/, what opens annotations in data/.
It imports torch, numpy and torchvision's compiled kernels, and nothing else of paceline.
"""

"""Geometry of boxes and masks as functions of tensors: anchors, coding, matching, sampling, suppression, pooling, pasting.

An operation `x` has the forms `x_cpu`, which follows the data, and `x_fixed`, whose shapes follow from shapes alone; some have kernels
in Triton. `dispatch.py` chooses.
"""

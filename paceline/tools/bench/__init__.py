"""Measurements: a step, the input path, scoring, start-up, communication; ours, and beside peers in a checkout.

Here: one harness (harness.py, roofline.py, timing.py), and for each workload a file that says what its contenders are.
Not here: other libraries, and measurements for developers (benchmarks/, found by baselines.py). No training run imports from here.
"""

"""Measurements: a step, the input path, scoring, start-up, communication; ours, and beside peers in a checkout.

Here: one harness (harness.py, ratio.py, ceiling.py, timing.py) and a short file a workload that says what its contenders are.
Not here: other libraries (benchmarks/, beside the package, found by peers.py), tables and flags (cli/bench*.py). Nothing of a
training run imports from here.
"""

"""Workloads bound to a recipe and a data set: how a photo becomes a sample, which network, how an evaluation is scored.

Here belongs what knows both data and models: a Task and its loaders, shapes of a run, memory of a step, MLPerf's facts.
The menu of workloads is workloads/; the loop, which knows no workload, is training/ and engine/.
"""

"""The request and the arithmetic on it: recipe, system, plan, run options, schedule. Standard library only.

Here: frozen dataclasses with their help texts, refusals that need no data and no device, recipes/. Not here: tensors, other processes,
anything that knows a workload's code.
"""

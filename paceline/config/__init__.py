"""The request and the arithmetic on it: recipe, system, plan, run controls, schedule. Standard library only.

Here: frozen dataclasses whose field comments are the help texts; refusals that need no data and no device; reading files of others
and writing ours whole (plain_file, whole). Not here: tensors, other processes, anything that knows a workload's code.
"""

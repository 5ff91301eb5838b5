"""What one process of a job needs around its model: the other ranks (`comm`) and its own machine (`device`).

Starting the ranks belongs in `launch`, sums inside a training step in `training`.
"""

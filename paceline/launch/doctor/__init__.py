"""What this machine has, what is missing for training, and what differs between nodes.

Here: facts, comparisons and one line a finding, with what to do. Nothing is set or mended.
Not here: what a run sets for itself (machine/), measuring (bench/).
"""

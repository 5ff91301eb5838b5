"""What this machine has, what is missing for training, and what differs between nodes.

Here: facts, comparisons and one line a finding, with what to do. Nothing is set or mended.
What a run sets for itself is in distributed/device, measurements are in tools/bench.
"""

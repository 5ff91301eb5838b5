"""Checkpoints on disk: written whole or not at all, checksummed, never changed, found again.

Here: layout, writing in the background, reading with every byte checked. Not here: what is in one (training/state.py), which is best
(training/standing.py), weights of others (weights/forms/).
"""

"""Checkpoints on disk: layout, writing whole or not at all, reading with every byte checked.

Not here: the content of one (training/state.py), which is best (training/eval_history.py), weights of others (models/weights).
"""

"""Anybody's files of weights: read, named, loaded into the networks of models/, written for others.

Here: forms/, one file a publisher; which rows of a file are classes; what fits. Not here: checkpoints of runs (checkpoint/).
"""

"""Formats of weight files: kinds of bytes (detect.py) and names of tensors (table.py), a row each.

Nothing of a file is executed, and sizes are bounded. The reader of pickled arrays is used by `paceline weights` only.
"""

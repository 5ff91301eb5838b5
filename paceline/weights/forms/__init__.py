"""Somebody's weight files: kinds of bytes (files.py) and whose names they have (table.py), each a row.

Here belongs what turns arrays of others into tensors under our names, and back. Nothing of a file is executed, and sizes are bounded.
Fitting them to a network is weights/load*.py. The reader of pickled arrays is reached by `paceline weights` alone.
"""

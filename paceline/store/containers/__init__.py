"""Who lies where in tar, zip, RecordIO, TFRecord and WebDataset files; writers of some of them.

Here: bytes to (name, offset, length), and back; no photo is decoded, nothing is unpacked, and nothing of a stranger is trusted.
Not here: which records make a data set (datasets/), how they are read in training (store/records.py, store/stores.py).
"""

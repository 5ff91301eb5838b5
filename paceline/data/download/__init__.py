"""Files from a network: parallel, resumed, checked, unpacked safely; whole or not at all.

Here: the sets and weights that we know by address and checksum, and the client that fetches them.
Not here: verifying what a data set holds (prepare/), reading photos from buckets in training (data/storage/object_store.py).
"""

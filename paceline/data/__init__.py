"""Data: from what people have to the batches of a training step. Knows no network.

prepare/     verifies a data set once and writes its manifest and index; formats/, containers/ and shapes/ are what it reads
index/       finds each photo again; storage/ reads its bytes from disks, buckets and caches; download/ brings files
transforms/  decodes, crops and changes pixels
loader/      chooses the samples of a step and makes its batches, in the processes of workers/
checks/      finds what is wrong in a data set; pack/ writes it into few large files
"""

"""Bytes and where they lie: each photo is found by its index and compared as it is read.

Here: manifest and index, records, stores (folders, buckets, servers), copies near by; containers/ (who lies where in tar, zip,
RecordIO, TFRecord), download/. Not here: what a photo's pixels become (input/), verifying a data set (datasets/).
"""

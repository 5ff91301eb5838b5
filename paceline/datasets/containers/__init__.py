"""Photos in containers (tar, zip, WebDataset, RecordIO, TFRecord): what they hold, told before a photo is decoded.

Here: files found by pattern or address, walked, and their entries named, classed and joined with boxes. Byte layouts of
the containers themselves are in paceline/containers, stores (disk, bucket, server) in store/stores.py; verifying photos and
writing the index is the pipeline, one room up.
"""

"""Photos in containers (tar, zip, WebDataset, RecordIO, TFRecord): what they hold, before a photo is decoded.

Here: container files found by pattern or address, walked, and their entries named, classed and joined with boxes.
Not here: byte layouts (store/containers/), stores (store/stores.py), verifying photos and writing the index (pipeline.py).
"""

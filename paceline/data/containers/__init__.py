"""Photos in tar, zip, RecordIO, TFRecord and WebDataset files: where each one lies, what a split of them holds, and writers.

No photo is decoded here, nothing is unpacked to be listed, and no byte of a file is trusted.
"""

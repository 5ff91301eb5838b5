"""A data set written as WebDataset's tars, MXNet's RecordIO or TFRecord: copied byte for byte or smaller, resumable.

Here: one pass over an index, writers by format. Not here: the containers' bytes (containers/), indexing the result (prepare/).
"""

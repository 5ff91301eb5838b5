"""A data set written as WebDataset's tars or MXNet's RecordIO: copied byte for byte or smaller, resumable.

Here: one pass over an index, writers by format. Not here: the containers' bytes (store/containers/), indexing the result (datasets/).
"""

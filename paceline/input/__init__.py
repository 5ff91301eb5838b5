"""From a photo's bytes to training batches, again in every epoch.

Here: the sample stream, the random draws of a sample, crops, colours, masks, decoding, the loader. Not here: where the bytes are
stored (store/), what a workload needs of them (tasks/).
"""

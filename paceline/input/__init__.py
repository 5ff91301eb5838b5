"""From a photo's bytes to training batches, again in every epoch.

Here: the sample stream, what is drawn for a sample, crops, colours, masks, decoding, the loader. Not here: where the bytes lie
(store/), what a workload wants of them (tasks/).
"""

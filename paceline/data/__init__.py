"""From prepared data to batches: the manifest and its index, stores and records, decoding, crops and colours, the loader.

Here belongs what is needed to read a photo again in every epoch. Making the index is prepare/'s, packing it into archives pack/'s.
Which photo comes when (stream, grouped) and what is drawn of it (randomness) are functions of the seed alone.
What a sample means to a workload is said in tasks/; batches themselves are batch/.
"""

"""Once, before training: verify every photo of a data set, and write its manifest and index.

Here: the pipeline (pipeline.py; class_source.py and box_source.py are what goes in, ensure.py asks for it). In wings: formats/
(what sets look like on disk), containers/ (photos in tar, zip, records), shapes/ (the built-in set), check/ (the page to look
at). Not here: what a training step reads of a prepared set (data/), files from a network (download/), larger files (pack/).
"""

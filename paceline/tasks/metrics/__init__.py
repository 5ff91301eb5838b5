"""Scores of an evaluation: top-k, COCO's numbers of boxes and masks, confusion, and when a target is reached.

Here belongs what turns answers and truth into numbers, on the host in numpy, top-k on the device. It knows no network, no file and
no rank: packing a rank's share for rank 0 is here, sending it is the engine's. What is drawn of scores is in report/.
"""

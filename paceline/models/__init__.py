"""Networks, their losses, and their first weights.

Here belongs what has parameters. What training wraps is one module a workload: classifier, detector (SSD), segmenter (Mask R-CNN).
A loss is models/..._loss.py, sums over images. SSD divides by an image's own positives there; training/ divides what spans images,
forwards or ranks. Weight files are in weights/, geometry in boxes/, the data's side of a workload in tasks/.
"""

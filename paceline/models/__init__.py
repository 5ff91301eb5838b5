"""Networks, their losses, and weights from files.

Here belongs what has parameters. What training wraps is one module a workload: classifier, detector (SSD), segmenter (Mask R-CNN).
A loss is models/..._loss.py: sums over images. What is divided within one image is divided there (SSD's by its own positives);
whatever spans images, forwards or ranks the engine divides.
Somebody's weight files are forms/. Geometry is in boxes/, the data's side of a workload in tasks/.
"""

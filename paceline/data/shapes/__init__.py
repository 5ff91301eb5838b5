"""The built-in data set "shapes", rendered on this machine: outlines, colors, scenes, their masks, and the files.

All here is the picture generator, which knows nothing of training; what it writes is read like any other COCO JSON or
class folders. A change that alters a byte of a picture raises GENERATOR_VERSION (render.py).
"""

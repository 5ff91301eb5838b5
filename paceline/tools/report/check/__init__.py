"""check.html of a prepared data set: counts, photos, and what looks wrong, to be looked at before training.

Finding what is suspicious and choosing examples belongs here; refusing data does not (prepare/ does, when it reads them), and
drawing does not (inference/drawing/).
"""

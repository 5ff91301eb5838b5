"""report.html of a run: what happened, made of the files in its folder alone.

Choosing photos, counting and matching what was found, curves and tables belong here. Drawing on photos belongs to draw/,
metrics to metrics/, and what stands in the files to log/ (events) and to the tasks (predictions).
"""
